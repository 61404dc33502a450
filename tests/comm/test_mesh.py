"""ProcessMesh on ranks: own place, groups that reach the right ranks, and refusals that say why."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import CommError, ProcessMesh, check_group_device
from npu_plugins.comm.mesh import check_world_size
from npu_plugins.comm.topology import ALL_AXES
from tests.harness import World
from tests.harness.fixtures import on_ranks


def sums_of(config: ParallelConfig, **options: Any) -> dict[str, tuple[int, tuple[int, ...]]]:
    """On a rank: along each axis, the sum of 2 to the ranks that an all-reduce reached, and the ranks."""
    mesh = ProcessMesh.create(config, **options)
    here = mesh.global_rank
    assert mesh.rank_at(**mesh.coordinate()._asdict()) == here == dist.get_rank()
    reached = {}
    for axis in ALL_AXES:
        group = mesh.group(axis)
        assert (group is None) == (mesh.size(axis) == 1)
        if group is not None:
            ranks = torch.tensor(2**here, device=mesh.device)
            dist.all_reduce(ranks, group=group)
            reached[axis] = (int(ranks.item()), mesh.ranks(axis))
            assert mesh.ranks(axis)[mesh.rank(axis)] == here
    mesh.destroy()
    return reached


@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(tp=2, dp=2, pp=2, ep=2),
        ParallelConfig(tp=8),
        ParallelConfig(tp=2, dp=4, ep=2),
        ParallelConfig(dp=2, pp=4),
    ],
    ids=["tp 2 × dp 2 × pp 2", "tp 8", "tp 2 × dp 4, ep 2", "dp 2 × pp 4"],
)
@pytest.mark.ranks(8, backend="gloo")
def test_each_group_reaches_its_own_ranks_and_no_others(ranks: World, config: ParallelConfig) -> None:
    for reached in ranks.run(sums_of, config):
        assert reached, "every one of these meshes communicates along some axis"
        for total, members in reached.values():
            assert total == sum(2**rank for rank in members)


@pytest.mark.ranks(4)
def test_groups_work_on_npus(ranks: World) -> None:
    for reached in ranks.run(sums_of, ParallelConfig(tp=2, dp=2)):
        assert set(reached) == {"tp", "dp", "edp", "model"}
        for total, members in reached.values():
            assert total == sum(2**rank for rank in members)


@on_ranks(4)
def test_device_backend_and_options_on_npus() -> None:
    config, here = ParallelConfig(tp=2, dp=2), torch.device("npu", dist.get_rank())
    mesh = ProcessMesh.create(
        config, timeout={"dp": timedelta(seconds=77)}, hccl_buffer_mib={"tp": 64, "model": 64, "dp": 400}
    )
    assert (mesh.device, mesh.backend) == (here, "hccl")
    tp, dp = (mesh.group(axis)._get_backend(here).options for axis in ("tp", "dp"))
    assert tp.hccl_config == {"hccl_buffer_size": 64, "group_name": "tp"}
    assert dp.hccl_config["hccl_buffer_size"] == 400 and dp._timeout == timedelta(seconds=77)
    assert 77 - 30 < dp.hccl_config["hccl_exec_timeout"] < 77, "after the hang watch, before torch"
    assert mesh.group("tp") is mesh.group("model"), "same ranks and options: one communicator"
    assert mesh.group("dp") is not mesh.group("edp"), "the options differ"
    assert [mesh.group(axis).group_desc for axis in ("tp", "model", "dp", "edp")] == ["tp", "tp", "dp", "edp"]
    ones = torch.ones(1, device=here)
    dist.all_reduce(ones, group=mesh.group("dp"))
    assert ones.item() == 2.0
    on_hosts = ProcessMesh.create(config, backend="GLOO", device="cpu")
    assert on_hosts.device == torch.device("cpu")
    with pytest.raises(
        CommError, match="Backend hccl communicates tensors on npu, not on cpu.*backend='gloo'"
    ):
        ProcessMesh.create(config, device="cpu")
    with pytest.raises(
        CommError, match="Backend gloo communicates tensors on cpu.*not on npu.*backend='hccl'"
    ):
        ProcessMesh.create(config, backend="gloo", device="npu")
    with pytest.raises(CommError, match="The tp group of layer 3 uses gloo, which.*tensors are on npu:"):
        check_group_device(on_hosts.group("tp"), here, "the tp group of layer 3")
    check_group_device(mesh.group("tp"), here, "the tp group")


@on_ranks(2, backend="cpu:gloo,npu:hccl")
def test_ranks_that_chose_no_npu_get_that_of_their_place_on_the_machine() -> None:
    """deepspeed.init_distributed() chooses none either."""
    here = dist.get_rank()
    torch.npu.set_device(0)
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    assert mesh.device.index == torch.npu.current_device() == here
    ones = torch.ones(1, device="npu")
    dist.all_reduce(ones, group=mesh.group("tp"))
    assert ones.item() == 2.0
    torch.npu.set_device(here + 2)
    assert ProcessMesh.create(ParallelConfig(tp=2)).device.index == here + 2, "what was chosen stays"
    os.environ["LOCAL_RANK"] = "99"
    torch.npu.set_device(0)
    assert ProcessMesh.create(ParallelConfig(tp=2)).device.index == 0, (
        "each rank sees its own NPU as device 0"
    )


@on_ranks(2, backend="cpu:gloo,npu:hccl")
def test_a_job_with_a_backend_for_each_device_uses_the_npu() -> None:
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    assert mesh.device == torch.device("npu", dist.get_rank())
    for device in (mesh.device, torch.device("cpu")):
        check_group_device(mesh.group("tp"), device, "the tp group")
        ones = torch.ones(3, device=device)
        dist.all_reduce(ones, group=mesh.group("tp"))
        assert ones.tolist() == [2.0] * 3


@pytest.mark.npu
@on_ranks(2, backend=None)
def test_a_job_that_named_no_backend_uses_the_npu(tmp_path: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank)
    dist.init_process_group(init_method=f"file://{tmp_path}/store", rank=rank, world_size=2)
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    assert mesh.device == torch.device("npu", rank)
    ones = torch.ones(3, device=mesh.device)
    dist.all_reduce(ones, group=mesh.group("tp"))
    assert ones.tolist() == [2.0] * 3


@on_ranks(2, backend="gloo", group_timeout=41.0)
def test_groups_take_over_the_timeout_of_the_job() -> None:
    """torch gives a new group its own default instead: a job's DEEPSPEED_TIMEOUT would not reach it."""
    mesh = ProcessMesh.create(ParallelConfig(tp=2))
    assert mesh.group("tp")._get_backend(mesh.device).options._timeout == timedelta(seconds=41)


