"""VocabParallelEmbedding computes what torch.nn.Embedding computes."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    TensorParallelError,
    VocabParallelEmbedding,
    shard_of,
    vocab_parallel_cross_entropy,
)
from tests.harness.pool import World
from tests.tensor_parallel.comparing import (
    assert_close,
    assert_same_gradients,
    device,
    group,
    laid_out,
    normal,
    own_piece,
)

SEQ, BATCH, HIDDEN = 8, 3, 6


def ids_of(vocab: int) -> torch.Tensor:
    """Ids `[SEQ, BATCH]` that include the first and the last, alike on every rank."""
    ids = torch.randint(0, vocab, (SEQ, BATCH), generator=torch.Generator().manual_seed(0))
    ids[0, 0], ids[-1, -1] = 0, vocab - 1
    return ids


def test_every_mode(tp_ranks: World) -> None:
    def body() -> None:
        for vocab, padding_idx, sequence, layout in itertools.product(
            (16, 17, 3), (None, 0, -1), (False, True), ("contiguous", "transposed", "expanded")
        ):
            mode = (vocab, padding_idx, sequence, layout)
            torch.manual_seed(5)
            full = nn.Embedding(vocab, HIDDEN, padding_idx)
            torch.manual_seed(5)
            own = VocabParallelEmbedding(
                vocab,
                HIDDEN,
                group=group(),
                padding_idx=padding_idx,
                sequence_parallel=sequence,
                device=device(),
            )
            piece = (lambda t: own_piece(t, 0)) if sequence else (lambda t: t)
            dy = laid_out(normal(2, SEQ, BATCH, HIDDEN), layout)
            y = full(ids_of(vocab))
            y.backward(dy)
            got = own(ids_of(vocab).to(device()))
            got.backward(piece(dy).to(device()))
            assert torch.equal(got.cpu(), piece(y)), mode
            assert_same_gradients(mode, own, full)

    tp_ranks.run(body)


def test_padded_rows_stay_zero(cpu_ranks: World) -> None:
    def body() -> int:
        own = VocabParallelEmbedding(5, HIDDEN, group=group(), divisible_by=4)
        own(torch.arange(5)).sum().backward()
        held = sum(stop - start for start, stop in shard_of(own.weight).slices)
        assert not own.weight[held:].any() and not own.weight.grad[held:].any()
        return own.weight.size(0)

    assert cpu_ranks.run(body) == [4] * cpu_ranks.size


def test_tied_to_the_output_layer(tp_ranks: World) -> None:
    """One weight for embedding and output layer: both give to its gradient."""

    def body() -> None:
        for vocab, sequence in itertools.product((16, 13), (False, True)):
            torch.manual_seed(5)
            embedding, head = nn.Embedding(vocab, HIDDEN), nn.Linear(HIDDEN, vocab, bias=False)
            head.weight = embedding.weight
            loss = nn.functional.cross_entropy(
                head(embedding(ids_of(vocab)).tanh()).flatten(0, 1), ids_of(vocab).flip(0).flatten()
            )
            loss.backward()
            torch.manual_seed(5)
            options = {"group": group(), "sequence_parallel": sequence, "device": device()}
            own = VocabParallelEmbedding(vocab, HIDDEN, **options)
            own_head = ColumnParallelLinear(HIDDEN, vocab, bias=False, divisible_by=1, **options)
            own_head.weight = own.weight
            got = vocab_parallel_cross_entropy(
                own_head(own(ids_of(vocab).to(device())).tanh()),
                ids_of(vocab).flip(0).to(device()),
                group(),
                vocab_size=vocab,
            )
            got.backward()
            assert_close((vocab, sequence, "loss"), got, loss)
            assert_same_gradients((vocab, sequence), own, embedding)

    tp_ranks.run(body)


def test_an_id_outside_the_vocabulary_is_refused(cpu_ranks: World) -> None:
    def body() -> None:
        own = VocabParallelEmbedding(5, HIDDEN, group=group(), seed=0)
        for wrong in (5, 6, -1, 1000):
            with pytest.raises(TensorParallelError, match=f"id {wrong} is none of the 5 of the vocabulary"):
                own(torch.tensor([0, wrong]))

    cpu_ranks.run(body)


@pytest.mark.npu
def test_an_id_outside_the_vocabulary_is_refused_by_the_device_too(tp_ranks: World) -> None:
    def body() -> None:
        own = VocabParallelEmbedding(5, HIDDEN, group=group(), seed=0, device=device())
        with pytest.raises(RuntimeError if device().type == "cpu" else IndexError):
            own(torch.tensor([0, 5], device=device()))

    tp_ranks.run(body)


def test_bad_arguments_are_refused(cpu_ranks: World) -> None:
    def body() -> None:
        size = dist.get_world_size()
        with pytest.raises(TensorParallelError, match="padding_idx 7 is none of the 5 ids"):
            VocabParallelEmbedding(5, HIDDEN, size, padding_idx=7)
        with pytest.raises(TensorParallelError, match="7 is no multiple"):
            own = VocabParallelEmbedding(5, HIDDEN, size, sequence_parallel=True, seed=0)
            own(torch.zeros(7, 2, dtype=torch.long))

    cpu_ranks.run(body)
