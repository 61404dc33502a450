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
    for fault in document.faults:
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
            _key_at(document, fault.start),
            fault.reason,
            known.consequence,
            fault.mend,
            _loaders(fault),
            () if fault.kind in GUESSED else fault.edits,
            fault.safe,
        )


def _key_at(document: Document, offset: int) -> str:
    """Return the innermost key within whose member ``offset`` lies, with dots; "" outside of all."""
    found = ""
    if document.root is not None:
        for path, member in document.root.walk():
            if member.start <= offset < member.node.end:
                found = ".".join(path)
    return found


def _loaders(fault: Fault) -> frozenset[str]:
    if fault.kind in DEEPSPEED_ONLY:
        return frozenset((DEEPSPEED,))
    return BOTH if fault.deepspeed else frozenset((HF,))
