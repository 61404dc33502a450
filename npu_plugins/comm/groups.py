"""Making process groups, one for every set of ranks, in the same order on every rank."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from npu_plugins.comm.errors import CommError
from npu_plugins.comm.timeouts import EXEC, hccl_end_before, told
from npu_plugins.comm.topology import ALL_AXES, Topology

EXPANSION_MODES = {"host": 1, "ai_cpu": 2, "aiv": 3}
"""Where HCCL's algorithms are unrolled, by torch_npu's numbers: on the host, AI CPU or vector cores."""


@dataclass(frozen=True)
class GroupOptions:
    """How groups are made; what is None is left to HCCL or torch.

    All but the timeout are HCCL's and want backend ``hccl``. Source: torch_npu's documentation of the
    hccl_config of a group, and CANN's of HCCL_RDMA_TC and HCCL_RDMA_SL, which the group's own values replace.
    """

    timeout: timedelta | None = None
    """Longest wait of a collective; None: the default group's."""
    hccl_buffer_mib: int | None = None
    """HCCL's buffer in MiB; None: HCCL_BUFFSIZE, else 200."""
    qos_traffic_class: int | None = None
    """Traffic class of the RDMA card, 4 × the DSCP of its packets: 0 to 252; None: HCCL_RDMA_TC, else 132."""
    qos_service_level: int | None = None
    """Service level of the RDMA card, the priority for which the switches are set: 0 to 7; None:
    HCCL_RDMA_SL, else 4."""
    op_expansion_mode: str | None = None
    """One of `EXPANSION_MODES`; None: HCCL_OP_EXPANSION_MODE."""

    def __post_init__(self) -> None:
        """Refuse what HCCL would refuse, or take for something else.

        Raises:
            CommError: names the option, its value and what it may be.
        """
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise CommError(f"timeout is {self.timeout}; give a time above 0")
        _check_whole("hccl_buffer_mib", self.hccl_buffer_mib, 1, 2**20, "of MiB ")
        _check_whole("qos_traffic_class", self.qos_traffic_class, 0, 252)
        if self.qos_traffic_class is not None and self.qos_traffic_class % 4:
            raise CommError(
                f"qos_traffic_class is {self.qos_traffic_class}; give a multiple of 4, as it is 4 × the DSCP"
            )
        _check_whole("qos_service_level", self.qos_service_level, 0, 7)
        if self.op_expansion_mode is not None and self.op_expansion_mode not in EXPANSION_MODES:
            raise CommError(
                f"op_expansion_mode is {self.op_expansion_mode!r}; give one of {', '.join(EXPANSION_MODES)}"
            )

    @classmethod
    def by_axis(cls, backend: str, **options: Any) -> dict[str, GroupOptions]:
        """Spread options over the axes: each is one value for all axes, or a mapping from axis to value.

        Args:
            backend: of the groups.
            options: fields of this class.

        Raises:
            CommError: an unknown axis, a value that is refused, an option of HCCL's without HCCL.
        """
        spread = {name: _spread(value, name) for name, value in options.items()}
        for name, values in spread.items():
            if values and name != "timeout" and "hccl" not in backend:
                raise CommError(f"{name} is for backend hccl, but the groups use {backend}; leave it out")
        found = {}
        for axis in ALL_AXES:
            try:
                found[axis] = cls(**{name: values.get(axis) for name, values in spread.items()})
            except CommError as error:
                raise CommError(f"Of axis {axis}, {error}") from error
        return found

    def hccl_config(self, description: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return torch_npu's hccl_config for a group; empty if HCCL is to do as it does without one."""
        config = {
            "hccl_buffer_size": self.hccl_buffer_mib,
            "qos_traffic_class": self.qos_traffic_class,
            "qos_service_level": self.qos_service_level,
            "hccl_op_expansion_mode": EXPANSION_MODES.get(self.op_expansion_mode or ""),
            "group_name": description[:31] or None,  # HCCL keeps 31 letters, for its log
        }
        if self.timeout is not None and not environ.get(EXEC):
            config["hccl_exec_timeout"] = hccl_end_before(self.timeout)
        return {name: value for name, value in config.items() if value is not None}


def check_ranks_agree(wanted: str) -> None:
    """Refuse ranks that ask for different groups, which would wait for each other for ever.

    Args:
        wanted: what this rank asks for, in words that are equal if the groups are.

    Raises:
        CommError: on every rank, in one sentence with the ranks that ask for something else than most.
    """
    found = _odd_ones("mesh", wanted)
    if found is not None:
        ranks, theirs, most = found
        raise CommError(
            f"{ranks} for a mesh of {theirs}, but most ranks for {most}; "
            "give every rank the same ParallelConfig and options"
        )


def check_timeouts_agree(environ: Mapping[str, str]) -> None:
    """Refuse ranks whose timeouts differ: one would give up on the others while they still wait for it.

    Args:
        environ: of this rank.

    Raises:
        CommError: on every rank, in one sentence with the ranks that differ from most.
    """
    found = _odd_ones("timeouts", told(environ))
    if found is not None:
        ranks, theirs, most = found
        raise CommError(
            f"{ranks} for {theirs}, but most ranks for {most}; export the same HCCL_TIMEOUT on every node, "
            "and no other timeout beside it"
        )


def _odd_ones(what: str, mine: str) -> tuple[str, str, str] | None:
    """Compare a text over all ranks: "Rank 1 asks", its text, and that of most ranks; None if all agree.

    Rank 0 looks at all of them and tells the others, through the store that the job came together with: no
    collective can be trusted before.
    """
    # torch 2.13 has no public way to reach the default group's store.
    store = dist.PrefixStore(f"npu_plugins.comm.{what}", dist.distributed_c10d._get_default_store())
    rank = dist.get_rank()
    turn = store.add(f"turns of rank {rank}", 1)  # counts this rank's calls, so that keys are new each time
    if rank:
        store.set(f"{turn} of rank {rank}", mine)
    else:
        others = range(1, dist.get_world_size())
        texts = {0: mine} | {other: store.get(f"{turn} of rank {other}").decode() for other in others}
        most, _ = Counter(texts.values()).most_common(1)[0]  # of equally many, that of the lowest rank
        odd = next((text for text in texts.values() if text != most), None)
        ranks = [str(rank) for rank, text in texts.items() if text == odd]
        name = "" if odd is None else f"Rank {ranks[0]} asks" if len(ranks) == 1 else _several(ranks)
        store.set(f"{turn} for all", "\n".join((name, odd or "", most)))
    name, odd_text, most_text = store.get(f"{turn} for all").decode().split("\n")
    return (name, odd_text, most_text) if name else None


def _several(ranks: list[str]) -> str:
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"Ranks {', '.join(ranks[:8])}{more} ask"


def make_groups(
    topology: Topology,
    rank: int,
    backend: str,
    options: Mapping[str, GroupOptions],
    timeout: timedelta | None = None,
) -> dict[str, dist.ProcessGroup]:
    """Make the groups of every axis and return those of `rank`, by axis.

    Every rank of the world calls this and makes every group, its own or not, in one order: torch numbers
    groups by that order. Axes whose groups have the same ranks and options share them, by the name of the
    first: each group of HCCL takes a buffer.
    """
    made: dict[tuple[tuple[int, ...], GroupOptions], Any] = {}
    own = {}
    for axis in ALL_AXES:
        for ranks in topology.groups(axis):
            key = (ranks, options[axis])
            if key not in made:
                made[key] = new_group(ranks, backend, options[axis], axis, timeout)
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


def new_group(
    ranks: tuple[int, ...],
    backend: str | None,
    options: GroupOptions,
    description: str = "",
    timeout: timedelta | None = None,
) -> Any:
    """Make one group; every rank of the world must call this, in one order.

    Args:
        ranks: global ranks.
        backend: None: the default group's.
        options: how it is made.
        description: what it is for, such as an axis; torch keeps it as group_desc, HCCL's log names it.
        timeout: where the options have none; None: torch's default.
    """
    kwargs: dict[str, Any] = {}
    if "hccl" in (backend or dist.get_backend_config()):
        from torch_npu._C._distributed_c10d import ProcessGroupHCCL  # the only place that knows these options

        kwargs["pg_options"] = ProcessGroupHCCL.Options()
        kwargs["pg_options"].hccl_config = options.hccl_config(description)
    if "group_desc" in inspect.signature(dist.new_group).parameters:  # since torch 2.3
        kwargs["group_desc"] = description or None
    return dist.new_group(list(ranks), timeout=options.timeout or timeout, backend=backend, **kwargs)


def _check_whole(name: str, value: Any, least: int, most: int, unit: str = "") -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and least <= value <= most):
        raise CommError(f"{name} is {value!r}; give a whole number {unit}from {least} to {most}")


def _spread(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return dict.fromkeys(ALL_AXES, value)
    unknown = [axis for axis in value if axis not in ALL_AXES]
    if unknown:
        raise CommError(f"{name} is given for axis {unknown[0]!r}; a mesh's axes are {', '.join(ALL_AXES)}")
    return dict(value)
