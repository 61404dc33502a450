"""Which rank stands where: coordinates on the mesh axes, worked out without any process group."""

from __future__ import annotations

from typing import NamedTuple

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm.errors import CommError

AXES = ("tp", "dp", "pp")
"""The independent axes, fastest first. Rank = tp + tp_size · (dp + dp_size · pp)."""

DERIVED_AXES = ("ep", "edp", "model")
"""Axes made of the independent ones: ``ep`` and ``edp`` divide ``dp`` (ranks that hold different experts, and
ranks that hold the same ones), ``model`` is ``tp`` × ``pp``, all ranks of one copy of the model."""

ALL_AXES = AXES + DERIVED_AXES


class Coordinate(NamedTuple):
    """A rank's place on the three independent axes."""

    tp: int
    dp: int
    pp: int


class Topology:
    """Rank ↔ coordinate for the degrees of a `ParallelConfig`, ``tp`` fastest, then ``dp``, then ``pp``.

    It is the order of Megatron-LM (arXiv 2104.04473 §2.4: tensor parallelism inside a machine) and of
    DeepSpeed's ``PipeModelDataParallelTopology``. Expert ranks are consecutive data-parallel ranks, as in
    DeepSpeed-MoE (arXiv 2201.05596 §4). Pure arithmetic: any rank's place can be asked for on any machine.
    """

    def __init__(self, config: ParallelConfig) -> None:
        self.config = config

    def size(self, axis: str) -> int:
        """Return the number of ranks along `axis`, one of `ALL_AXES`.

        Raises:
            CommError: there is no such axis.
        """
        c = self.config
        sizes = {
            "tp": c.tp,
            "dp": c.dp,
            "pp": c.pp,
            "ep": c.ep,
            "edp": c.dp // c.ep,
            "model": c.tp * c.pp,
        }
        if axis not in sizes:
            raise CommError(f"The mesh has no axis {axis!r}; its axes are {', '.join(ALL_AXES)}")
        return sizes[axis]

    def coordinate(self, rank: int) -> Coordinate:
        """Return where global rank `rank` stands.

        Raises:
            CommError: the world has no such rank.
        """
        c = self.config
        if not 0 <= rank < c.world_size:
            raise CommError(
                f"Rank {rank} is not on a mesh of tp {c.tp} × dp {c.dp} × pp {c.pp}; its ranks are 0 to "
                f"{c.world_size - 1}"
            )
        return Coordinate(tp=rank % c.tp, dp=rank // c.tp % c.dp, pp=rank // (c.tp * c.dp))

    def rank_at(self, *, tp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """Return the global rank at a coordinate.

        Raises:
            CommError: an axis is not that long.
        """
        for axis, place in (("tp", tp), ("dp", dp), ("pp", pp)):
            if not 0 <= place < self.size(axis):
                raise CommError(
                    f"{axis}={place} is outside the mesh: its {axis} axis has places 0 to "
                    f"{self.size(axis) - 1}"
                )
        return tp + self.config.tp * (dp + self.config.dp * pp)

    def place(self, axis: str, rank: int) -> int:
        """Return the place of global rank `rank` along `axis`, that is its rank in the axis's group."""
        return self.ranks(axis, rank).index(rank)

    def ranks(self, axis: str, rank: int) -> tuple[int, ...]:
        """Return the global ranks of the group along `axis` that holds global rank `rank`, in order."""
        tp, dp, pp = self.coordinate(rank)
        ep = self.config.ep
        self.size(axis)  # refuses an unknown axis
        along = {
            "tp": range(self.config.tp) if axis in ("tp", "model") else (tp,),
            "pp": range(self.config.pp) if axis in ("pp", "model") else (pp,),
            "dp": (dp,),
        }
        if axis == "dp":
            along["dp"] = range(self.config.dp)
        elif axis == "ep":
            along["dp"] = range(dp // ep * ep, dp // ep * ep + ep)
        elif axis == "edp":
            along["dp"] = range(dp % ep, self.config.dp, ep)
        return tuple(
            self.rank_at(tp=t, dp=d, pp=p) for p in along["pp"] for d in along["dp"] for t in along["tp"]
        )

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """Return all groups along `axis` in the order of their first ranks; together they hold every rank."""
        found: list[tuple[int, ...]] = []
        seen: set[int] = set()
        for rank in range(self.config.world_size):
            if rank not in seen:
                found.append(self.ranks(axis, rank))
                seen.update(found[-1])
        return found
