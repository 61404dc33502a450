"""The process groups of a job, one for each axis of its mesh, made once and passed on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm.devices import (
    backend_of,
    check_group_device,
    device_for,
    inherited_timeout,
    make_current,
)
from npu_plugins.comm.errors import CommError
from npu_plugins.comm.groups import (
    GroupOptions,
    check_ranks_agree,
    check_timeouts_agree,
    make_groups,
    wait_until_made,
)
from npu_plugins.comm.mpu import MegatronGetters
from npu_plugins.comm.topology import ALL_AXES, Coordinate, Topology


class ProcessMesh(MegatronGetters):
    """A job's ranks on the axes ``tp``, ``dp``, ``pp`` (and ``ep``, ``edp``, ``model``), with their groups.

    Everything that communicates is given a mesh or one of its groups; nothing is looked up. The mesh also
    answers Megatron's ``mpu`` getters, so ``deepspeed.initialize(..., mpu=mesh)`` takes it.
    """

    def __init__(
        self,
        topology: Topology,
        rank: int,
        groups: Mapping[str, dist.ProcessGroup],
        device: torch.device,
        backend: str,
    ) -> None:
        """Take groups that exist already; `create` makes them."""
        self.topology = topology
        self.global_rank = rank
        self.device = device
        self.backend = backend
        self._groups = dict(groups)

    @classmethod
    def create(
        cls,
        config: ParallelConfig,
        *,
        backend: str | None = None,
        device: torch.device | str | None = None,
        timeout: timedelta | Mapping[str, timedelta] | None = None,
        hccl_buffer_mib: int | Mapping[str, int] | None = None,
        qos_traffic_class: int | Mapping[str, int] | None = None,
        qos_service_level: int | Mapping[str, int] | None = None,
        op_expansion_mode: str | Mapping[str, str] | None = None,
    ) -> ProcessMesh:
        """Make the groups of `config`; every rank of the default process group must call this.

        Args:
            config: the degrees; they must multiply out to the world size.
            backend: of the groups; by default the default process group's.
            device: where this rank's tensors lie; by default the backend's: the CPU, or the NPU that was
                chosen with `torch.npu.set_device`, else that of LOCAL_RANK. It becomes the current device.
            timeout: of the groups' collectives, for all axes or by axis; by default the default process
                group's. HCCL ends a wait shortly before, unless HCCL_EXEC_TIMEOUT is set.
            hccl_buffer_mib: HCCL's buffer for each group, in MiB, for all axes or by axis; by default HCCL's
                own (HCCL_BUFFSIZE, else 200).
            qos_traffic_class: of the RDMA card, for all axes or by axis; see `GroupOptions`, as for the next.
            qos_service_level: of the RDMA card, for all axes or by axis.
            op_expansion_mode: ``host``, ``ai_cpu`` or ``aiv``, for all axes or by axis.

        Raises:
            CommError: there is no default process group; the degrees do not multiply out to its size; the
                backend cannot reach the device; an option is for an axis or backend that does not know it;
                other ranks ask for another mesh, or have other timeouts.
        """
        if not dist.is_initialized():
            raise CommError(
                "A mesh needs torch.distributed's default process group; call deepspeed.init_distributed() "
                "or torch.distributed.init_process_group() first"
            )
        world_size = dist.get_world_size()
        check_world_size(config, world_size, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
        backend = (backend_of(None) if backend is None else backend).lower()
        device = device_for(backend, device)
        make_current(device)
        topology = Topology(config)
        of_hccl = {
            "hccl_buffer_mib": hccl_buffer_mib,
            "qos_traffic_class": qos_traffic_class,
            "qos_service_level": qos_service_level,
            "op_expansion_mode": op_expansion_mode,
        }
        options = GroupOptions.by_axis(backend, timeout=timeout, **of_hccl)
        # Ranks whose timeouts differ by axis would make other numbers of groups, and wait for ever.
        asked = "".join(_told(name, value) for name, value in {"timeout": timeout, **of_hccl}.items())
        check_ranks_agree(f"{_degrees(config)} over {backend}{asked}")
        check_timeouts_agree(os.environ)
        groups = make_groups(topology, dist.get_rank(), backend, options, inherited_timeout(device))
        wait_until_made()
        for axis, group in groups.items():
            check_group_device(group, device, f"the {axis} group")
        return cls(topology, dist.get_rank(), groups, device, backend)

    @property
    def config(self) -> ParallelConfig:
        """The degrees."""
        return self.topology.config

    def size(self, axis: str) -> int:
        """Return the number of ranks along `axis`."""
        return self.topology.size(axis)

    def rank(self, axis: str) -> int:
        """Return this rank's place along `axis`, 0 to ``size(axis) - 1``."""
        return self.topology.place(axis, self.global_rank)

    def ranks(self, axis: str) -> tuple[int, ...]:
        """Return the global ranks of this rank's group along `axis`, in the order of their places."""
        return self.topology.ranks(axis, self.global_rank)

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Return this rank's group along `axis`; None where the axis has one rank: nothing to communicate.

        None must not reach a collective, to which it means the whole world.
        """
        return self._groups[axis] if self.size(axis) > 1 else None

    def coordinate(self, rank: int | None = None) -> Coordinate:
        """Return where global rank `rank` stands; by default this rank."""
        return self.topology.coordinate(self.global_rank if rank is None else rank)

    def rank_at(self, *, tp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """Return the global rank at a coordinate."""
        return self.topology.rank_at(tp=tp, dp=dp, pp=pp)

    def destroy(self) -> None:
        """Destroy the groups, once; the mesh cannot be used any more."""
        for group in dict.fromkeys(self._groups.values()):
            dist.destroy_process_group(group)
        self._groups = {}
        _forget_in_deepspeed(self)

    def __repr__(self) -> str:
        """Say the degrees and where this rank stands."""
        place = self.coordinate()
        return (
            f"ProcessMesh({_degrees(self.config)}; rank {self.global_rank} at "
            f"tp={place.tp}, dp={place.dp}, pp={place.pp} on {self.device} over {self.backend})"
        )


def _forget_in_deepspeed(mesh: ProcessMesh) -> None:
    """Take back the mesh that DeepSpeed keeps for the process, so that an engine without one can be made.

    DeepSpeed 0.19.8 (runtime/engine.py:2122) sets ``groups.mpu`` for an engine with a mesh; one that is made
    later without a mesh would ask the destroyed groups for its degrees.
    """
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    kept = getattr(groups, "mpu", None)
    if kept is not None and mesh in (kept, getattr(kept, "mesh", None)):
        groups.mpu = None


def _told(name: str, value: Any) -> str:
    """An option in words that are the same on two ranks if it is."""
    if isinstance(value, Mapping):
        value = ", ".join(f"{value[axis]} for {axis}" for axis in ALL_AXES if axis in value)
    return "" if value is None else f", {name} {value}"


def _degrees(config: ParallelConfig) -> str:
    return f"tp {config.tp} × dp {config.dp} × pp {config.pp} with ep {config.ep}"


def check_world_size(config: ParallelConfig, world_size: int, per_node: int) -> None:
    """Refuse degrees that do not multiply out to `world_size`, of which `per_node` ranks run on each node.

    Raises:
        CommError: with the arithmetic.
    """
    if config.world_size == world_size:
        return
    nodes = world_size // per_node
    started = f"--num_gpus {per_node}" + (f" on {nodes} nodes ({world_size} ranks)" if nodes > 1 else "")
    unit = config.tp * config.pp
    if world_size % unit:
        degrees, needed = f"tp {config.tp} × pp {config.pp}", f"{unit}"
        multiple = " or a multiple of that" if world_size > unit else ""
        mend = f"start as many, or choose tp and pp whose product divides {world_size}"
    else:
        degrees, needed = f"tp {config.tp} × pp {config.pp} × dp {config.dp}", f"{config.world_size}"
        multiple, mend = "", f"start as many, or take dp {world_size // unit}"
    raise CommError(f"{started} with {degrees} needs {needed} ranks{multiple}; {mend}")
