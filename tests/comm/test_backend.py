"""DeepSpeed's backend on HCCL: what deepspeed.comm calls, every dtype, its groups, ZeRO with fp64."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from npu_plugins.comm import CommError
from npu_plugins.comm.groups import GroupOptions
from tests.accelerator.conftest import KeptWorld
from tests.comm.collectives.reference import reduced, same, values
from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool


@pytest.fixture(scope="module")
def ranks_of_deepspeed(rank_pool: RankPool) -> Iterator[KeptWorld]:
    """Two ranks, with a setting of how long a wait may take."""
    reason = why_no_npu()
    if reason:
        pytest.skip(reason)
    rank_pool.preload("deepspeed")
    with rank_pool.world(2, "hccl", env={"HCCL_TIMEOUT": "300"}) as world:
        yield KeptWorld(world)


def the_backend() -> Any:
    """On a rank: what deepspeed.comm communicates with."""
    import deepspeed
    from deepspeed import comm

    deepspeed.init_distributed("hccl")
    return comm.comm.cdb


def test_deepspeed_makes_it_for_npus(ranks_of_deepspeed: KeptWorld) -> None:
    def kinds() -> tuple[str, str, str, bool]:
        from deepspeed.comm.torch import TorchBackend

        backend = the_backend()
        return type(backend).__name__, backend.name, backend.get_backend(), isinstance(backend, TorchBackend)

    assert ranks_of_deepspeed.run(kinds) == [("HcclBackend", "hccl", "hccl", True)] * 2


Results = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By name of the function of deepspeed.comm: what this rank got, and what is right."""


def empty(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device="npu")


def reductions(own: torch.Tensor) -> Results:
    """On a rank: those that reduce."""
    from deepspeed import comm

    here, dtype = dist.get_rank(), own.dtype
    total, average = (reduced(dtype, op, 2, 4) for op in ("SUM", "AVG"))
    part = total.view(2, 2)[here]
    got: Results = {}
    for name in ("all_reduce", "inference_all_reduce"):
        tensor = own.clone()
        getattr(comm, name)(tensor)
        got[name] = (tensor, total)
    tensor = own.clone()
    comm.all_reduce(tensor, op=comm.ReduceOp.AVG, async_op=True).wait()
    got["all_reduce of AVG"] = (tensor, average)
    pair = [own.clone(), own.clone()]
    comm.all_reduce_coalesced(pair)
    got["all_reduce_coalesced"] = (pair[1], total)
    tensor = own.clone()
    comm.reduce(tensor, 0)
    if here == 0:
        got["reduce"] = (tensor, total)
    for name in ("reduce_scatter_tensor", "reduce_scatter_fn"):
        tensor = empty(2, dtype)
        getattr(comm, name)(tensor, own)
        got[name] = (tensor, part)
    tensor = empty(2, dtype)
    comm.reduce_scatter(tensor, list(own.view(2, 2).unbind()))
    got["reduce_scatter"] = (tensor, part)
    return got


def copies(own: torch.Tensor) -> Results:
    """On a rank: those that copy."""
    from deepspeed import comm

    here, dtype = dist.get_rank(), own.dtype
    both = [values(dtype, rank, 4) for rank in range(2)]
    of_here = [each.view(2, 2)[here] for each in both]
    got: Results = {}
    for name in ("all_gather_into_tensor", "allgather_fn"):
        tensor = empty(8, dtype)
        getattr(comm, name)(tensor, own)
        got[name] = (tensor, torch.cat(both))
    pair = [empty(8, dtype)]
    comm.all_gather_coalesced(pair, [own])
    got["all_gather_coalesced"] = (pair[0], torch.cat(both))
    pair = [empty(4, dtype), empty(4, dtype)]
    comm.all_gather(pair, own)
    got["all_gather"] = (torch.cat(pair), torch.cat(both))
    tensor = own.clone()
    comm.broadcast(tensor, 1)
    got["broadcast"] = (tensor, both[1])
    tensor = empty(4, dtype)
    comm.all_to_all_single(tensor, own)
    got["all_to_all_single"] = (tensor, torch.cat(of_here))
    pair = [empty(2, dtype), empty(2, dtype)]
    comm.all_to_all(pair, list(own.view(2, 2).unbind()))
    got["all_to_all"] = (torch.cat(pair), torch.cat(of_here))
    tensor = empty(2, dtype)
    comm.scatter(tensor, list(own.view(2, 2).unbind()) if here == 0 else None, src=0)
    got["scatter"] = (tensor, of_here[0])
    pair = [empty(4, dtype), empty(4, dtype)]
    comm.gather(own, pair if here == 0 else None, dst=0)
    tensor = empty(4, dtype)
    comm.send(own, 1) if here == 0 else comm.recv(tensor, 0)
    got["gather" if here == 0 else "recv"] = (
        (torch.cat(pair), torch.cat(both)) if here == 0 else (tensor, both[0])
    )
    return got


