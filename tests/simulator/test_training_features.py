"""What a training script uses beside collectives and streams: simulated NPUs against the CPU."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from tests.harness.fixtures import on_ranks

pytestmark = pytest.mark.npu

STEPS = 4


class Squares(Dataset):
    """Rows of x and x²; at module level, so that DataLoader's workers find it."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((3,), float(index)), "square": torch.tensor(float(index * index))}


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 16),
        torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 50),
    )


def batch_of(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def reference_losses(world: int, clip: float | None = None) -> list[float]:
    """Mean loss of each step of a single CPU process that sees all ranks' batches."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        loss = torch.stack([loss_of(model, batch_of(step, rank)) for rank in range(world)]).mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def distributed_losses(model: torch.nn.Module, clip: float | None = None) -> list[float]:
    """The same on this world's NPUs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, batch_of(step, dist.get_rank()).npu())
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


@on_ranks(2)
def test_ddp_equals_one_process() -> None:
    model = DistributedDataParallel(make_model().npu(), device_ids=[dist.get_rank()])
    assert distributed_losses(model, clip=0.5) == pytest.approx(reference_losses(2, clip=0.5), rel=1e-5)


@on_ranks(2)
def test_ddp_accumulates_gradients_without_communicating() -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False).npu(), device_ids=[rank])
    with model.no_sync():
        model(torch.full((1, 4), float(rank + 1), device="npu")).sum().backward()
    assert model.module.weight.grad.flatten().tolist() == [float(rank + 1)] * 4
    model(torch.full((1, 4), float(rank + 1), device="npu")).sum().backward()
    assert model.module.weight.grad.flatten().tolist() == [3.0] * 4


@on_ranks(2)
def test_fsdp2_equals_one_process() -> None:
    model = make_model().npu()
    fully_shard(model[1])
    fully_shard(model)
    assert distributed_losses(model, clip=0.5) == pytest.approx(reference_losses(2, clip=0.5), rel=1e-5)
    sharded = model[3].weight
    assert sharded.to_local().shape == (25, 16) and sharded.to_local().device.type == "npu"
    assert sharded.full_tensor().shape == (50, 16)


@on_ranks(2)
def test_fsdp2_in_bfloat16_follows_the_reference() -> None:
    model = make_model().npu()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model[1], mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    assert distributed_losses(model) == pytest.approx(reference_losses(2), rel=2e-2)


@on_ranks(1, backend=None)
def test_autocast_chooses_dtypes_by_operator() -> None:
    layer = torch.nn.Linear(8, 8).npu()
    given = torch.randn(4, 8, device="npu")
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("npu", dtype=dtype):
            out = layer(given)
            assert torch.is_autocast_enabled("npu") and out.dtype == dtype
            assert torch.nn.functional.softmax(out, dim=-1).dtype == torch.float32
            with torch.autocast("npu", enabled=False):
                assert layer(given).dtype == torch.float32
        assert layer(given).dtype == torch.float32
        expected = layer.cpu()(given.cpu())
        torch.testing.assert_close(out.float().cpu(), expected, rtol=2e-2, atol=2e-2)
        layer.npu()


@on_ranks(1, backend=None)
def test_training_under_autocast_follows_float32() -> None:
    model = make_model().npu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        with torch.autocast("npu", dtype=torch.bfloat16):
            loss = loss_of(model, batch_of(step, 0).npu())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(reference_losses(1), rel=2e-2)


