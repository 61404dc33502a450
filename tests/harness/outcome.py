"""What became of one function on one rank, and how a failure of several ranks is told."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

OutcomeKind = Literal["returned", "raised", "skipped", "hung", "died"]

LOG_TAIL_CHARACTERS = 4000


class HarnessError(Exception):
    """The harness itself was misused or its nursery is gone."""


@dataclass(frozen=True)
class Outcome:
    """The end of one function on one rank.

    `value` is what it returned (kind "returned"); `text` is the traceback (raised), the reason (skipped), the
    stacks of all threads (hung) or the way it ended (died); `error` is the exception itself if it could be
    sent back; `log` is the tail of what the rank wrote to stdout and stderr.
    """

    rank: int
    kind: OutcomeKind
    value: Any = None
    text: str = ""
    error: BaseException | None = None
    log: str = ""

    @property
    def ok(self) -> bool:
        """True if the function returned."""
        return self.kind == "returned"


class RankFailure(AssertionError):
    """At least one rank did not return; the message holds every rank's traceback or stacks."""

    def __init__(self, what: str, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        super().__init__(describe(what, self.outcomes))


def describe(what: str, outcomes: Sequence[Outcome]) -> str:
    """One readable report: a summary line, then a section for each rank."""
    bad = [outcome for outcome in outcomes if not outcome.ok]
    summary = ", ".join(f"rank {outcome.rank} {outcome.kind}" for outcome in bad)
    sections = [f"{what} failed on {len(bad)} of {len(outcomes)} ranks: {summary}"]
    for outcome in outcomes:
        sections.append(f"---- rank {outcome.rank}: {outcome.kind} ----")
        if outcome.text:
            sections.append(outcome.text.rstrip())
        if outcome.log and not outcome.ok:
            sections.append(f"-- output of rank {outcome.rank} --\n{outcome.log.rstrip()}")
    return "\n".join(sections)


def describe_exit(status: int) -> str:
    """The words for a wait status: the signal or the exit code."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exited with code {status}"


def tail(text: str) -> str:
    """The last characters of a log, marked if it was cut."""
    if len(text) <= LOG_TAIL_CHARACTERS:
        return text
    return "[… cut …]\n" + text[-LOG_TAIL_CHARACTERS:]
