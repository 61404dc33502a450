"""A preflight on ranks of a world, with a fault on one of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh
from npu_plugins.diagnostics.preflight import (
    Fact,
    Preflight,
    PreflightError,
    Report,
    Settings,
    facts_of,
    links,
    run,
)
from npu_plugins.diagnostics.preflight.place import Place


@dataclass(frozen=True)
class Case:
    """What the ranks do, and what one of them does otherwise."""

    config: ParallelConfig
    limit: float = 60.0
    size: int = 1 << 18
    facts: tuple[Fact, ...] = ()
    at_fault: int = -1
    otherwise: Callable[[Preflight, list[Fact]], None] | None = None
    """Called on the rank at fault before anything else, with its preflight and its facts."""
    hosts: int = 1
    """How many hosts the ranks believe that they are on."""
    measure: bool = True
    clocks: Sequence[float] = ()
    """By rank, seconds that its clock is ahead."""
    settings: dict[str, Any] = field(default_factory=dict)
    latency_repeats: int = links.LATENCY_REPEATS


def fly(case: Case) -> tuple[Report, bool, float]:
    """On a rank: return the report, whether it was told here, and how many seconds it took."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "LATENCY_REPEATS", case.latency_repeats)
        return _fly(case)


def _fly(case: Case) -> tuple[Report, bool, float]:
    rank = dist.get_rank()
    told: list[Report] = []
    began = time.monotonic()
    store = dist.distributed_c10d._get_default_store().clone()
    place = Place.here(rank)
    if case.hosts > 1:
        number = rank * case.hosts // case.config.world_size
        place = replace(place, host=f"host{number}", machine=f"machine{number}")
    ahead = case.clocks[rank] if case.clocks else 0.0
    flight = Preflight(
        store,
        rank,
        case.config,
        Settings(limit=case.limit, size=case.size, **case.settings),
        tell=told.append,
        place=place,
        clock=lambda: time.time() + ahead,
    )
    facts = list(case.facts)
    try:
        if rank == case.at_fault and case.otherwise is not None:
            case.otherwise(flight, facts)
        flight.meet()
        flight.compare("settings", facts)
        mesh = flight.communicate(lambda: ProcessMesh.create(case.config), case.measure)
        flight.compare_clocks()
        mesh.destroy()
        report = flight.finish()
    except PreflightError as error:
        report = error.report
    return report, bool(told), time.monotonic() - began


def with_little_grace(case: Case) -> tuple[Report, Report]:
    """On a rank: the case's report, and that of a preflight in which rank 1 takes longer than the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "GRACE", 0.5)
        rank = dist.get_rank()
        store = dist.distributed_c10d._get_default_store().clone()
        flight = Preflight(store, rank, case.config, Settings(limit=30.0))
        flight.meet()
        flight.do("devices", lambda: time.sleep(2.0 if rank == 1 else 0.0))
        ready = flight.finish()
        return fly(case)[0], ready


def configuration(**changes: Any) -> list[Fact]:
    """Return a configuration's facts."""
    config = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": True}, **changes}
    return facts_of("ds_config", config, "start all ranks with the same file")


def kill_in_the_collectives(flight: Preflight, facts: list[Fact]) -> None:
    """Let this rank be killed where the groups communicate for the first time."""
    instead_of(flight, "collectives", lambda: os.kill(os.getpid(), signal.SIGKILL))


def sleep_in_the_collectives(flight: Preflight, facts: list[Fact]) -> None:
    """Let this rank not enter where the groups communicate for the first time."""
    instead_of(flight, "collectives", lambda: time.sleep(600))


def raise_in_the_collectives(flight: Preflight, facts: list[Fact]) -> None:
    """Let this rank fail where the groups communicate for the first time."""

    def fail() -> None:
        raise torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2.00 GiB")

    instead_of(flight, "collectives", fail)


def instead_of(flight: Preflight, phase: str, other: Callable[[], Any]) -> None:
    """Do something else in the work of a phase."""
    usual = flight._work

    def work(name: str, job: Callable[[], Any], *rest: Any, **options: Any) -> Any:
        return usual(name, other if name == phase else job, *rest, **options)

    flight._work = work  # type: ignore[method-assign]
