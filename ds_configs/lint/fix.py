"""Mend a file: apply the edits of its findings, look again, and stop when nothing changes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ds_configs.documents import Document, apply_edits, parse_document
from ds_configs.lint.context import Options
from ds_configs.lint.finding import Finding, codes
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
    def changed(self) -> bool:
        """Whether the file must be written: another text, or another encoding."""
        return self.text != self.before.document.text or (
            self.before.document.encoding != "utf-8" and bool(self.applied)
        )

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
        # The text first: what a key's edit inserts may rest on a comma that goes.
        chosen = [finding for finding in chosen if codes()[finding.code].stops == "reader"] or chosen
        text = apply_edits(report.document.text, [edit for finding in chosen for edit in finding.edits])
        if not chosen or (text in seen and text != report.document.text):
            break
        applied += chosen
        unchanged = text == report.document.text
        seen.add(text)
        report = lint_document(parse_document(text, document.path), settled)
        if unchanged:
            break
    return Fixed(before, report, tuple(applied))


def _applies(finding: Finding, unsafe: bool) -> bool:
    return bool(finding.edits) and finding.severity != "note" and (finding.safe or unsafe)
