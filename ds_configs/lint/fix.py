"""Mend a file: apply the edits of its findings, look again, and stop when nothing changes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ds_configs.documents import Document, apply_edits, parse_document
from ds_configs.lint.context import Options
from ds_configs.lint.finding import Finding, code_of_fault, codes
from ds_configs.lint.run import Report, lint_document

# Each pass mends what the one before uncovered; more than a handful would be edits that undo each other.
PASSES = 12


@dataclass(frozen=True)
class Fixed:
    """A file before and after."""

    before: Report
    after: Report
    applied: tuple[Finding, ...]

    @property
    def text(self) -> str:
        """The mended text."""
        return self.after.document.text

    @property
    def encoding(self) -> str:
        """The encoding to write ``text`` in: UTF-8 if that was among the mends, else the file's own."""
        return "utf-8" if _recodes(self.applied) else self.before.document.encoding

    @property
    def changed(self) -> bool:
        """Whether the file must be written: another text, or another encoding."""
        document = self.before.document
        return (self.text, self.encoding) != (document.text, document.encoding)

    def diff(self) -> str:
        """Return the change as a unified diff."""
        path = self.before.path
        lines = difflib.unified_diff(
            self.before.document.text.splitlines(keepends=True),
            self.text.splitlines(keepends=True),
            f"{path} (before)",
            f"{path} (after)",
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )


def fix_document(document: Document, options: Options | None = None, unsafe: bool = False) -> Fixed:
    """Mend ``document`` as far as its findings say how; order, layout and comments of the rest stay.

    Args:
        document: what ``read_document`` returns.
        options: how to look at it. The target is settled once, so that filling an "auto" cannot change it.
        unsafe: also apply edits that may change what the writer meant. Without it nothing at all is done to
            a file whose structure is only guessed, such as one with a bracket too few.

    Raises:
        DsConfigError: an option is not understood.
    """
    options = options or Options()
    before = report = lint_document(document, options)
    settled = Options(before.target_name, options.world_size, options.deepspeed_version, options.device)
    applied: list[Finding] = []
    seen = {document.text}
    for _ in range(PASSES):
        chosen = [finding for finding in report.findings if _applies(finding, unsafe)]
        if report.document.is_guessed and not unsafe:
            break
        chosen = _together(report.document, _first(chosen))
        text = _with(report.document, chosen)
        if not chosen or (text in seen and text != report.document.text):
            break
        applied += chosen
        unchanged = text == report.document.text and not _recodes(chosen)
        seen.add(text)
        report = lint_document(parse_document(text, document.path), settled)
        if unchanged:
            break
    return Fixed(before, report, tuple(applied))


def _first(chosen: list[Finding]) -> list[Finding]:
    """Return the findings that must be mended before the others, which may be others then.

    The text comes first: what a key's edit inserts may rest on a comma that goes. Then the errors: without
    effect may be only what a misspelt stage does not reach.
    """
    text = [finding for finding in chosen if codes()[finding.code].stops == "reader"]
    return text or [finding for finding in chosen if finding.severity == "error"] or chosen


def _together(document: Document, chosen: list[Finding]) -> list[Finding]:
    """Return as many of ``chosen`` as write no key twice; the next pass sees to the others.

    Two keys may belong into one block that is not there yet, or be two words for one key.
    """
    while len(chosen) > 1 and _twice(parse_document(_with(document, chosen))) > _twice(document):
        chosen = chosen[: len(chosen) // 2]
    return chosen


def _with(document: Document, findings: Iterable[Finding]) -> str:
    """Return the text of ``document`` with the edits of ``findings`` applied."""
    return apply_edits(document.text, [edit for finding in findings for edit in finding.edits])


def _twice(document: Document) -> int:
    """Return how many keys stand a second time in their object."""
    return sum(fault.kind == "duplicate_key" for fault in document.faults)


def _recodes(findings: Iterable[Finding]) -> bool:
    """Whether saving as UTF-8 is among the mends: the text is the same then, and the file is not."""
    return any(finding.code == code_of_fault()["encoding"] for finding in findings)


def _applies(finding: Finding, unsafe: bool) -> bool:
    return bool(finding.edits) and finding.severity != "note" and (finding.safe or unsafe)
