"""The section ``pipeline`` as npu_plugins' engine reads it (npu_plugins/pipeline/config.py).

DeepSpeed's own engine reads other keys of it and ignores these. tests/pipeline/test_config.py compares what
is refused here with what the engine refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

STAGES_OF_A_RANK: Mapping[str, int | None] = {
    "gpipe": 1,
    "1f1b": 1,
    "interleaved": None,
    "zb-h1": 1,
    "zb-v": 2,
    "dualpipe-v": 2,
}
"""By schedule; None: as many as are asked for, 2 or more."""

OWN = ("schedule", "virtual_stages", "recomputation", "dynamic_shape", "trace_steps", "trace_file")
"""Keys that no DeepSpeed knows: a section with one of them is for npu_plugins."""

SHARED = ("stages", "partition", "seed_layers")
"""Keys that DeepSpeed parses and never reads, and npu_plugins reads."""

DEEPSPEED = ("activation_checkpoint_interval", "use_reentrant", "pipe_partitioned", "grad_partitioned")
"""DeepSpeed's keys that npu_plugins takes, with values that it can follow."""

KEYS = (*SHARED, *OWN)
AUTO = "auto"
STEP = "{step}"


class Fault(NamedTuple):
    """Why npu_plugins refuses a key, and what to write instead."""

    reason: str
    mend: str


def is_own(section: Mapping[str, Any]) -> bool:
    """Whether a section is for npu_plugins: it has a key of its, or one that is spelt almost like one."""
    return any(key in OWN or meant(key) in OWN for key in section if key not in (*SHARED, *DEEPSPEED))


def meant(key: str) -> str:
    """Return the key that an unknown one was meant to be; "" if nothing is like it."""
    return next(iter(get_close_matches(key, KEYS, 1, 0.75)), "")


def faults(section: Mapping[str, Any]) -> dict[str, Fault]:
    """Return what npu_plugins refuses in a section, by key."""
    values = {key: value for key, value in section.items() if value != AUTO}
    found = {}
    for key, value in values.items():
        if key in CHECKS:
            fault = CHECKS[key](value)
        else:
            near = meant(key)
            mend = f"write {near}" if near else f"delete it: its keys are {', '.join(KEYS)}"
            fault = Fault(f"npu_plugins' pipeline refuses the key {key}, which it does not know", mend)
        if fault is not None:
            found[key] = fault
    return found | _beside(values, found)


def _beside(values: Mapping[str, Any], found: Mapping[str, Fault]) -> dict[str, Fault]:
    """What two keys say together."""
    schedule, asked = values.get("schedule", "1f1b"), values.get("virtual_stages")
    faults = {}
    if asked is not None and not {"schedule", "virtual_stages"} & found.keys():
        fixed = STAGES_OF_A_RANK[schedule]
        if fixed not in (None, asked) or (fixed is None and asked == 1):
            has = "2 or more stages" if fixed is None else f"{fixed} stage{'s' * (fixed == 2)}"
            faults["virtual_stages"] = Fault(
                f"schedule {schedule} has {has} on each rank, not {asked}", "delete it, or take interleaved"
            )
    steps, file = values.get("trace_steps"), values.get("trace_file", STEP)
    several = isinstance(steps, list) and len({each for each in steps if type(each) is int}) > 1
    if several and not {"trace_steps", "trace_file"} & found.keys() and STEP not in file:
        faults["trace_file"] = Fault(
            f"the traces of steps {steps} would replace each other in {file}", f"put {STEP} in it"
        )
    interval, again = values.get("activation_checkpoint_interval"), values.get("recomputation")
    named = {"none": 0, "full": 1}.get(again, again) if isinstance(again, str) else again
    if None not in (interval, again) and interval != named:
        faults["activation_checkpoint_interval"] = Fault(
            f"activation_checkpoint_interval {interval} and recomputation {again!r} are one setting",
            "delete activation_checkpoint_interval",
        )
    return faults


def _count(least: int, optional: bool = False) -> Callable[[Any], Fault | None]:
    def check(value: Any) -> Fault | None:
        if (value is None and optional) or (type(value) is int and value >= least):
            return None
        return Fault(f"npu_plugins' pipeline takes a whole number from {least}, not {value!r}", "write one")

    return check


def _flag(value: Any) -> Fault | None:
    if isinstance(value, bool):
        return None
    return Fault(f"npu_plugins' pipeline takes true or false, not {value!r}", "write one of them")


def _schedule(value: Any) -> Fault | None:
    if isinstance(value, str) and value in STAGES_OF_A_RANK:
        return None
    return Fault(f"there is no schedule {value!r}", f"write one of {', '.join(STAGES_OF_A_RANK)}")


def _partition(value: Any) -> Fault | None:
    if isinstance(value, list):
        fitting = all(type(each) is int and each > 0 for each in value)
    else:
        named = ("uniform", "parameters", "time")
        fitting = isinstance(value, str) and (value in named or value.startswith("type:"))
    mend = "write uniform, parameters, type:REGEX, time, or a list with the layers of each stage"
    return None if fitting else Fault(f"npu_plugins' pipeline cannot cut by {value!r}", mend)


def _recomputation(value: Any) -> Fault | None:
    if value in ("none", "full") or (type(value) is int and value >= 0):
        return None
    return Fault(f"npu_plugins' pipeline cannot recompute {value!r}", "write none, full, or how many layers")


def _steps(value: Any) -> Fault | None:
    steps = value if isinstance(value, list) else [value]
    if all(type(each) is int and each > 0 for each in steps):
        return None
    return Fault(f"trace_steps is {value!r}", "write steps, counted from 1")


def _file(value: Any) -> Fault | None:
    rest = value.replace(STEP, "") if isinstance(value, str) else ""
    if rest.strip("/. ") and not {"{", "}"} & set(rest):
        return None
    return Fault(f"trace_file is {value!r}", f"write the path of a file, in which {STEP} alone is replaced")


def _never(value: Any) -> Fault | None:
    return None if value is False else Fault("npu_plugins' pipeline does not do this", "delete it")


CHECKS: Mapping[str, Callable[[Any], Fault | None]] = {
    "stages": _count(1, optional=True),
    "schedule": _schedule,
    "virtual_stages": _count(1, optional=True),
    "partition": _partition,
    "recomputation": _recomputation,
    "seed_layers": _flag,
    "dynamic_shape": _flag,
    "trace_steps": _steps,
    "trace_file": _file,
    "activation_checkpoint_interval": _count(0),
    "use_reentrant": _never,
    "pipe_partitioned": _never,
    "grad_partitioned": _never,
}
