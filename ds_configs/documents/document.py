"""A configuration file as read: its text, its faults as JSON, its tree, and what each loader makes of it."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, replace
from typing import Any

import hjson

from ds_configs.documents.edits import delete_member
from ds_configs.documents.faults import Fault
from ds_configs.documents.mend import DEEPEST, mend
from ds_configs.documents.source import Source, read_source, source_of_text
from ds_configs.documents.text import LineMap, OffsetMap, apply_edits, in_order
from ds_configs.documents.tree import Node, build_tree

LONG_NUMBER = re.compile(rf"\d{{{sys.int_info.default_max_str_digits + 1},}}")
# HF reads with Python's json, which takes NaN and of two equal keys the last one.
HF_READS = ("duplicate_key", "not_a_number")
# Nobody can say what is meant, but where it starts and ends is plain.
PLAIN = (
    "duplicate_key",
    "placeholder",
    "expression",
    "not_a_number",
    "missing_value",
    "several_documents",
    "number_form",
)


@dataclass(frozen=True)
class Document:
    """One file. ``root`` is the tree of what its writer meant, None if that cannot be told."""

    path: str
    text: str
    encoding: str
    faults: tuple[Fault, ...]
    root: Node | None
    lines: LineMap
    deepspeed_error: str = ""
    """Why DeepSpeed's own reader, Hjson, fails on the text; "" where it reads it, if not as what is meant."""

    @property
    def value(self) -> Any:
        """The file as ``json.load`` would return it were its faults mended; None if there is no tree."""
        return None if self.root is None else self.root.value

    @property
    def hf_reads(self) -> bool:
        """Whether HF's loader, strict JSON, reads the file."""
        return self.root is not None and all(fault.kind in HF_READS for fault in self.faults)

    @property
    def is_guessed(self) -> bool:
        """Whether the structure is only a guess, as after a bracket too few, so that no place is sure."""
        return any(not fault.safe and fault.edits and fault.kind not in PLAIN for fault in self.faults)

    @property
    def deepspeed_reads(self) -> bool:
        """Whether DeepSpeed's loader, Hjson, reads the file as what is meant."""
        return self.root is not None and not any(fault.deepspeed for fault in self.faults)


def read_document(path: str) -> Document:
    """Read ``path``, or standard input for ``-``. Nothing about the file raises: see the faults."""
    return document_of(read_source(path))


def parse_document(text: str, path: str = "ds_config.json") -> Document:
    """Read ``text`` as if it were the content of ``path``."""
    return document_of(source_of_text(path, text))


def document_of(source: Source) -> Document:
    """Turn text into a document."""
    if source.text is None:
        return Document(source.path, "", source.encoding, source.faults, None, LineMap(""), "not text")
    text = source.text
    lines = LineMap(text)
    faults, readable = ([], True) if _is_json(text) else mend(text)
    if any(fault.kind == "byte_order_mark" for fault in source.faults):
        faults = [fault for fault in faults if not (fault.kind == "blank" and fault.start == 0)]
    root = None
    mended = text
    if readable:
        edits = in_order(edit for fault in (*source.faults, *faults) for edit in fault.edits)
        mended = apply_edits(text, edits)
        offsets = OffsetMap(edits)
        if _is_json(mended):
            root = build_tree(mended, offsets.start, offsets.end)
        else:
            faults.append(_unreadable(text, mended, offsets))
    if root is not None:
        faults += [*_duplicates(text, lines, root), *_overflows(root)]
    read, error = _hjson(text)
    everything = _as_deepspeed_reads(text, [*source.faults, *faults], root, read, error)
    everything.sort(key=lambda fault: (fault.start, fault.end))
    return Document(source.path, text, source.encoding, tuple(everything), root, lines, error)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_json(text: str) -> bool:
    """Whether ``text`` is JSON of a bearable depth."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return _depth(value) <= DEEPEST


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while level:
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        depth += 1
    return depth


def _unreadable(text: str, mended: str, offsets: OffsetMap) -> Fault:
    try:
        json.loads(mended)
    except json.JSONDecodeError as error:
        at = min(offsets.start(error.pos), len(text))
        return Fault("unreadable", at, at, f"this is not JSON: {error.msg}", "rewrite this place")
    except (ValueError, RecursionError) as error:
        number = LONG_NUMBER.search(text)
        if number:
            reason = f"a number of {len(number.group())} digits is longer than Python's readers take"
            return Fault("unreadable", number.start(), number.end(), reason, "write fewer digits")
        return Fault("unreadable", 0, 0, f"this is not JSON: {error}", "rewrite the value")
    return Fault("too_deep", 0, 0, f"more than {DEEPEST} brackets are open at once", "a ds_config needs four")


def _overflows(root: Node) -> list[Fault]:
    return [
        Fault(
            "overflow",
            node.start,
            node.end,
            f"the number is {node.value}: too large for a float",
            "write less",
        )
        for node in root.nodes()
        if isinstance(node.value, float) and not math.isfinite(node.value)
    ]


def _duplicates(text: str, lines: LineMap, root: Node) -> list[Fault]:
    faults = []
    for node in root.nodes():
        places: dict[str, list[int]] = {}
        for index, member in enumerate(node.members):
            places.setdefault(member.key, []).append(index)
        for key, (first, *later) in places.items():
            for index in later:
                member = node.members[index]
                same = member.node.value == node.members[first].node.value
                line = lines.position(node.members[first].start)[0]
                faults.append(
                    Fault(
                        "duplicate_key",
                        member.start,
                        member.end,
                        f'"{key}" stands here for the second time; line {line} has it already',
                        "keep one of the two" + ("; they are equal" if same else ": they differ"),
                        delete_member(text, node, index) if same else (),
                        safe=same,
                    )
                )
    return faults


def _hjson(text: str) -> tuple[Any, str]:
    """Return what DeepSpeed's reader makes of ``text``, and "" or why it fails."""
    try:
        return hjson.loads(text, object_pairs_hook=_refuse_duplicates), ""
    except Exception as error:  # its reader fails with IndexError and OverflowError too
        return None, f"{type(error).__name__}: {error}"


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate keys")
    return found


def _as_deepspeed_reads(
    text: str, faults: list[Fault], root: Node | None, value: Any, error: str
) -> list[Fault]:
    """Say of each fault whether DeepSpeed minds it: mend all other kinds, and let its own reader tell.

    ``value`` and ``error`` are what its reader makes of ``text`` as it stands.
    """
    if root is None:
        return faults
    marked = []
    minds: dict[str, bool] = {}
    for fault in faults:
        if fault.kind not in minds:
            others = [edit for other in faults if other.kind != fault.kind for edit in other.edits]
            minds[fault.kind] = fault.kind == "encoding" or _hjson(apply_edits(text, others))[0] != root.value
        marked.append(replace(fault, deepspeed=minds[fault.kind]))
    if value == root.value or any(fault.deepspeed for fault in marked):
        return marked
    if marked:  # each by itself is taken, but not all together
        return [replace(fault, deepspeed=True) for fault in marked]
    return [_reader_fault(error)]


def _reader_fault(error: str) -> Fault:
    if not error:
        reason = "DeepSpeed's reader (Hjson) reads something else here than what is written"
        return Fault("read_differently", 0, 0, reason, "write strict JSON")
    reason = f"DeepSpeed's reader (Hjson) fails on the file: {error}"
    return Fault("reader_fails", 0, 0, reason, "rewrite the value")
