"""How long a rank may wait for the others: one setting, HCCL_TIMEOUT, for HCCL, DeepSpeed and torch alike.

``export HCCL_TIMEOUT=300``: after 300 s of waiting the job is at an end. CANN knows no such variable; what
it knows is made of it here. The order of the ends: the hang watch reports after HCCL_TIMEOUT, while all ranks
still live; HCCL would end the wait a `GRACE` later, and torch yet one later, so that HCCL's own log is whole
(torch_npu warns where torch comes first).

Sources of the figures: CANN's documentation of environment variables, 8.5 to 9.1 (HCCL_CONNECT_TIMEOUT,
HCCL_EXEC_TIMEOUT, HCCL_OP_EXPANSION_MODE); torch_npu 2.13, ProcessGroupHCCL.cpp (its defaults, and
HCCL_EVENT_TIMEOUT).
"""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Mapping, MutableMapping
from datetime import timedelta

from npu_plugins.comm.errors import CommError
from npu_plugins.launchers import is_launcher

SETTING = "HCCL_TIMEOUT"
EXEC, CONNECT, EVENT = "HCCL_EXEC_TIMEOUT", "HCCL_CONNECT_TIMEOUT", "HCCL_EVENT_TIMEOUT"
DEEPSPEED = "DEEPSPEED_TIMEOUT"
VARIABLES = (EXEC, CONNECT, EVENT, DEEPSPEED)
"""What is compared with the setting: in seconds, but for DEEPSPEED_TIMEOUT, which is in minutes."""

GRACE = 30
"""Seconds between the hang watch, HCCL's own end and torch's own end."""

EXEC_STEP = 68
"""Atlas training cards (910A) round HCCL_EXEC_TIMEOUT down to a multiple of it; newer ones take any time."""
EXEC_MOST = 17340
"""The longest HCCL_EXEC_TIMEOUT of Atlas training cards; newer ones take 2147483647."""
EXEC_DEFAULT = 1836
EXEC_AIV = 1091
"""HCCL's longest wait, whatever is asked for, with HCCL_OP_EXPANSION_MODE=AIV."""
CONNECT_LEAST, CONNECT_MOST = 120, 7200
TORCH_DEFAULT = 1800
MOST = EXEC_MOST - GRACE
"""The longest setting, which every card can keep."""


