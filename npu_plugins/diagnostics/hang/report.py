"""A report as text, one screen for eight ranks and not much more for a thousand, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone

from npu_plugins.diagnostics.hang.dump import Frame
from npu_plugins.diagnostics.hang.findings import Cause, Findings, Place, Wait
from npu_plugins.diagnostics.hang.places import line_text
from npu_plugins.diagnostics.hang.ranks_text import ranks_text, the_ranks
from npu_plugins.diagnostics.strict_json import strict_json

_WIDTH = 110
_MOST = 8
"""Lines of one kind that are shown; what is left out is counted."""
_REASONS = {
    "timeout": "the job waits longer than it may",
    "exception": "a rank failed",
    "peer lost": "a rank was lost",
    "signal": "the job was asked to end",
    "asked": "asked for",
}


def write_report(findings: Findings) -> str:
    """Return the report as text: the cause first, then where every rank is, and what error codes mean."""
    lines = [_title(findings), ""]
    lines += _causes(findings.causes)
    lines += _section("Waiting", [_wait(wait) for wait in findings.waits])
    lines += _section("Elsewhere", [_place(place) for place in findings.places])
    lines += _section("Without a dump", _absent(findings))
    lines += _section("Memory", _memory(findings))
    lines += _section("Error codes", [_wrapped(str(told)) for told in findings.explanations])
    lines += _section("Notes", [_wrapped(note) for note in _notes(findings)])
    return "\n".join(lines).rstrip() + "\n"


def to_json(findings: Findings) -> str:
    """Return the findings as JSON, with all ranks and frames."""
    return strict_json(asdict(findings), ensure_ascii=False)


def summary(findings: Findings) -> str:
    """Return the first cause in one sentence, for standard error; it ends with a full stop."""
    if not findings.causes:
        return "No rank waits for another, and none failed."
    return findings.causes[0].sentence


def _title(findings: Findings) -> str:
    hosts = [f"{host} (ranks {ranks_text(ranks)})" for host, ranks in findings.hosts.items()]
    where = hosts[0].partition(" (")[0] if len(hosts) == 1 else ", ".join(hosts[:4])
    more = f" and {len(hosts) - 4} more hosts" if len(hosts) > 4 else ""
    when = datetime.fromtimestamp(findings.taken, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    waited = f", longest wait {findings.waited:.0f} s" if findings.waited >= 1 else ""
    limit = f" of {findings.timeout:.0f} s allowed" if waited and findings.timeout else ""
    device = f" on {findings.device}" if findings.device else ""
    text = (
        f"Hang report: {findings.world_size} ranks{device}, {where}{more}; {when}; "
        f"{_REASONS.get(findings.reason, findings.reason)}{waited}{limit}"
    )
    return _wrapped(text, "", "  ")


def _causes(causes: Sequence[Cause]) -> Iterator[str]:
    if not causes:
        yield "No fault found: no rank waits for another, and none failed."
        yield ""
    for place, cause in enumerate(causes[:_MOST]):
        yield _wrapped(cause.sentence, "Cause: " if place == 0 else "Also: ", "  ")
        if place == 0 or cause.mend != causes[0].mend:
            yield _wrapped(cause.mend, "Mend: ", "  ")
        yield ""
    if len(causes) > _MOST:
        yield f"  and {len(causes) - _MOST} more causes (--json shows all)"
        yield ""


def _section(title: str, pieces: Sequence[str]) -> Iterator[str]:
    if pieces:
        yield f"{title}:"
        yield from pieces[:_MOST]
        if len(pieces) > _MOST:
            yield f"  and {len(pieces) - _MOST} more (--json shows all)"
        yield ""


def _wait(wait: Wait) -> str:
    groups = f" ({wait.groups} groups)" if wait.groups > 1 else ""
    what = f", {wait.what}" if wait.what else ""
    missing = f"without {the_ranks(wait.waits_for)}" if wait.waits_for else "all came"
    text = f"{the_ranks(wait.ranks)}: {wait.call}{groups}{what}, {wait.seconds:.0f} s, {missing}"
    return _wrapped(text) + _stack(wait.place, wait.text)


def _place(place: Place) -> str:
    text = the_ranks(place.ranks) + ":"
    if place.error:
        text += f" {place.error}"
    elif place.inside:
        text += f" inside {place.inside}"
    if not place.frames:
        text += " at a place that the dump does not tell"
    return _wrapped(text) + _stack(place.frames, place.text)


def _stack(frames: Sequence[Frame], text: str) -> str:
    told = [line_text(frame) for frame in frames[:3]]
    if told and text:
        told[0] += f": {text}"
    return "".join(f"\n      {'from ' * (depth > 0)}{line}" for depth, line in enumerate(told))


def _absent(findings: Findings) -> list[str]:
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, absence in findings.absent.items():
        alike.setdefault((absence.kind, absence.detail), []).append(rank)
    words = {"killed": "killed by", "failed": "ended with", "left": "ended:", "silent": "silent:"}
    return [
        _wrapped(f"{the_ranks(ranks)}: {words[kind]} {detail}".rstrip())
        for (kind, detail), ranks in alike.items()
    ]


def _memory(findings: Findings) -> list[str]:
    return [
        f"  rank {rank}: " + ", ".join(f"{word} {bytes_ / 2**30:.2f} GiB" for word, bytes_ in told.items())
        for rank, told in findings.memory.items()
    ]


def _notes(findings: Findings) -> list[str]:
    apart = {host: skew for host, skew in findings.skews.items() if abs(skew) >= 1}
    told = [
        f"The clock of {host} is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the first host's, "
        "by the times at which calls began; the order of faults allows for it."
        for host, skew in apart.items()
    ]
    return [*told, *findings.notes]


def _wrapped(text: str, first: str = "  ", rest: str = "    ") -> str:
    """Return `text` in lines; `first` stands before its first line, `rest` before the others."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