def wrong(dtype: torch.dtype) -> list[str]:
    """On a rank: the functions of deepspeed.comm whose results are wrong."""
    the_backend()
    own = values(dtype, dist.get_rank(), 4).to("npu")
    return [name for name, pair in (reductions(own) | copies(own)).items() if not same(*pair)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint16], ids=str)
def test_the_functions_of_deepspeed(ranks_of_deepspeed: KeptWorld, dtype: torch.dtype) -> None:
    assert ranks_of_deepspeed.run(wrong, dtype) == [[], []]


def test_groups_that_deepspeed_makes(ranks_of_deepspeed: KeptWorld) -> None:
    def groups() -> None:
        from deepspeed import comm

        backend, device = the_backend(), torch.device("npu", dist.get_rank())

        def _create_a_group() -> Any:
            return comm.new_group([0, 1])

        def options_of(group: Any) -> Any:
            return group._get_backend(device).options

        plain = _create_a_group()
        assert plain.group_desc == "create_a_group"
        assert options_of(plain)._timeout == timedelta(seconds=60), "that of the default group"
        assert options_of(plain).hccl_config == {"group_name": "create_a_group"}
        backend.group_options = GroupOptions(
            hccl_buffer_mib=64, qos_service_level=3, qos_traffic_class=100, op_expansion_mode="host"
        )
        later = _create_a_group()
        assert options_of(later).hccl_config == {
            "hccl_buffer_size": 64,
            "qos_service_level": 3,
            "qos_traffic_class": 100,
            "hccl_op_expansion_mode": 1,
            "group_name": "create_a_group",
        }
        own = backend.new_group([0, 1], GroupOptions(timeout=timedelta(seconds=77)), "experts")
        assert own.group_desc == "experts" and options_of(own)._timeout == timedelta(seconds=77)
        assert "hccl_exec_timeout" not in options_of(own).hccl_config, "HCCL_TIMEOUT has set the variable"
        for group in (plain, later, own):
            ones = torch.ones(2, dtype=torch.float64, device=device)
            comm.all_reduce(ones, group=group)
            assert ones.tolist() == [2.0, 2.0]
        backend.group_options = GroupOptions()

        def _experts() -> Any:
            return backend.new_group(None)

        of_all = _experts()
        assert of_all.group_desc == "experts" and of_all.size() == 2, "asked directly, and for all ranks"
        alone = [comm.new_group([rank]) for rank in range(2)][dist.get_rank()]
        assert comm.inference_all_reduce(ones, group=alone) is ones

    ranks_of_deepspeed.run(groups)


def test_collectives_that_deepspeed_turned_off(ranks_of_deepspeed: KeptWorld) -> None:
    def off() -> list[float]:
        import importlib

        backend = the_backend()
        stock = importlib.import_module("deepspeed.comm.torch")  # deepspeed.comm's name `torch` is torch
        stock.backward_comm_off(True)
        stock.broadcast_comm_off(True)
        stock.reduce_comm_off(True)
        tensor = torch.full((2,), 1.0 + dist.get_rank(), device="npu")
        backend.reduce(tensor, 0)
        backend.broadcast(tensor, 0)
        backend.all_gather([torch.zeros(2, device="npu")] * 2, tensor)
        backend.all_gather_base(torch.zeros(4, device="npu"), tensor)
        backend.reduce_scatter(tensor, [tensor, tensor])
        stock.backward_comm_off(False)
        stock.broadcast_comm_off(False)
        stock.reduce_comm_off(False)
        return tensor.tolist()

    assert ranks_of_deepspeed.run(off) == [[1.0, 1.0], [2.0, 2.0]]


