"""Random streams: the same where replicated, different where sharded, exact under recomputation."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from npu_plugins.tensor_parallel import RandomStreams, ShardedDropout, TensorParallelError
from tests.harness.pool import World
from tests.tensor_parallel.comparing import device, group


def draw(streams: RandomStreams) -> list[float]:
    """Replicated, sharded, replicated, sharded numbers."""
    numbers = []
    for sharded in (False, True, False, True):
        if sharded:
            with streams.sharded():
                numbers.append(torch.rand(1, device=device()).item())
        else:
            numbers.append(torch.rand(1, device=device()).item())
    return numbers


def test_replicated_numbers_agree_and_sharded_ones_differ(tp_ranks: World) -> None:
    def body() -> list[float]:
        streams = RandomStreams(group(), device())
        streams.seed(42)
        return draw(streams)

    first, one, second, other = (list(numbers) for numbers in zip(*tp_ranks.run(body), strict=True))
    assert len(set(first)) == len(set(second)) == 1 and first[0] != second[0]
    assert len({*first, *second, *one, *other}) == 2 + 2 * tp_ranks.size


def test_a_seed_repeats_everything(tp_ranks: World) -> None:
    def body() -> None:
        streams = RandomStreams(group(), device())
        drawn = []
        for seed in (1, 1, 2):
            streams.seed(seed)
            drawn.append(draw(streams))
        assert drawn[0] == drawn[1] and not set(drawn[0]) & set(drawn[2])

    tp_ranks.run(body)


def test_the_length_of_a_sharded_stream_does_not_matter(tp_ranks: World) -> None:
    """Ranks may draw different amounts for their shards and agree again afterwards."""

    def body() -> float:
        streams = RandomStreams(group(), device())
        streams.seed(42)
        with streams.sharded():
            torch.rand(1 + dist.get_rank(), device=device())
        streams.check()
        return torch.rand(1, device=device()).item()

    assert len(set(tp_ranks.run(body))) == 1


def test_the_stream_comes_back_after_an_error(tp_ranks: World) -> None:
    def body() -> None:
        streams = RandomStreams(group(), device())
        with pytest.raises(ZeroDivisionError), streams.sharded():
            raise ZeroDivisionError
        streams.check()

    tp_ranks.run(body)


def test_recomputation_draws_the_same_masks(tp_ranks: World) -> None:
    """Under both kinds of checkpointing, of two blocks, each with a replicated and a sharded dropout."""

    def body() -> None:
        streams = RandomStreams(group(), device())
        dropout = ShardedDropout(0.5, streams)

        def block(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(dropout(x.sin()) * 3, 0.5).cos() * x

        def gradient(how: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
            streams.seed(7)
            x = torch.linspace(0, 1, 64, device=device()).requires_grad_()
            y = x
            for _ in range(2):
                y = block(y) if how is None else checkpoint(block, y, use_reentrant=how)
            y.sum().backward()
            return y.detach(), x.grad

        plain = gradient(None)
        for how in (True, False):
            again = gradient(how)
            assert torch.equal(plain[0], again[0]) and torch.equal(plain[1], again[1])

    tp_ranks.run(body)


def test_sharded_dropout(tp_ranks: World) -> None:
    """Masks of all ranks are different, scaled, and off in evaluation."""

    def body() -> list[float]:
        streams = RandomStreams(group(), device())
        streams.seed(3)
        dropout, x = ShardedDropout(0.25, streams), torch.ones(4000, device=device())
        y = dropout(x)
        assert set(y.cpu().unique().tolist()) == {0.0, x.new_tensor(1 / 0.75).item()}
        assert 0.2 < (y == 0).float().mean().item() < 0.3
        assert dropout.eval()(x) is x
        return y.cpu().tolist()

    masks = tp_ranks.run(body)
    assert len({tuple(mask) for mask in masks}) == tp_ranks.size


def test_another_device_and_the_cpu_are_left_alone(tp_ranks: World) -> None:
    def body() -> None:
        if device().type == "cpu":
            return
        before = torch.get_rng_state()
        streams = RandomStreams(group(), device())
        streams.seed(5)
        with streams.sharded():
            torch.rand(1, device=device())
        assert torch.equal(torch.get_rng_state(), before)

    tp_ranks.run(body)


def test_ranks_out_of_step_are_found(tp_ranks: World) -> None:
    def body() -> None:
        streams = RandomStreams(group(), device())
        streams.seed(5)
        streams.check()
        if dist.get_rank() == 1:
            torch.rand(1, device=device())
        with pytest.raises(TensorParallelError, match=r"differ on ranks 1 of the tensor-parallel group"):
            streams.check()

    tp_ranks.run(body)


def test_a_probability_outside_0_and_1_is_refused() -> None:
    with pytest.raises(TensorParallelError, match="p is 1.5"):
        ShardedDropout(1.5, RandomStreams(None, "cpu"))
