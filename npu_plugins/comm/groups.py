"""Making process groups, one for every set of ranks, in the same order on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from npu_plugins.comm.errors import CommError
from npu_plugins.comm.topology import ALL_AXES, Topology


@dataclass(frozen=True)
class GroupOptions:
    """How one axis's groups are made."""

    timeout: timedelta | None = None
    """Longest wait of a collective; None: torch's default for the backend."""
    hccl_buffer_mib: int | None = None
    """HCCL's buffer in MiB; None: HCCL's own."""

    @classmethod
    def by_axis(
        cls,
        timeout: timedelta | Mapping[str, timedelta] | None,
        hccl_buffer_mib: int | Mapping[str, int] | None,
        backend: str,
    ) -> dict[str, GroupOptions]:
        """Spread options over the axes: each is one value for all axes, or a mapping from axis to value.

        Raises:
            CommError: an unknown axis, a time or size that is not positive, a buffer without HCCL.
        """
        times = _spread(timeout, "timeout")
        sizes = _spread(hccl_buffer_mib, "hccl_buffer_mib")
        for axis, time in times.items():
            if time <= timedelta(0):
                raise CommError(f"The timeout of axis {axis} is {time}; give a time above 0")
        for axis, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise CommError(
                    f"hccl_buffer_mib of axis {axis} is {size!r}; give a whole number of MiB above 0"
                )
        if sizes and "hccl" not in backend:
            raise CommError(
                f"hccl_buffer_mib is for backend hccl, but the groups use {backend}; leave it out"
            )
        return {axis: cls(times.get(axis), sizes.get(axis)) for axis in ALL_AXES}


def check_ranks_agree(wanted: str) -> None:
    """Refuse ranks that ask for different groups, which would wait for each other for ever.

    Rank 0 looks at all ranks, the others at rank 0, through the store that the job came together with: no
    collective can be trusted before.

    Args:
        wanted: what this rank asks for, in words that are equal if the groups are.

    Raises:
        CommError: on rank 0 and on ranks that differ from it.
    """
    # torch 2.13 has no public way to reach the default group's store.
    store = dist.PrefixStore("npu_plugins.comm.mesh", dist.distributed_c10d._get_default_store())
    rank = dist.get_rank()
    turn = store.add(f"meshes of rank {rank}", 1)  # counts this rank's meshes, so that keys are new each time
    store.set(f"mesh {turn} of rank {rank}", wanted)
    for other in range(1, dist.get_world_size()) if rank == 0 else (0,):
        theirs = store.get(f"mesh {turn} of rank {other}").decode()
        if theirs != wanted:
            raise CommError(
                f"Rank {rank} asks for a mesh of {wanted}, but rank {other} for {theirs}; "
                "give every rank the same ParallelConfig and options"
            )


def make_groups(
    topology: Topology, rank: int, backend: str, options: Mapping[str, GroupOptions]
) -> dict[str, dist.ProcessGroup]:
    """Make the groups of every axis and return those of `rank`, by axis.

    Every rank of the world calls this and makes every group, its own or not, in one order: torch numbers
    groups by that order. Axes whose groups have the same ranks and options share them: each group of HCCL
    takes a buffer.
    """
    made: dict[tuple[tuple[int, ...], GroupOptions], Any] = {}
    own = {}
    for axis in ALL_AXES:
        for ranks in topology.groups(axis):
            key = (ranks, options[axis])
            if key not in made:
                made[key] = _new_group(ranks, backend, options[axis])
            if rank in ranks:
                own[axis] = made[key]
    return own


def wait_until_made() -> None:
    """Wait until every rank of the world has made its groups.

    gloo connects a group's ranks while it is made. A rank that was done, and left or destroyed its group,
    would break the connections of those still at it. The store serves, since it needs no group.
    """
    store = dist.PrefixStore("npu_plugins.comm.made", dist.distributed_c10d._get_default_store())
    rank = dist.get_rank()
    turn = store.add(f"meshes of rank {rank}", 1)
    store.set(f"{turn} by rank {rank}", "made")
    if rank == 0:
        for other in range(1, dist.get_world_size()):
            store.get(f"{turn} by rank {other}")
        store.set(f"{turn} by all", "made")
    store.get(f"{turn} by all")


def _new_group(ranks: tuple[int, ...], backend: str, options: GroupOptions) -> Any:
    pg_options = None
    if options.hccl_buffer_mib is not None:
        from torch_npu._C._distributed_c10d import ProcessGroupHCCL  # the only place that knows these options

        pg_options = ProcessGroupHCCL.Options()
        pg_options.hccl_config = {"hccl_buffer_size": options.hccl_buffer_mib}
    return dist.new_group(list(ranks), timeout=options.timeout, backend=backend, pg_options=pg_options)


def _spread(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return dict.fromkeys(ALL_AXES, value)
    unknown = [axis for axis in value if axis not in ALL_AXES]
    if unknown:
        raise CommError(f"{name} is given for axis {unknown[0]!r}; a mesh's axes are {', '.join(ALL_AXES)}")
    return dict(value)