def setting(environ: Mapping[str, str]) -> int | None:
    """Return HCCL_TIMEOUT in seconds; None if it is not set.

    Raises:
        CommError: it is no whole number of seconds from 1 to `MOST`.
    """
    text = environ.get(SETTING, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST:
        raise CommError(
            f"{SETTING}={text} is no whole number of seconds from 1 to {MOST}; give one: {SETTING}=300"
        )
    return int(text)


def wait_limit(
    environ: Mapping[str, str], group_timeout: timedelta | None = None, *, backend: str = "hccl"
) -> float:
    """Return the seconds after which a waiting rank counts as hanging.

    It is HCCL_TIMEOUT, or where that is not set a `GRACE` before HCCL or torch would end the job anyway;
    where something shorter is set beside HCCL_TIMEOUT, a `GRACE` before that. (Of times under two graces,
    half.)

    Args:
        environ: of the rank.
        group_timeout: torch's timeout of the group that waits; None: not known.
        backend: of that group. HCCL's variables bound a wait only of those with ``hccl`` in their name.

    Returns:
        Seconds; infinite if waits were asked to last for ever (HCCL_EXEC_TIMEOUT=0).

    Raises:
        CommError: HCCL_TIMEOUT is no time.
    """
    asked = setting(environ)
    ends = [] if group_timeout is None else [group_timeout.total_seconds()]
    hccl = "hccl" in backend
    if hccl:
        seconds = _seconds(environ, EXEC)
        if seconds is None and asked is None:
            seconds = EXEC_DEFAULT
        if seconds is not None:
            ends.append(seconds or math.inf)  # 0: for ever
    elif asked is None and group_timeout is None:
        ends.append(TORCH_DEFAULT)
    limits = [_watch_before(end) for end in ends]
    return float(min(limits if asked is None else [*limits, asked]))


def derived(seconds: int) -> dict[str, str]:
    """Return the variables that make HCCL and DeepSpeed end a wait after `seconds` and the graces.

    HCCL_EVENT_TIMEOUT is not among them: torch_npu takes HCCL_EXEC_TIMEOUT + 30 s for it, which is right.
    """
    until_hccl = _hccl_end(seconds)
    return {
        EXEC: str(until_hccl),
        CONNECT: str(min(max(seconds + GRACE, CONNECT_LEAST), CONNECT_MOST)),
        DEEPSPEED: str(math.ceil((until_hccl + GRACE) / 60)),
    }


def torch_timeout(seconds: int) -> timedelta:
    """Return the timeout of torch's groups that belongs to a setting of `seconds`."""
    return timedelta(seconds=_hccl_end(seconds) + GRACE)


def apply_setting(environ: MutableMapping[str, str]) -> list[str]:
    """Set what HCCL_TIMEOUT asks for in `environ`, before HCCL and DeepSpeed read it.

    Variables that are set already stay as they are. Without HCCL_TIMEOUT nothing is done.

    Returns:
        A sentence for each variable of the user that ends a wait before HCCL_TIMEOUT does.

    Raises:
        CommError: HCCL_TIMEOUT is no time.
    """
    seconds = setting(environ)
    if seconds is None:
        return []
    for name, value in derived(seconds).items():
        environ.setdefault(name, value)
    return contradictions(environ)


def contradictions(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that ends a wait before HCCL_TIMEOUT does, with the mend.

    Raises:
        CommError: HCCL_TIMEOUT is no time.
    """
    seconds = setting(environ)
    if seconds is None:
        return []
    found = []
    for name in VARIABLES:
        ends = _seconds(environ, name)
        # Connecting may take 7200 s at most, whatever is asked for.
        wanted = min(seconds, CONNECT_MOST) if name == CONNECT else seconds
        if ends is not None and 0 < ends < wanted:
            what = "the making of a group" if name == CONNECT else "a wait"
            found.append(
                f"{SETTING}={seconds}, but {name}={environ[name]} ends {what} after {ends:g} s; "
                f"unset {name}, or give it more than {SETTING}"
            )
    if "AIV" in environ.get("HCCL_OP_EXPANSION_MODE", "") and seconds > EXEC_AIV - GRACE:
        found.append(
            f"{SETTING}={seconds}, but with HCCL_OP_EXPANSION_MODE=AIV HCCL ends a wait after {EXEC_AIV} s; "
            f"give {SETTING}={EXEC_AIV - GRACE} or less, or another mode"
        )
    return found


def say_contradictions(sentences: list[str], environ: Mapping[str, str]) -> None:
    """Print what `apply_setting` returned, once: on the first rank, not in launchers or spawned ranks."""
    first = environ.get("RANK", "0") == "0" and multiprocessing.parent_process() is None
    if first and not is_launcher():
        for sentence in sentences:
            print(f"npu-plugins: warning: {sentence}.", file=sys.stderr)


def hccl_end_before(timeout: timedelta) -> int:
    """Return the seconds of HCCL's own end for a group with `timeout`: after the watch, before torch."""
    seconds = timeout.total_seconds()
    return max(1, round((_watch_before(seconds) + seconds) / 2))


def told(environ: Mapping[str, str]) -> str:
    """Return the timeouts of `environ` in words that are equal on two ranks if the timeouts are."""
    names = (SETTING, *VARIABLES)
    return " ".join(f"{name}={environ[name]}" for name in names if environ.get(name)) or "no timeout variable"


def _watch_before(end: float) -> float:
    return max(end - GRACE, end / 2)


def _hccl_end(seconds: int) -> int:
    """Seconds after which HCCL ends a wait: a grace later, up to a multiple that all cards keep."""
    return math.ceil((seconds + GRACE) / EXEC_STEP) * EXEC_STEP


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    """A variable in seconds; None if it is not set, or no number, which whoever reads it refuses."""
    try:
        value = float(environ.get(name, ""))
    except ValueError:
        return None
    return value * 60 if name == DEEPSPEED else value
