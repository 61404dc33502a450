"""Ranks that failed by themselves: killed, out of memory, ended by an exception, gone without a word."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from npu_plugins.diagnostics.codes import explain
from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.findings import Absence, Cause, ended_for_another
from npu_plugins.diagnostics.hang.places import Source, frame_text, read_line, users_frames, waits_in
from npu_plugins.diagnostics.hang.ranks_text import capital, the_ranks

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|can't allocate memory|"
    r"\b(?:207001|207005|207018|200000)\b|EL0004|EI0011",
    re.IGNORECASE,
)
# What a rank raises because another one failed, hangs or called something else.
_OF_HCCL = re.compile(
    r"EI00(?:02|05|06|12|13|15|18)|\b107020\b|\b50704[6789]\b|hccl_watchdog|HCCL_E_(?:TIMEOUT|REMOTE|TCP|ROCE)|"
    r"hccl[^\n]*error code is (?:9|11|12|13|14|20|21|22)\b",
    re.IGNORECASE,
)
_OF_NETWORK = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|broken pipe|timed? ?out|"
    r"Dist(?:Backend|Network|Store)Error|"
    r"remote peer|peer closed|recvValue|preamble|socket|heartbeat",
    re.IGNORECASE,
)
_SIGNALS = {
    "SIGKILL": "See who ended it: the kernel for want of host memory (`dmesg | grep -i 'killed process'`), a "
    "limit of the container or scheduler, or a person.",
    "SIGTERM": "See who ended it: the scheduler, a time limit, or a person.",
    "SIGBUS": "See whether /dev/shm or a disk that a file is mapped from is full (`df -h`).",
    "SIGSEGV": "It crashed in C++: run it with PYTHONFAULTHANDLER=1 to see where.",
    "SIGABRT": "It gave up in C++: read its last lines above, which say why.",
}


def is_consequence(dump: RankDump, source: Source = read_line) -> bool:
    """Tell whether the exception that ends a rank says no more than that another rank did not come.

    A word such as "timeout" says so only where the rank communicated: a download has timeouts of its own.
    """
    if not dump.error or _OUT_OF_MEMORY.search(dump.error):
        return False
    if _OF_HCCL.search(dump.error):
        return True
    communicated = not dump.error_stack or waits_in(dump.error_stack, source)
    return bool(communicated and _OF_NETWORK.search(dump.error))


def find_faults(
    dumps: Mapping[int, RankDump],
    absent: Mapping[int, Absence],
    clock: Callable[[str], float],
    source: Source,
) -> list[Cause]:
    """Return what failed by itself, the earliest first; ranks that a launcher ended after it are left out.

    Args:
        dumps: by rank.
        absent: ranks without a dump.
        clock: for a host, the seconds that its clock is ahead.
        source: reads the text of a line.
    """
    causes = _exceptions(dumps, clock, source)
    # torch_npu's watchdog aborts its process when HCCL tells it of another rank's fault.
    after_hccl = any(is_consequence(dump, source) for dump in dumps.values())
    asked = ended_for_another(absent)
    ended = {
        rank: (absence, absence.when - clock(absence.host) if absence.when else 0.0)
        for rank, absence in sorted(absent.items())
        if absence.kind in ("killed", "failed") and rank not in asked
        if not (after_hccl and absence.detail == "SIGABRT")
    }
    for suspicion in (_by_itself, _by_sigkill, _on_request):
        first = min((cause.when for cause in causes), default=float("inf"))
        causes += [
            _ended(rank, absence, when)
            for rank, (absence, when) in ended.items()
            if suspicion(absence) and (suspicion is _by_itself or not causes or 0.0 < when < first)
        ]
    return sorted(causes, key=lambda cause: cause.when or float("inf"))


# A launcher that sees a rank end asks the others to end, or kills them: such a signal after another fault is
# what follows from it.
def _by_itself(absence: Absence) -> bool:
    return not _by_sigkill(absence) and not _on_request(absence)


def _by_sigkill(absence: Absence) -> bool:
    return absence.kind == "killed" and absence.detail == "SIGKILL"


def _on_request(absence: Absence) -> bool:
    return absence.on_request


def consequences(dumps: Mapping[int, RankDump], source: Source) -> list[Cause]:
    """Return the exceptions of ranks that say no more than that another rank did not come."""
    late = {rank: dump for rank, dump in dumps.items() if is_consequence(dump, source)}
    return [
        _exception(ranks, late[ranks[0]], late[ranks[0]].taken, source, "consequence")
        for ranks in _alike(late, source)
    ]


def _exceptions(dumps: Mapping[int, RankDump], clock: Callable[[str], float], source: Source) -> list[Cause]:
    failed = {rank: dump for rank, dump in dumps.items() if dump.error and not is_consequence(dump, source)}
    causes = []
    for ranks in _alike(failed, source):
        dump = min((failed[rank] for rank in ranks), key=lambda one: one.taken - clock(one.host))
        kind = "out of memory" if _OUT_OF_MEMORY.search(dump.error) else "exception"
        causes.append(_exception(ranks, dump, dump.taken - clock(dump.host), source, kind))
    return causes


def _alike(failed: Mapping[int, RankDump], source: Source) -> list[list[int]]:
    """Draw together ranks that were ended by the same exception at the same line."""
    alike: dict[tuple[str, object], list[int]] = {}
    for rank, dump in sorted(failed.items()):
        words = re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?", "#", dump.error.partition("\n")[0])
        frames = users_frames(dump.error_stack)
        alike.setdefault((words, frames[0] if frames else None), []).append(rank)
    return list(alike.values())


def _exception(ranks: list[int], dump: RankDump, when: float, source: Source, kind: str) -> Cause:
    frames = users_frames(dump.error_stack)
    place = f" at {frame_text(frames[0], source)}" if frames else ""
    verb = "ran out of memory" if kind == "out of memory" else "raised an exception"
    sentence = f"{capital(the_ranks(ranks))} {verb}{place}: {_first_lines(dump.error)}"
    told = explain(dump.error)
    mend = told[0].mend if told else _MENDS[kind]
    return Cause(kind, tuple(ranks), sentence, mend, when)


_MENDS = {
    "out of memory": "Take a smaller micro-batch or shorter sequences, gradient checkpointing, a higher ZeRO "
    "stage or more tp or pp; end other processes on the device.",
    "exception": "Mend what the exception says; what other ranks raised or waited for follows from it.",
    "consequence": "Look at the output of all ranks for an earlier error, and at each rank's place below.",
}


def _first_lines(error: str, most: int = 300) -> str:
    text = " ".join(error.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _ended(rank: int, absence: Absence, when: float) -> Cause:
    who = f"Rank {rank}" + (
        f" (process {absence.pid} on {absence.host})" if absence.pid and absence.host else ""
    )
    if absence.kind == "killed":
        mend = _SIGNALS.get(absence.detail, "See its last lines of output, and who sent the signal.")
        return Cause("killed", (rank,), f"{who} was killed by {absence.detail or 'a signal'}.", mend, when)
    how = f" with {absence.detail}" if absence.detail else ""
    return Cause(
        "failed", (rank,), f"{who} ended{how}.", "See its last lines of output, which say why.", when
    )
