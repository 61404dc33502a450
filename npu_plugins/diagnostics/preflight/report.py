"""What a preflight has found: findings with their ranks and mends, and the figures that it measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.strict_json import strict_json

LEVELS = ("error", "warning")
KINDS = ("missing", "lost", "late", "different", "alike", "failed", "stuck", "wrong", "slow", "clock")


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    """One of `KINDS`: what sort of fault it is."""
    level: str
    """One of `LEVELS`; a warning does not keep a job from running."""
    ranks: tuple[int, ...]
    """Global ranks at fault. Where two sides differ and neither is in the majority, both."""
    what: str
    """What was seen, with ranks, hosts and values."""
    mend: str
    """What to do about it."""

    def __post_init__(self) -> None:
        """Refuse a kind or level that no report knows."""
        if self.kind not in KINDS or self.level not in LEVELS:
            raise DiagnosticsError(
                f"A finding is of kind {self.kind!r} and level {self.level!r}; kinds are {', '.join(KINDS)} "
                f"and levels {', '.join(LEVELS)}"
            )


@dataclass
class Report:
    """What all ranks know at the end of a preflight."""

    world_size: int
    title: str = ""
    """What the ranks run on: degrees, backend, and "simulated" where the NPUs are."""
    lines: dict[str, str] = field(default_factory=dict)
    """By phase, what was looked at and is as it should be, in words."""
    figures: dict[str, Any] = field(default_factory=dict)
    """By phase, what was measured, as JSON."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        """The findings for which a job must not start."""
        return [finding for finding in self.findings if finding.level == "error"]

    def sentence(self) -> str:
        """Return the first error with its mend, and how many more there are."""
        first, *more = self.errors
        others = f" (and {counted(len(more), 'more error')})" if more else ""
        return f"preflight: {first.what}; {first.mend}{others}"

    def text(self) -> str:
        """Return the report for people, a line for each phase and two for each finding."""
        width = max(map(len, self.lines), default=0)
        lines = [f"preflight: {self.title or f'{self.world_size} ranks'}"]
        lines += [f"  {phase:{width}}  {told}" for phase, told in self.lines.items()]
        for finding in self.findings:
            lines += [f"{finding.level}: {finding.what}", f"  → {finding.mend}"]
        warnings = len(self.findings) - len(self.errors)
        verdict = f"not ready: {counted(len(self.errors), 'error')}" if self.errors else "ready"
        lines.append(verdict + (f", {counted(warnings, 'warning')}" if warnings else ""))
        return "\n".join(lines)

    def to_json(self, indent: int | None = None) -> str:
        """Return the report as JSON, with ``ready`` besides."""
        return strict_json({"ready": not self.errors, **asdict(self)}, indent=indent, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote.

        Raises:
            DiagnosticsError: it is no report.
        """
        try:
            found = json.loads(text)
            del found["ready"]
            found["findings"] = [
                Finding(**{**finding, "ranks": tuple(finding["ranks"])}) for finding in found["findings"]
            ]
            return cls(**found)
        except (ValueError, KeyError, TypeError) as error:
            raise DiagnosticsError(
                f"This is no report of a preflight ({type(error).__name__}: {error}); make one with --json"
            ) from error


class PreflightError(DiagnosticsError):
    """The ranks are not ready; raised on all of them with the same report."""

    def __init__(self, report: Report, *, stuck: bool = False) -> None:
        """Take the report.

        Args:
            report: with at least one error.
            stuck: a communication of this rank has not come back, so that tearing down its groups would wait
                for it: end the process with `os._exit`.
        """
        super().__init__(report.sentence())
        self.report = report
        self.stuck = stuck

    def __reduce__(self) -> tuple[Any, ...]:
        """Let the error be sent to another process."""
        return _again, (self.report, self.stuck)


def _again(report: Report, stuck: bool) -> PreflightError:
    return PreflightError(report, stuck=stuck)


def ranks_in_words(ranks: Iterable[int], hosts: Mapping[int, str]) -> str:
    """Return ``rank 3 (host a)``, ``ranks 0–2, 5 (hosts a, b)``; without hosts where they are not known."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    told = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    known = list(dict.fromkeys(hosts[rank] for rank in ordered if hosts.get(rank)))
    more = f", … {len(known) - 4} more" if len(known) > 4 else ""
    place = f" (host{'s' * (len(known) > 1)} {', '.join(known[:4])}{more})" if known else ""
    return f"rank{'s' * (len(ordered) > 1)} {told}{place}"


def counted(number: int, noun: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{number} {noun}{'s' * (number != 1)}"