@on_ranks(1, backend=None)
def test_grad_scaler_skips_overflow_and_grows() -> None:
    weight = torch.nn.Parameter(torch.ones(4, device="npu"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("npu", init_scale=1024.0, growth_interval=2)

    def step(factor: float) -> float:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_([weight], 100.0).item()
        scaler.step(optimizer)
        scaler.update()
        return norm

    assert step(1.0) == pytest.approx(2.0)
    assert weight.tolist() == pytest.approx([0.9] * 4) and scaler.get_scale() == 1024
    step(float("inf"))
    assert weight.tolist() == pytest.approx([0.9] * 4), "an overflowed step is left out"
    assert scaler.get_scale() == 512, "and the scale halved"
    step(1.0)
    step(1.0)
    assert weight.tolist() == pytest.approx([0.7] * 4) and scaler.get_scale() == 1024


@on_ranks(1, backend=None)
def test_torch_npus_own_grad_scaler_trains_in_float16() -> None:
    model = make_model().npu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.npu.amp.GradScaler(init_scale=2.0**10)
    losses = []
    for step in range(STEPS):
        with torch.autocast("npu", dtype=torch.float16):
            loss = loss_of(model, batch_of(step, 0).npu())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses == pytest.approx(reference_losses(1), rel=2e-2)


@on_ranks(1, backend=None)
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_pins_memory(workers: int) -> None:
    torch.npu.set_device(0)
    data = TensorDataset(torch.arange(40, dtype=torch.float32).reshape(10, 4), torch.arange(10))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    seen = []
    for rows, labels in loader:
        assert rows.is_pinned() and labels.is_pinned()
        moved = rows.to("npu", non_blocking=True)
        assert torch.equal(moved.cpu(), rows)
        seen += labels.tolist()
    assert seen == list(range(10))


@on_ranks(2)
def test_data_loader_workers_feed_every_rank_its_share() -> None:
    sampler: DistributedSampler = DistributedSampler(Squares(), shuffle=False)
    loader = DataLoader(
        Squares(), batch_size=2, sampler=sampler, num_workers=2, pin_memory=True, persistent_workers=True
    )
    for _ in range(2):
        total = torch.zeros((), device="npu")
        for batch in loader:
            assert batch["x"].is_pinned()
            total += batch["square"].to("npu", non_blocking=True).sum()
        dist.all_reduce(total)
        assert total.item() == sum(i * i for i in range(10))


@on_ranks(1, backend=None)
def test_checkpoints_go_between_npu_and_cpu(folder: Path) -> None:
    model = make_model().npu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss_of(model, batch_of(0, 0).npu()).backward()
    optimizer.step()
    path = folder / "state.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    for location in ("cpu", "npu:1", None):
        state = torch.load(path, map_location=location, weights_only=True)
        for name, tensor in model.state_dict().items():
            assert state["model"][name].device == torch.device(location or "npu:0")
            assert torch.equal(state["model"][name].cpu(), tensor.cpu())
    restored = make_model().npu()
    again = torch.optim.AdamW(restored.parameters(), lr=1e-2)
    restored.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    for m, o in ((model, optimizer), (restored, again)):
        o.zero_grad()
        loss_of(m, batch_of(1, 0).npu()).backward()
        o.step()
    for one, other in zip(model.parameters(), restored.parameters(), strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@on_ranks(2)
def test_distributed_checkpoint_of_fsdp2(folder: Path) -> None:
    def trained(steps: range, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in steps:
            optimizer.zero_grad()
            loss_of(model, batch_of(step, dist.get_rank()).npu()).backward()
            optimizer.step()

    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = make_model().npu()
        fully_shard(model)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = fresh()
    trained(range(2), model, optimizer)
    states = get_state_dict(model, optimizer)
    dcp.save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=folder / "dcp")
    trained(range(2, 4), model, optimizer)

    resumed, again = fresh()
    loaded = dict(zip(("model", "optimizer"), get_state_dict(resumed, again), strict=True))
    dcp.load(loaded, checkpoint_id=folder / "dcp")
    set_state_dict(resumed, again, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    trained(range(2, 4), resumed, again)
    for one, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one.full_tensor().cpu(), other.full_tensor().cpu())


@on_ranks(1, backend=None)
def test_random_numbers_follow_the_npu_generator() -> None:
    torch.npu.manual_seed(7)
    first = torch.rand(5, device="npu").tolist()
    assert torch.rand(5, device="npu").tolist() != first
    torch.npu.manual_seed(7)
    assert torch.rand(5, device="npu").tolist() == first
    state = torch.npu.get_rng_state()
    second = [torch.randn(3, device="npu").tolist(), torch.randperm(9, device="npu").tolist()]
    torch.npu.set_rng_state(state)
    assert [torch.randn(3, device="npu").tolist(), torch.randperm(9, device="npu").tolist()] == second
    assert torch.npu.initial_seed() == 7


@on_ranks(1, backend=None)
def test_npu_and_host_generators_are_apart() -> None:
    torch.manual_seed(3)
    host = torch.rand(4).tolist()
    torch.manual_seed(3)
    torch.rand(100, device="npu")
    torch.nn.functional.dropout(torch.ones(50, device="npu"))
    torch.empty(10, device="npu").normal_()
    assert torch.rand(4).tolist() == host, "drawing on the NPU must not move the host's generator"
    torch.npu.manual_seed(5)
    npu = torch.rand(4, device="npu").tolist()
    torch.npu.manual_seed(5)
    torch.rand(100)
    assert torch.rand(4, device="npu").tolist() == npu
    torch.manual_seed(11)
    seeded = torch.rand(4, device="npu").tolist()
    torch.manual_seed(11)
    assert torch.rand(4, device="npu").tolist() == seeded, "torch.manual_seed seeds the NPU too"


@on_ranks(1, backend=None)
def test_generators_of_ones_own_and_forked_states() -> None:
    generator = torch.Generator(device="npu").manual_seed(42)
    drawn = torch.rand(3, device="npu", generator=generator).tolist()
    assert (
        torch.rand(3, device="npu", generator=torch.Generator(device="npu").manual_seed(42)).tolist() == drawn
    )
    torch.npu.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        inside = torch.rand(3, device="npu").tolist()
    assert torch.rand(3, device="npu").tolist() == inside


@on_ranks(1, backend=None)
def test_dropout_repeats_under_activation_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.npu.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 32)).npu()
    twin = copy.deepcopy(block)
    given = torch.randn(8, 32, device="npu")
    torch.npu.manual_seed(9)
    checkpoint(block, given, use_reentrant=False).square().sum().backward()
    torch.npu.manual_seed(9)
    twin(given).square().sum().backward()
    assert torch.equal(block[0].weight.grad.cpu(), twin[0].weight.grad.cpu())


@on_ranks(1, backend=None)
def test_dropout_has_the_asked_for_rate_and_scale() -> None:
    torch.npu.manual_seed(0)
    out = torch.nn.functional.dropout(torch.ones(100_000, device="npu"), p=0.3)
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.01)
    assert out[kept].unique().tolist() == pytest.approx([1 / 0.7])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    return tmp_path