@on_ranks(2, backend="gloo")
def test_what_cannot_be_made_is_refused_by_every_rank() -> None:
    tp2 = ParallelConfig(tp=2)
    refused = [
        ((ParallelConfig(tp=8, pp=2),), {}, "--num_gpus 2 with tp 8 × pp 2 needs 16 ranks; start as many"),
        ((tp2,), {"backend": "mpx"}, "knows no backend 'mpx'; it has .*gloo"),
        ((tp2,), {"hccl_buffer_mib": 200}, "hccl_buffer_mib is for backend hccl, but the groups use gloo"),
        ((tp2,), {"timeout": timedelta(0)}, "Of axis tp, timeout is 0:00:00; give a time above 0"),
        ((tp2,), {"timeout": {"cp": timedelta(1)}}, "timeout is given for axis 'cp'; .*axes are tp, dp"),
        ((tp2,), {"device": "meta"}, "not on meta"),
    ]
    for arguments, options, sentence in refused:
        with pytest.raises(CommError, match=sentence):
            ProcessMesh.create(*arguments, **options)
    mesh = ProcessMesh.create(tp2)
    with pytest.raises(CommError, match="no axis 'data'"):
        mesh.group("data")
    assert repr(mesh).startswith("ProcessMesh(tp 2 × dp 1 × pp 1 with ep 1; rank ")


@on_ranks(4, backend="gloo")
def test_ranks_that_ask_for_different_meshes_are_told() -> None:
    """Their groups would wait for each other for ever."""
    here = dist.get_rank()
    right, wrong = ParallelConfig(tp=2, dp=2), ParallelConfig(tp=4)
    sentence = "^Rank 0 asks for a mesh of tp 2 × dp 2 .* over gloo, but most ranks for tp 4 × dp 1 .*; give"
    with pytest.raises(CommError, match=sentence):
        ProcessMesh.create(right if here == 0 else wrong)
    assert ProcessMesh.create(right).size("tp") == 2, "the next one is looked at afresh"
    short, long = timedelta(seconds=40), timedelta(seconds=50)
    own = {"dp": long} if here == 2 else {"tp": short, "dp": long} if here else {"dp": long, "tp": short}
    sentence = "^Rank 2 asks for .*gloo, timeout 0:00:50 for dp, but most .*0:00:40 for tp, 0:00:50 for dp;"
    with pytest.raises(CommError, match=sentence):
        ProcessMesh.create(right, timeout=own)


@on_ranks(1, backend=None)
def test_a_mesh_without_a_process_group_is_refused() -> None:
    with pytest.raises(CommError, match="call deepspeed.init_distributed.. or torch.distributed"):
        ProcessMesh.create(ParallelConfig())


@pytest.mark.parametrize(
    ("config", "world", "per_node", "sentence"),
    [
        (ParallelConfig(tp=8, pp=2), 8, 8, "--num_gpus 8 with tp 8 × pp 2 needs 16 ranks; start as many, or"),
        (ParallelConfig(tp=3), 8, 8, "tp 3 × pp 1 needs 3 ranks or a multiple of that; .* divides 8"),
        (ParallelConfig(tp=2, dp=2), 8, 8, "tp 2 × pp 1 × dp 2 needs 4 ranks; .* take dp 4"),
        (
            ParallelConfig(tp=16, pp=2),
            16,
            8,
            r"--num_gpus 8 on 2 nodes \(16 ranks\) with tp 16 × pp 2 needs 32",
        ),
    ],
)
def test_the_arithmetic_of_degrees_is_told(
    config: ParallelConfig, world: int, per_node: int, sentence: str
) -> None:
    with pytest.raises(CommError, match=sentence):
        check_world_size(config, world, per_node)
    check_world_size(config, config.world_size, per_node)
