"""What fails or hurts on Ascend NPUs with HCCL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path as File
from typing import Any

from ds_configs.lint.context import Context
from ds_configs.lint.finding import Finding
from ds_configs.lint.rules.conflicts import ZERO, half

TABLE = File(__file__).parent.parent / "ascend.json"


@cache
def _features() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(TABLE.read_text(encoding="utf-8"))["features"]


def check(context: Context) -> Iterator[Finding]:
    """Yield what is not for an NPU; nothing for another device."""
    if context.options.device != "npu":
        return
    yield from _overlap(context)
    if half(context, "fp16"):
        yield context.finding(
            "DSC802", ("fp16", "enabled"), "fp16 is enabled", "enable bf16 instead", on_value=True
        )
    for name, feature in _features().items():
        path = tuple(name.split("."))
        value = context.get(path)
        wanted = feature["value"]
        hit = context.flag(path) if wanted is True else isinstance(value, str) and value.lower() == wanted
        if hit:
            yield context.finding(
                feature["code"],
                path,
                f"{name} {feature['reason']}",
                feature["mend"],
                on_value=True,
                edits=context.delete(path),
                safe=feature["safe"],
                consequence=feature.get("consequence", ""),
            )


def _overlap(context: Context) -> Iterator[Finding]:
    path = (ZERO, "overlap_comm")
    member = context.member(path)
    if context.stage == 0 or (member is not None and not context.flag(path, context.stage == 3)):
        return
    if member is not None and context.flag(path):
        edits = context.put(path, False)
        yield context.finding(
            "DSC801", path, "overlap_comm is true", "write false", on_value=True, edits=edits
        )
    elif context.stage == 3 and context.stage_known:
        edits = context.put(path, False)
        reason = "overlap_comm is left out, and stage 3 then turns it on"
        yield context.finding("DSC801", path, reason, 'write "overlap_comm": false', edits=edits)
