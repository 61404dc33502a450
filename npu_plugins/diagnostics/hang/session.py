"""One default process group, from its making to its end, as the watch sees it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from npu_plugins.autoload import platform
from npu_plugins.diagnostics.hang.board import Alarm, Board
from npu_plugins.diagnostics.hang.failure import Rank, accelerator, device_index

if TYPE_CHECKING:
    from npu_plugins.diagnostics.hang.roll import Roll


@dataclass(frozen=True)
class DefaultGroup:
    """torch's default process group. The store is not kept: on rank 0 that would keep its server alive."""

    key: tuple[int, int]
    """Tells it from an earlier one."""
    rank: int
    world_size: int
    backend: str
    timeout: timedelta | None
    store: Any


@dataclass
class Session:
    """What the watch needs while there is a default process group."""

    key: tuple[int, int]
    who: Rank
    board: Board
    roll: Roll
    next_alarm: int = 1
    store_is_lost: bool = False

    def alarm(self, reason: str, sentence: str) -> Alarm:
        """Return an alarm of this rank."""
        return Alarm(self.next_alarm, reason, self.who.rank, sentence)

    def standing_alarm(self) -> Alarm | None:
        """Return the alarm that a rank has sounded and this one has not answered."""
        return self.board.alarm(self.next_alarm)

    def sound(self, alarm: Alarm) -> Alarm:
        """Tell all ranks of an alarm, with the number that is next; returns the one that stands."""
        return self.board.sound(Alarm(self.next_alarm, alarm.reason, alarm.rank, alarm.sentence))

    def store_lost(self) -> None:
        """Remember that the store does not answer; files and processes of this host still tell."""
        if not self.store_is_lost:
            self.store_is_lost = True
            self.roll.store_lost_at = time.monotonic()


def default_group() -> DefaultGroup | None:
    """Return torch's default process group, if there is one that this process is in."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not hasattr(dist, "distributed_c10d") or not dist.is_initialized():
        return None
    world = dist.distributed_c10d._world  # torch 2.13 has no public way to the store of the default group
    group = world.default_pg
    if group is None or group not in world.pg_map:
        return None
    store = world.pg_map[group][1]
    if store is None:
        return None
    return DefaultGroup(
        key=(id(group), id(store)),
        rank=group.rank(),
        world_size=group.size(),
        backend=dist.get_backend_config(group),
        timeout=_timeout(group),
        store=store,
    )


def describe_rank(group: DefaultGroup) -> Rank:
    """Return who this process is in `group`."""
    module = accelerator()
    index = None if module is None else device_index(module)
    device = "cpu" if module is None else module.__name__.rpartition(".")[2]
    if index is not None:
        device = f"{device}:{index}"
    if device.startswith("npu") and platform() == "simulated_npu":
        device = f"{device} (simulated)"
    return Rank(group.rank, group.world_size, group.backend, device)


def _timeout(group: Any) -> timedelta | None:
    """The shortest timeout of a group's backends, by its kinds of device."""
    found = []
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if timeout is not None:
            found.append(timeout)
    return min(found, default=None)
