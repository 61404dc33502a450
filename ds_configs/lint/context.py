"""What a rule sees: the document, what the values mean to DeepSpeed, and for whom the file is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ds_configs.documents import Document, Edit, Member, Node, delete_member, insert_member, replace_value
from ds_configs.lint.finding import BOTH, DEEPSPEED, Finding, Severity, codes
from ds_configs.pipeline_section import is_own
from ds_configs.schema import Schema
from ds_configs.schema.lax import truth_of

Path = tuple[str, ...]
AUTO = "auto"


def is_finite(value: Any) -> bool:
    """Whether ``value`` is a number to reckon with: JSON's 1e999 is read as infinity."""
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


@dataclass(frozen=True)
class Options:
    """How to look at a file.

    ``target`` is "hf", "deepspeed" or "both"; None detects it: a file with an "auto" that HF fills is HF's,
    any other one DeepSpeed's. ``world_size`` counts data-parallel ranks; None: not known.
    """

    target: str | None = None
    world_size: int | None = None
    deepspeed_version: str | None = None
    device: str = "npu"


@dataclass(frozen=True)
class Context:
    """One document whose root is an object, under the options."""

    document: Document
    root: Node
    schema: Schema
    options: Options
    target: frozenset[str] = field(default=BOTH)

    @property
    def value(self) -> dict[str, Any]:
        """The whole configuration."""
        return self.root.value

    @cached_property
    def refused(self) -> dict[Path, list[str]]:
        """What DeepSpeed's parser refuses key by key, and why."""
        found: dict[Path, list[str]] = {}
        for refusal in self.schema.refusals(self.value):
            found.setdefault(refusal.path, []).append(refusal.reason)
        return found

    @cached_property
    def own_pipeline(self) -> bool:
        """Whether the pipeline block is for npu_plugins' engine, whose rules are rules/pipeline.py."""
        return is_own(self.block(("pipeline",)))

    def since(self, version: str) -> bool:
        """Whether the DeepSpeed version in question is ``version``, such as "0.19", or later."""
        found, asked = (tuple(map(int, text.split("."))) for text in (self.schema.version, version))
        return found >= asked

    def member(self, path: Path) -> Member | None:
        """Return the member at ``path``, with its place."""
        return self.root.find(path)

    def get(self, path: Path, default: Any = None) -> Any:
        """Return the value at ``path`` as written; ``default`` if it is not there."""
        member = self.member(path)
        return default if member is None else member.node.value

    def block(self, path: Path) -> dict[str, Any]:
        """Return the object at ``path``, {} if there is none."""
        found = self.get(path)
        return found if isinstance(found, dict) else {}

    def flag(self, path: Path, default: bool = False) -> bool:
        """Return the switch at ``path`` as DeepSpeed converts it; ``default`` for "auto" and nonsense."""
        value = self.get(path)
        truth = truth_of(value)
        return default if truth is None else truth

    def number(self, path: Path, default: float | None = None) -> float | None:
        """Return the number at ``path`` as DeepSpeed converts it; ``default`` for "auto" and nonsense."""
        value = self.get(path)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return default
        return value if is_finite(value) else default

    @cached_property
    def stage(self) -> int:
        """The ZeRO stage, 0 if none is set."""
        zero = self.get(("zero_optimization",))
        if isinstance(zero, bool):  # the form of DeepSpeed 0.1, still taken
            return int(zero)
        stage = self.number(("zero_optimization", "stage"), 0)
        return int(stage) if stage in (0, 1, 2, 3) else 0

    @property
    def takes_auto(self) -> bool:
        """Whether a mend may write "auto": DeepSpeed by itself refuses it."""
        return DEEPSPEED not in self.target

    @property
    def stage_known(self) -> bool:
        """Whether the file itself says the stage: accelerate fills "auto" with 2, and 5 is none."""
        written = self.get(("zero_optimization", "stage"), 0)
        return self.number(("zero_optimization", "stage"), 0 if written == 0 else None) in (0, 1, 2, 3)

    @property
    def stage_written(self) -> bool:
        """Whether the stage is not just the default: where it is left out or misspelt, 3 may be meant."""
        return self.member(("zero_optimization", "stage")) is not None

    def delete(self, path: Path) -> tuple[Edit, ...]:
        """Return the edits that take the key at ``path`` out."""
        parent = self.root if len(path) == 1 else self.root.find(path[:-1])
        node = parent.node if isinstance(parent, Member) else parent
        index = None if node is None else node.index(path[-1])
        return () if node is None or index is None else delete_member(self.document.text, node, index)

    def put(self, path: Path, value: Any) -> tuple[Edit, ...]:
        """Return the edits that give the key at ``path`` a value, () if there is no object to hold it."""
        member, node = self.member(path), self.object_at(path[:-1])
        if member is not None:
            return replace_value(member.node, value)
        return () if node is None else insert_member(self.document.text, node, path[-1], value)

    def object_at(self, path: Path) -> Node | None:
        """Return the object at ``path`` (``()``: the root), or None."""
        if not path:
            return self.root
        member = self.member(path)
        return member.node if member is not None and member.node.kind == "object" else None

    def finding(
        self,
        code: str,
        path: Path,
        reason: str,
        mend: str,
        *,
        on_value: bool = False,
        loaders: Iterable[str] = BOTH,
        edits: Iterable[Edit] = (),
        safe: bool = True,
        severity: Severity | None = None,
        consequence: str = "",
    ) -> Finding:
        """Return a finding at the key ``path`` (its value with ``on_value``), or at its nearest parent."""
        known = codes()[code]
        start, end = self._place(path, on_value)
        line, column = self.document.lines.position(start)
        end_line, end_column = self.document.lines.position(end)
        return Finding(
            code,
            severity or known.severity,
            self.document.path,
            line,
            column,
            end_line,
            end_column,
            ".".join(path),
            reason,
            consequence or known.consequence,
            mend,
            frozenset(loaders),
            tuple(edits),
            safe,
        )

    def _place(self, path: Path, on_value: bool) -> tuple[int, int]:
        while path:
            member = self.member(path)
            if member is not None:
                return (member.node.start, member.node.end) if on_value else (member.start, member.end)
            path, on_value = path[:-1], False
        return self.root.start, self.root.start + 1
