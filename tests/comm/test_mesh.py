"""ProcessMesh on ranks: own place, groups that talk to the right ranks, refusals."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh
from tests.harness.fixtures import on_ranks


@on_ranks(4, backend="gloo")
def test_each_group_sums_over_its_own_ranks() -> None:
    mesh = ProcessMesh.create(ParallelConfig(tp=2, dp=2))
    for axis in ("tp", "dp"):
        tensor = torch.tensor(10.0 ** dist.get_rank())
        dist.all_reduce(tensor, group=mesh.group(axis))
        assert tensor.item() == sum(10.0**rank for rank in mesh.ranks(axis))
