"""ZeRO, offload and precision: what is silently ignored or does something else than it says."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ds_configs.lint.context import AUTO, Context, Path
from ds_configs.lint.finding import DEEPSPEED, Finding
from ds_configs.lint.rules.conflicts import ZERO, half

LARGE = 500_000_000


def check(context: Context) -> Iterator[Finding]:
    """Yield each setting without its effect."""
    if context.stage_known:
        yield from _offload(context)
        yield from _stage3_keys(context)
        yield from _stage0(context)
    yield from _precision(context)
    yield from _bucket(context)


def offloads(context: Context, what: str) -> str:
    """Return where ``what`` (offload_optimizer, offload_param) puts things: "cpu", "nvme" or ""."""
    device = context.get((ZERO, what, "device"))
    return device if device in ("cpu", "nvme") else ""


def _offload(context: Context) -> Iterator[Finding]:
    if offloads(context, "offload_param") and context.stage < 3:
        reason = f"offload_param works at stage 3; this is stage {context.stage}"
        path: Path = (ZERO, "offload_param")
        yield context.finding(
            "DSC405",
            path,
            reason,
            "delete it, or use stage 3",
            edits=context.delete(path),
            safe=context.stage_written,
        )
    device = offloads(context, "offload_optimizer")
    if not device:
        return
    path = (ZERO, "offload_optimizer")
    if context.stage == 0:
        reason = "offload_optimizer needs stage 1, 2 or 3"
        yield context.finding(
            "DSC612", path, reason, "use stage 1 or 2, or delete it", edits=context.delete(path), safe=False
        )
    elif device == "cpu":
        optimizer = context.get(("optimizer", "type"))
        own = isinstance(optimizer, str)
        reason = (
            f"offload_optimizer builds DeepSpeed's CPU {optimizer}"
            if own
            else "offload_optimizer wants DeepSpeedCPUAdam, also from the caller"
        )
        mend = "have g++ and ninja in place before the job starts"
        yield context.finding("DSC613", path, reason, mend)
    for what in ("offload_optimizer", "offload_param"):
        if offloads(context, what) == "nvme" and not context.get((ZERO, what, "nvme_path")):
            reason = f"{what} goes to nvme, but nvme_path is missing"
            yield context.finding(
                "DSC610", (ZERO, what, "device"), reason, "add nvme_path, a folder on a local SSD"
            )


def _stage3_keys(context: Context) -> Iterator[Finding]:
    """Yield a finding for all keys that only stage 3 reads, and one for each other one without effect."""
    stage3, others = [], []
    for path, member in context.root.walk():
        key = context.schema.key(path)
        if key is None or path[0] != ZERO or path == (ZERO, "offload_param"):
            continue
        if _needs_stage(key.ignored) == (3,) and context.stage != 3:
            stage3.append(path)
        elif member.node.value != key.default and _has_no_effect(context, path, key.ignored):
            others.append(path)
    # What lies below a key that is named already needs no name of its own.
    stage3 = [path for path in stage3 if not any(path[: len(top)] == top for top in stage3 if top != path)]
    stage3 = [path for path in stage3 if path[:2] != (ZERO, "offload_param")]
    if stage3:
        shown = ", ".join(path[-1] for path in stage3)
        reason = f"at stage {context.stage} DeepSpeed ignores {shown}"
        edits = [edit for path in stage3 for edit in context.delete(path)]
        mend = "delete them, or use stage 3"
        yield context.finding("DSC406", stage3[0], reason, mend, edits=edits, safe=context.stage_written)
    for path in others:
        key = context.schema.key(path)
        reason = f"{'.'.join(path)} has no effect {key.ignored if key else ''}"
        yield context.finding("DSC409", path, reason, "delete the key", edits=context.delete(path))


def _needs_stage(ignored: str) -> tuple[int, ...]:
    """Return the stages that a condition of the schema, such as "unless stage is 1 or 2", names."""
    found = re.fullmatch(r"unless stage is (\d)(?: or (\d))?", ignored)
    return tuple(int(stage) for stage in found.groups() if stage) if found else ()


def _has_no_effect(context: Context, path: Path, ignored: str) -> bool:
    """Whether the condition under which the schema says that a key is read is not met."""
    stages = _needs_stage(ignored)
    if stages:
        return context.stage not in stages
    if ignored.startswith("unless device is nvme"):
        return context.get((*path[:-1], "device"), "none") != "nvme"
    return ignored.startswith("unless super_offload") and not context.flag((*path[:-1], "super_offload"))


def _stage0(context: Context) -> Iterator[Finding]:
    if context.since("0.19") and context.stage == 0 and (half(context, "fp16") or half(context, "bf16")):
        name = "bf16" if half(context, "bf16") else "fp16"
        reason = f"{name} at stage 0 starts with an optimizer step on zero gradients"
        yield context.finding("DSC502", (name, "enabled"), reason, "use stage 1", on_value=True)


def _precision(context: Context) -> Iterator[Finding]:
    named = ("fp16", "bf16", "bfloat16", "torch_autocast")
    filled = any(context.get((name, "enabled")) == AUTO for name in named)
    if not filled and not any(context.flag((name, "enabled")) for name in named):
        # accelerate adds the block that its own flag asks for
        yield context.finding(
            "DSC503",
            (),
            "neither fp16 nor bf16 is enabled",
            'add "bf16": {"enabled": true}',
            loaders=(DEEPSPEED,),
        )


def _bucket(context: Context) -> Iterator[Finding]:
    """allgather_bucket_size is not looked at: stages 1 and 2 gather into the parameters' own flat memory."""
    if context.stage == 0:
        return
    path = (ZERO, "reduce_bucket_size")
    written = context.get(path)
    size = context.number(path, LARGE if written is None else 0)
    if size is not None and size >= LARGE:
        how = "is" if written is not None else "is left out, so it is"
        mib = size * 2 / 2**20
        reason = f"reduce_bucket_size {how} {size:.0e} elements: {mib:.0f} MiB in 16 bits on every rank"
        yield context.finding("DSC805", path, reason, "write 2e8 or less", on_value=True)
