"""The full matrix is the same for every tp, and the one that torch.nn would have drawn."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
    Shard,
    SharedColumnParallelLinear,
    TensorParallelError,
    VocabParallelEmbedding,
    gather_full,
    initialize,
    shard_of,
)
from tests.harness.pool import World
from tests.tensor_parallel.comparing import device, group


def gathered(layer: nn.Module) -> list[torch.Tensor]:
    """The full parameters."""
    return [gather_full(p, shard_of(p), group()).cpu() for p in layer.parameters()]


def test_layers_are_drawn_as_torch_draws_them(tp_ranks: World) -> None:
    """One after another under one seed, as a script builds them; the generator ends where torch's does."""

    def body() -> None:
        for dtype, seeded in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            seeds = [{"seed": n} if seeded else {} for n in range(5)]
            options = {"group": group(), "device": device(), "dtype": dtype}
            torch.manual_seed(11)
            own = [
                ColumnParallelLinear(6, 8, **options, **seeds[0]),
                RowParallelLinear(8, 6, **options, **seeds[1]),
                VocabParallelEmbedding(13, 6, **options, **seeds[2]),
                MergedColumnParallelLinear(6, [8, 4, 4], **options, **seeds[3]),
                SharedColumnParallelLinear(6, 10, 2, **options, **seeds[4]),
            ]
            last = torch.rand(1)
            makers = [
                lambda d: nn.Linear(6, 8, dtype=d),
                lambda d: nn.Linear(8, 6, dtype=d),
                lambda d: nn.Embedding(13, 6, dtype=d),
                lambda d: nn.Linear(6, 16, dtype=d),
                lambda d: nn.Linear(6, 10, dtype=d),
            ]
            torch.manual_seed(11)
            full = []
            for n, make in enumerate(makers):
                if seeded:
                    torch.manual_seed(n)
                full.append(make(dtype))
            for mine, theirs in zip(own, full, strict=True):
                for left, right in zip(gathered(mine), theirs.parameters(), strict=True):
                    assert torch.equal(left, right), (type(mine).__name__, dtype, seeded)
            if not seeded:
                assert torch.equal(last, torch.rand(1))

    tp_ranks.run(body)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 4), st.booleans(), st.sampled_from([64, 1000]))
def test_blocks_of_rows_are_the_whole_matrix(
    rows: int, width: int, ranks: int, normal: bool, block: int
) -> None:
    """Drawing block by block gives what one call gives, and every rank its rows of it."""
    fill = nn.init.normal_ if normal else initialize.kaiming_uniform
    torch.manual_seed(1)
    whole = fill(torch.empty(rows, width))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initialize, "BLOCK_ELEMENTS", block)
        for rank in range(ranks):
            shard = Shard(0, rank, ranks, rows, padded_size=-(-rows // ranks) * ranks)
            local = torch.empty(shard.local_size, width)
            torch.manual_seed(1)
            initialize.draw(local, shard, fill, by_rows=True)
            assert torch.equal(local, shard.take(whole))


def test_an_init_method_sees_the_full_matrix(tp_ranks: World) -> None:
    """Also one that is not elementwise, such as orthogonal_; the bias is then zero."""

    def body() -> None:
        for kind in (ColumnParallelLinear, RowParallelLinear):
            own = kind(8, 12, group=group(), init_method=nn.init.orthogonal_, seed=4, device=device())
            torch.manual_seed(4)
            expected = nn.init.orthogonal_(torch.empty(12, 8))
            weight, bias = gathered(own)
            assert torch.equal(weight, expected) and not bias.any()

    tp_ranks.run(body)


def test_a_seed_leaves_the_generator_alone(cpu_ranks: World) -> None:
    def body() -> None:
        before = torch.get_rng_state()
        ColumnParallelLinear(6, 8, group=group(), seed=1)
        VocabParallelEmbedding(13, 6, group=group(), seed=1)
        assert torch.equal(torch.get_rng_state(), before)

    cpu_ranks.run(body)


def test_ranks_that_would_draw_different_matrices_are_refused(tp_ranks: World) -> None:
    def body() -> None:
        for make in (
            lambda **o: ColumnParallelLinear(6, 8, group=group(), device=device(), **o),
            lambda **o: VocabParallelEmbedding(13, 6, group=group(), device=device(), **o),
        ):
            torch.manual_seed(dist.get_rank())
            with pytest.raises(TensorParallelError, match=r"ranks 1.* draw other random numbers than rank 0"):
                make()
            make(seed=7)  # a seed mends it
            torch.manual_seed(0)
            make()  # and so does the same generator everywhere

    tp_ranks.run(body)


def test_nothing_is_drawn_on_the_meta_device(cpu_ranks: World) -> None:
    def body() -> None:
        before = torch.get_rng_state()
        with torch.device("meta"):
            own = [ColumnParallelLinear(6, 8, group=group()), VocabParallelEmbedding(13, 6, group=group())]
        assert all(p.is_meta and shard_of(p) is not None for layer in own for p in layer.parameters())
        assert torch.equal(torch.get_rng_state(), before)

    cpu_ranks.run(body)
