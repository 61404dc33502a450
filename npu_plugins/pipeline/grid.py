"""DeepSpeed's view of a mesh: which rank holds what, for the code of DeepSpeed that asks a pipeline's
grid."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.pipe.topology import (
    PipeDataParallelTopology,
    PipelineParallelGrid,
    PipeModelDataParallelTopology,
)

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline.errors import PipelineError


class MeshGrid(PipelineParallelGrid):
    """DeepSpeed's `PipelineParallelGrid`, answered from a `ProcessMesh` and its groups.

    The base class makes groups of its own when it is constructed; every group of HCCL takes a buffer, so that
    constructor is not run, and its attributes (deepspeed 0.19.8, runtime/pipe/topology.py) are set here.
    """

    def __init__(self, mesh: ProcessMesh, topology: Any = None) -> None:
        c = mesh.config
        self.mesh = mesh
        if topology is None:
            # Without tensor parallelism DeepSpeed names no model axis, and neither do its checkpoint files.
            plain = PipeDataParallelTopology(num_pp=c.pp, num_dp=c.dp)
            topology = plain if c.tp == 1 else PipeModelDataParallelTopology(c.pp, c.tp, c.dp)
        self._topo = topology
        self.global_rank, self.world_size = mesh.global_rank, c.world_size
        self.data_parallel_size, self.pipe_parallel_size = c.dp, c.pp
        self.model_parallel_size = self.slice_parallel_size = c.tp
        self.stage_id, self.data_parallel_id = mesh.rank("pp"), mesh.rank("dp")
        self.is_first_stage, self.is_last_stage = self.stage_id == 0, self.stage_id == c.pp - 1
        self.ds_model_proc_group = mesh.get_model_parallel_group()
        self.ds_model_world_size, self.ds_model_rank = c.tp * c.pp, mesh.rank("model")
        self.dp_group, self.dp_proc_group = list(mesh.ranks("dp")), mesh.get_data_parallel_group()
        self.dp_groups = [list(ranks) for ranks in mesh.topology.groups("dp")]
        self.pp_group, self.pp_proc_group = list(mesh.ranks("pp")), mesh.get_pipe_parallel_group()
        self.pipe_groups = [list(ranks) for ranks in mesh.topology.groups("pp")]
        self.p2p_groups = self._build_p2p_groups()
        self.slice_group, self.slice_proc_group = list(mesh.ranks("tp")), mesh.get_slice_parallel_group()
        self.model_groups = [list(ranks) for ranks in mesh.topology.groups("tp")]


def degrees_of(topology: Any, world_size: int) -> ParallelConfig:
    """Return the degrees of one of DeepSpeed's topologies.

    Raises:
        PipelineError: its axes are not pipe, data and model in this order, the order of every mesh.
    """
    axes = list(topology.get_axis_names())
    if axes not in (["pipe", "data"], ["pipe", "data", "model"], ["pipe"]):
        raise PipelineError(
            f"the topology's axes are {axes}; ranks are ordered pipe, data, model here, as DeepSpeed's "
            "PipeDataParallelTopology and PipeModelDataParallelTopology have them: use one of those"
        )
    sizes = {axis: topology.get_dim(axis) for axis in axes}
    config = ParallelConfig(tp=sizes.get("model", 1), pp=sizes["pipe"], dp=sizes.get("data", 1))
    if config.world_size != world_size:
        raise PipelineError(
            f"the topology has {config.world_size} ranks, but {world_size} run; start as many"
        )
    return config
