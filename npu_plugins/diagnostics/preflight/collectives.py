"""One collective on each group of a mesh, with results that are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.topology import ALL_AXES, Topology
from npu_plugins.diagnostics.preflight.report import Finding, ranks_in_words

NUMBERS = 4096
"""Of each rank's share; sums of them are exact in float32 up to 4096 ranks."""
PERIOD = 997


def axes_to_check(topology: Topology) -> list[str]:
    """Return the axes with more than one rank, of those with the same groups the first only."""
    found: dict[tuple[tuple[int, ...], ...], str] = {}
    for axis in ALL_AXES:
        if topology.size(axis) > 1:
            found.setdefault(tuple(topology.groups(axis)), axis)
    return list(found.values())


def share(rank: int, device: torch.device) -> torch.Tensor:
    """Return what a rank gives to a collective: `NUMBERS` float32, known on every rank."""
    numbers = torch.arange(NUMBERS, dtype=torch.int64)
    return ((numbers * (2 * rank + 1) + rank) % PERIOD).to(torch.float32).to(device)


def check_groups(mesh: ProcessMesh, at: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run an all-gather and an all-reduce on this rank's group of each axis, and look at the results.

    Args:
        mesh: with the groups.
        at: called before each collective, with its name in words.

    Returns:
        What is wrong, as JSON: axis, op, rank whose share is wrong (None: not known), place in its share, the
        value and the right one.
    """
    found = []
    for axis in axes_to_check(mesh.topology):
        group = mesh.group(axis)
        if group is None:
            continue
        ranks = mesh.ranks(axis)
        expected = [share(rank, torch.device("cpu")) for rank in ranks]
        mine = share(mesh.global_rank, mesh.device)
        at(f"all_gather over {axis}")
        gathered = [torch.empty_like(mine) for _ in ranks]
        dist.all_gather(gathered, mine, group=group)
        for rank, got, right in zip(ranks, gathered, expected, strict=True):
            found += _first_wrong(axis, "all_gather", rank, got.cpu(), right)
        at(f"all_reduce over {axis}")
        summed = mine.clone()
        dist.all_reduce(summed, group=group)
        found += _first_wrong(axis, "all_reduce", None, summed.cpu(), torch.stack(expected).sum(0))
    at("")
    return found


def judge(
    wrong: Mapping[int, list[dict[str, Any]]], topology: Topology, hosts: Mapping[int, str]
) -> list[Finding]:
    """Return a finding for each group that gave a wrong result.

    Args:
        wrong: by rank, what `check_groups` returned there.
        topology: of the job.
        hosts: by rank.
    """
    seen: dict[tuple[str, tuple[int, ...]], list[tuple[int, dict[str, Any]]]] = {}
    for rank, faults in wrong.items():
        for fault in faults:
            seen.setdefault((fault["axis"], topology.ranks(fault["axis"], rank)), []).append((rank, fault))
    return list(_findings(seen, hosts))


def _findings(
    seen: Mapping[tuple[str, tuple[int, ...]], list[tuple[int, dict[str, Any]]]], hosts: Mapping[int, str]
) -> Iterator[Finding]:
    mend = "look at the health of the devices and links (npu-smi info -t health), and take the host out"
    for (axis, ranks), faults in seen.items():
        sources = {fault["source"] for _, fault in faults if fault["source"] is not None}
        receivers = {rank for rank, _ in faults}
        # All that is wrong is in one rank's share, or arrives at one rank only.
        at_fault = sources if len(sources) == 1 and len(receivers) > 1 else receivers
        rank, fault = faults[0]
        what = (
            f"{fault['op']} over {axis} (ranks {', '.join(map(str, ranks))}) gave {fault['value']:g} in "
            f"place of {fault['right']:g} at element {fault['place']}"
            + (f" of the share of rank {fault['source']}" if fault["source"] is not None else "")
            + f", seen on {ranks_in_words(receivers, hosts)}"
        )
        yield Finding("wrong", "error", tuple(sorted(at_fault)), what, mend)


def _first_wrong(
    axis: str, op: str, source: int | None, got: torch.Tensor, right: torch.Tensor
) -> list[dict[str, Any]]:
    unequal = got != right
    if not bool(unequal.any()):
        return []
    place = int(unequal.int().argmax())
    values = {"value": float(got[place]), "right": float(right[place])}
    return [{"axis": axis, "op": op, "source": source, "place": place, **values}]
