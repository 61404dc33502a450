"""Faults of the text: not JSON, or JSON that one of the two loaders does not take."""

from __future__ import annotations

from collections.abc import Iterator

from ds_configs.documents import Document, Fault
from ds_configs.lint.finding import BOTH, DEEPSPEED, HF, Finding, code_of_fault, codes

# Their edits only let the reader go on; what is meant nobody can say.
GUESSED = ("placeholder", "expression", "missing_value", "not_a_number", "several_documents")
# Two equal keys: HF's json takes the last and passes on a plain dictionary.
DEEPSPEED_ONLY = ("duplicate_key", "reader_fails", "read_differently")


def check_text(document: Document) -> Iterator[Finding]:
    """Yield a finding for each fault of the text."""
    keys = _keys_at(document)
    for fault, key in zip(document.faults, keys, strict=True):
        known = codes()[code_of_fault()[fault.kind]]
        line, column = document.lines.position(fault.start)
        end_line, end_column = document.lines.position(fault.end)
        if not document.text:
            line = column = end_line = end_column = 0
        yield Finding(
            known.code,
            known.severity,
            document.path,
            line,
            column,
            end_line,
            end_column,
            key,
            fault.reason,
            known.consequence,
            fault.mend,
            _loaders(fault),
            () if fault.kind in GUESSED else fault.edits,
            fault.safe,
        )


def _keys_at(document: Document) -> list[str]:
    """Return, for each fault, the innermost key within whose member it starts, with dots; "" outside of all.

    Faults come by place and members do too, so that one walk serves them all.
    """
    members = [] if document.root is None else list(document.root.walk())
    found: list[str] = []
    around: list[tuple[str, int]] = []  # the members that are open at the fault, with their ends
    at = 0
    for fault in document.faults:
        while at < len(members) and members[at][1].start <= fault.start:
            path, member = members[at]
            around = [each for each in around if each[1] > member.start]
            around.append((".".join(path), member.node.end))
            at += 1
        around = [each for each in around if each[1] > fault.start]
        found.append(around[-1][0] if around else "")
    return found


def _loaders(fault: Fault) -> frozenset[str]:
    if fault.kind in DEEPSPEED_ONLY:
        return frozenset((DEEPSPEED,))
    return BOTH if fault.deepspeed else frozenset((HF,))
