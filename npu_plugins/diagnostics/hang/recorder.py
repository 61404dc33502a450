"""The last calls of this process, as the flight recorders of torch and torch_npu keep them.

Both rings are in C++, below torch.distributed: they see every collective, whoever makes it (DDP's reducer,
DeepSpeed, this package), and nothing has to be patched. torch's serves gloo, torch_npu's HCCL. Read with
torch 2.13 and torch_npu 2.13. What they lack is added here: torch_npu's knows no names of operators (the
stack tells them) and no descriptions of groups (torch's groups do), gloo's no point-to-point calls
(`stacks`).
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import Call, Frame, Group

SWITCH = "NPU_PLUGINS_RING"
TORCH_SIZE, HCCL_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_HCCL_TRACE_BUFFER_SIZE"
DEFAULT_SIZE = 1000
STACKED_CALLS = 50
"""The newest calls that a dump has with their stacks; older ones have none unless they are incomplete."""

C10D = "torch/distributed/distributed_c10d.py"
_HCCL_PREFIX = "group_name_"  # torch_npu puts it before torch's own name of a group
_P2P = {"isend": "send", "irecv": "recv"}
_UNDESCRIBED = ("undefined", "")


@dataclass(frozen=True)
class Pending:
    """A call of a ring that is not complete."""

    ring: str
    """`gloo` or `hccl`."""
    record: int
    """Its number in the ring."""
    group: str
    sequence: int
    p2p: bool
    timeout: timedelta
    """Of its group."""


def apply_ring_setting(environ: MutableMapping[str, str]) -> None:
    """Set how many calls the rings keep, before the first process group, when they read it.

    NPU_PLUGINS_RING is that number, `DEFAULT_SIZE` where it is not set, 0 for none; a ring's own variable
    that is set already stays as it is.

    Raises:
        DiagnosticsError: NPU_PLUGINS_RING is no whole number.
    """
    text = environ.get(SWITCH, str(DEFAULT_SIZE)).strip()
    if not (text.isascii() and text.isdigit()):
        raise DiagnosticsError(f"{SWITCH}={text} is no whole number; give the calls to keep, or 0 for none")
    for name in (TORCH_SIZE, HCCL_SIZE):
        environ.setdefault(name, text)


def groups() -> tuple[Group, ...]:
    """Return the process groups that this process is in, in the order in which they were made."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return ()
    found = []
    for group in _process_groups(dist):
        described = getattr(group, "group_desc", "")
        if described == "default_pg":
            described = "world"
        found.append(
            Group(
                name=str(group.group_name),
                description="" if described in _UNDESCRIBED else described,
                ranks=tuple(dist.get_process_group_ranks(group)),
            )
        )
    return tuple(found)


