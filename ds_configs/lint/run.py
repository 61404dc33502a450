"""Lint one document: which rules look at it, for whom, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ds_configs.documents import Document, parse_document, read_document
from ds_configs.errors import DsConfigError
from ds_configs.lint.context import Context, Options
from ds_configs.lint.finding import BOTH, DEEPSPEED, HF, SEVERITIES, Finding, Severity, codes
from ds_configs.lint.rules import ascend, batch, conflicts, engine, hf, keys, pipeline, values, zero
from ds_configs.lint.rules.filled import is_for_hf
from ds_configs.lint.rules.shape import check_shape
from ds_configs.lint.rules.syntax import check_text
from ds_configs.schema import LATEST, load_schema

TARGETS = {"hf": frozenset((HF,)), "deepspeed": frozenset((DEEPSPEED,)), "both": BOTH}
RULES = (
    keys.check,
    values.check,
    batch.check,
    conflicts.check,
    pipeline.check,
    zero.check,
    engine.check,
    hf.check,
    ascend.check,
)


@dataclass(frozen=True)
class Report:
    """What was found in one file, in the order of the file, and for whom it was read."""

    document: Document
    target: frozenset[str]
    detected: bool
    version: str
    findings: tuple[Finding, ...]

    @property
    def path(self) -> str:
        """The file."""
        return self.document.path

    def count(self, severity: Severity) -> int:
        """Return how many findings are of ``severity``."""
        return sum(finding.severity == severity for finding in self.findings)

    def refusals(self, *stops: str) -> list[Finding]:
        """Return the errors that stop a loader at one of "reader", "parser", "engine", "accelerate"."""
        return [
            finding
            for finding in self.findings
            if finding.severity == "error" and codes()[finding.code].stops in stops
        ]

    @property
    def target_name(self) -> str:
        """The target's name: "hf", "deepspeed" or "both"."""
        return next(name for name, target in TARGETS.items() if target == self.target)


def lint_path(path: str, options: Options | None = None) -> Report:
    """Lint the file at ``path`` (``-``: standard input). Nothing about the file itself raises.

    Raises:
        DsConfigError: an option is not understood, such as an unknown DeepSpeed version.
    """
    return lint_document(read_document(path), options)


def lint_text(text: str, options: Options | None = None, path: str = "ds_config.json") -> Report:
    """Lint ``text`` as if it were the content of ``path``; raises as ``lint_path`` does."""
    return lint_document(parse_document(text, path), options)


def lint_document(document: Document, options: Options | None = None) -> Report:
    """Lint a document that is already read; raises as ``lint_path`` does."""
    options = options or Options()
    _check_options(options)
    schema = load_schema(options.deepspeed_version or LATEST)
    target = _target(document, options)
    findings = list(check_text(document))
    if document.root is not None:
        findings += check_shape(document)
        if document.root.kind == "object":
            context = Context(document, document.root, schema, options, target)
            found = [finding for rule in RULES for finding in rule(context)]
            strange = any(finding.code == "DSC137" for finding in findings)
            findings += (
                [_bare(finding) for finding in found if codes()[finding.code].stops] if strange else found
            )
    kept = _in_order(_for_target(findings, target, options.target is None))
    return Report(document, target, options.target is None, schema.version, tuple(kept))


def _check_options(options: Options) -> None:
    if options.target is not None and options.target not in TARGETS:
        raise DsConfigError(f"the target is {options.target!r}; choose hf, deepspeed or both")
    if options.device not in ("npu", "any"):
        raise DsConfigError(f"the device is {options.device!r}; choose npu, or any for no rules about Ascend")
    size = options.world_size
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise DsConfigError(f"the world size is {size!r}; give a whole number of ranks, 1 or more")


def _bare(finding: Finding) -> Finding:
    """Return a finding of another program's file: what stops a loader is still said, but not mended."""
    return replace(finding, edits=(), mend="name the ds_config file")


def _target(document: Document, options: Options) -> frozenset[str]:
    if options.target is not None:
        return TARGETS[options.target]
    return TARGETS["hf"] if is_for_hf(document.value) else TARGETS["deepspeed"]


def _for_target(findings: list[Finding], target: frozenset[str], detected: bool) -> Iterator[Finding]:
    """Drop what concerns another loader; where the loader was only guessed, keep its refusals as notes."""
    for finding in findings:
        if finding.loaders & target:
            yield finding
        elif detected and finding.severity == "error" and finding.loaders == frozenset((HF,)):
            yield finding.as_note()


def _in_order(findings: Iterator[Finding]) -> list[Finding]:
    ranks = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    kept: dict[tuple, Finding] = {}
    for finding in findings:
        # A placeholder is seen in the text and again as a value.
        kept.setdefault((finding.code, finding.line, finding.column, finding.key), finding)
    return sorted(
        kept.values(), key=lambda found: (found.line, found.column, ranks[found.severity], found.code)
    )