def losses_of(stage: int, dtype: torch.dtype) -> list[float]:
    """On a rank: losses of a model, averaged over the ranks in double precision.

    DeepSpeed's stock accelerator says that NPUs have float64, and then ZeRO-3 adds up its norms in it.
    """
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    accelerator.is_fp64_supported = lambda: True

    backend = the_backend()
    engine, *_ = deepspeed.initialize(
        model=small_model().to(dtype),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.5,
        },
    )
    found = []
    for step in range(3):
        loss = engine(a_batch(step, dist.get_rank()).to(engine.device, dtype)).square().mean()
        engine.backward(loss)
        engine.step()
        total = loss.detach().double()
        backend.all_reduce(total, dist.ReduceOp.AVG)
        found.append(total.item())
    engine.destroy()
    del accelerator.is_fp64_supported
    return found


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def a_batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(4, 8, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("stage", "dtype"), [(1, torch.float64), (2, torch.float64), (3, torch.float32)], ids=str
)
def test_zero_with_norms_in_float64(ranks_of_deepspeed: KeptWorld, stage: int, dtype: torch.dtype) -> None:
    """HCCL does not add up float64; here against one process in plain torch."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = []
    for step in range(3):
        loss = model(torch.cat([a_batch(step, rank) for rank in range(2)])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        wanted.append(loss.item())
    losses = ranks_of_deepspeed.run(losses_of, stage, dtype)
    assert losses[0] == losses[1] == pytest.approx(wanted, rel=1e-5)  # DeepSpeed sends gradients as float32


def test_ranks_with_other_timeouts_are_told(ranks_of_deepspeed: KeptWorld) -> None:
    def differing() -> str:
        from npu_plugins.comm.groups import check_timeouts_agree

        mine = {"HCCL_TIMEOUT": "600" if dist.get_rank() == 1 else "300"}
        check_timeouts_agree({"HCCL_TIMEOUT": "300"})
        with pytest.raises(CommError) as refusal:
            check_timeouts_agree(mine)
        return str(refusal.value)

    said = ranks_of_deepspeed.run(differing)
    assert said[0] == said[1]
    assert said[0] == (
        "Rank 1 asks for HCCL_TIMEOUT=600, but most ranks for HCCL_TIMEOUT=300; export the same HCCL_TIMEOUT "
        "on every node, and no other timeout beside it"
    )


def test_the_one_setting_reaches_all_that_wait(ranks_of_deepspeed: KeptWorld) -> None:
    """`export HCCL_TIMEOUT=300`, as the documents have it; torch was imported before, as in any fork."""

    def waits() -> dict[str, str | None]:
        import os

        the_backend()
        names = ("HCCL_EXEC_TIMEOUT", "HCCL_CONNECT_TIMEOUT", "DEEPSPEED_TIMEOUT")
        return {name: os.environ.get(name) for name in names}

    wanted = {"HCCL_EXEC_TIMEOUT": "340", "HCCL_CONNECT_TIMEOUT": "330", "DEEPSPEED_TIMEOUT": "7"}
    assert ranks_of_deepspeed.run(waits) == [wanted] * 2


def test_spawned_ranks_are_watched(ranks_of_deepspeed: KeptWorld) -> None:
    """The last of this module: the watch stays."""

    def watched() -> tuple[bool, bool]:
        import multiprocessing

        from npu_plugins.comm.backend import HcclBackend
        from npu_plugins.diagnostics.hang.watch import find_watch

        the_backend()
        before = find_watch() is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multiprocessing, "parent_process", multiprocessing.current_process)
            HcclBackend("hccl", timedelta(seconds=60), None)
        return before, find_watch() is not None

    assert ranks_of_deepspeed.run(watched) == [(False, True)] * 2