class Ring:
    """Both rings, read again and again; the last look is kept for when a device in error tells nothing."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.error = ""
        """What a device in error said when it was asked: CANN tells each error to one thread only."""
        self._last: dict[str, list[Mapping[str, Any]]] = {}

    def calls(self) -> tuple[Call, ...]:
        """Return what the rings hold, oldest first; empty if there is none, or nothing was called."""
        found = [_call(ring, entry) for ring, entry in self._entries(stacks=True)]
        found.sort(key=lambda call: call.created)
        first = len(found) - STACKED_CALLS
        return tuple(
            call if place >= first or call.state != "completed" else replace(call, stack=())
            for place, call in enumerate(found)
        )

    def pending(self) -> tuple[Pending, ...]:
        """Return the calls that are not complete, oldest first; cheap, for a look every few seconds.

        A call after which another one of its group was completed is left out: a group's calls end in their
        order, so it failed, and the program went on.
        """
        found: list[Pending] = []
        last: dict[tuple[str, str, bool], int] = {}
        for ring, entry in self._entries(stacks=False):
            group, p2p = _group_name(entry), entry["is_p2p"]
            record = entry["record_id"]
            if _complete(ring, entry):
                place = (ring, group, p2p)
                last[place] = max(last.get(place, -1), record)
            else:
                timeout = timedelta(milliseconds=entry["timeout_ms"])
                found.append(Pending(ring, record, group, _sequence(entry), p2p, timeout))
        return tuple(call for call in found if call.record > last.get((call.ring, call.group, call.p2p), -1))

    def sequences(self) -> dict[str, int]:
        """Return the number of the last collective of each group, by the group's name."""
        found: dict[str, int] = {}
        for _, entry in self._entries(stacks=False):
            if not entry["is_p2p"]:
                name = _group_name(entry)
                found[name] = max(found.get(name, 0), entry["collective_seq_id"])
        return found

    def _entries(self, *, stacks: bool) -> list[tuple[str, Mapping[str, Any]]]:
        """The rings' records with the names of the rings; the pickles are made by this process itself."""
        found: list[tuple[str, Mapping[str, Any]]] = []
        for ring, module, name in (
            ("gloo", "torch._C._distributed_c10d", "_dump_fr_trace"),
            ("hccl", "torch_npu._C._distributed_c10d", "_dump_hccl_trace"),
        ):
            dump = getattr(sys.modules.get(module), name, None)
            if dump is not None:
                try:
                    with _without_inductor():
                        pickled = dump(True, stacks, False)
                    self._last[ring] = list(pickle.loads(pickled).get("entries", ()))
                    entries = self._last[ring]
                except RuntimeError as error:  # events of a device in error cannot be asked
                    self.error = self.error or str(error)
                    entries = self._remembered(ring, pickle.loads(dump(False, False, False)))
                found += [(ring, entry) for entry in entries]
        return found

    def _remembered(self, ring: str, now: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The last look, and the newest call of each group that has begun more since, with no more told.

        Args:
            ring: whose events cannot be asked.
            now: its dump without the calls, which tells how many each group has begun.
        """
        last = self._last.get(ring, [])
        newest = {entry["pg_id"]: entry for entry in last if not entry["is_p2p"]}
        begun = {int(group): status for group, status in now.get("pg_status", {}).items()}
        nothing: dict[str, Any] = {"profiling_name": "", "frames": (), "state": "scheduled", "retired": False}
        nothing |= dict.fromkeys(("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"), ())
        return last + [
            {**entry, **nothing, "collective_seq_id": begun[group]["last_enqueued_collective"]}
            for group, entry in newest.items()
            if group in begun and begun[group]["last_enqueued_collective"] > entry["collective_seq_id"]
        ]


def _process_groups(dist: Any) -> list[Any]:
    while True:
        try:
            # torch 2.13 has no public list of the groups.
            return list(dist.distributed_c10d._world.pg_map)
        except RuntimeError:  # the program made a group meanwhile
            continue


@contextmanager
def _without_inductor() -> Iterator[None]:
    """Keep a dump with stacks from importing torch._inductor, which takes seconds and locks of importing.

    To write a stack down, torch 2.13 (torch/csrc/profiler/python/combined_traceback.cpp) asks whether `torch`
    has an attribute `_inductor`, to name the lines of compiled code; the question alone imports it. For the
    time of the dump another object answers; where it is imported already, nothing is done.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or "_inductor" in vars(torch) or "torch._inductor" in sys.modules:
        yield
        return
    torch._inductor = SimpleNamespace()
    try:
        yield
    finally:
        del torch._inductor


def _call(ring: str, entry: Mapping[str, Any]) -> Call:
    stack = tuple(Frame(frame["filename"], frame["line"], frame["name"]) for frame in entry.get("frames", ()))
    return Call(
        group=_group_name(entry),
        sequence=_sequence(entry),
        p2p=entry["is_p2p"],
        op=_operator(entry["profiling_name"], stack),
        input_shapes=tuple(tuple(shape) for shape in entry["input_sizes"]),
        input_dtypes=tuple(entry["input_dtypes"]),
        output_shapes=tuple(tuple(shape) for shape in entry["output_sizes"]),
        output_dtypes=tuple(entry["output_dtypes"]),
        state="completed" if _complete(ring, entry) else entry["state"],
        created=entry["time_created_ns"] / 1e9,
        stack=stack,
    )


def _group_name(entry: Mapping[str, Any]) -> str:
    return str(entry["process_group"][0]).removeprefix(_HCCL_PREFIX)


def _sequence(entry: Mapping[str, Any]) -> int:
    return int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"])


def _complete(ring: str, entry: Mapping[str, Any]) -> bool:
    """Whether a call is done: gloo's has no events, but is retired then; HCCL's that is only so timed out."""
    return entry["state"] == "completed" or (ring == "gloo" and entry["retired"])


def _operator(recorded: str, stack: tuple[Frame, ...]) -> str:
    """The name as recorded (`gloo:all_reduce`), else of the innermost function of torch.distributed."""
    if recorded:
        return recorded.rpartition(":")[2]
    for frame in stack:
        if frame.file.endswith(C10D):
            return _P2P.get(frame.function, frame.function)
    return ""
