"""Merged and shared layers, QKV projections and MLPs against the unsharded attention and MLP."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    GatedParallelMLP,
    MergedColumnParallelLinear,
    ParallelMLP,
    QKVParallelLinear,
    RowParallelLinear,
    SharedColumnParallelLinear,
    TensorParallelError,
    WeightGradients,
    copy_to_region,
    gather_full,
    shard_of,
)
from tests.harness.pool import World
from tests.tensor_parallel.comparing import (
    assert_close,
    assert_same_gradients,
    count_calls,
    device,
    group,
    normal,
    own_piece,
)

SEQ, BATCH, HIDDEN, HEADS, HEAD_DIM = 8, 2, 12, 8, 4


class Attention(nn.Module):
    """Grouped-query attention with one [q | k | v] weight, unsharded."""

    def __init__(self, kv_heads: int, bias: bool) -> None:
        super().__init__()
        self.sizes = [HEADS * HEAD_DIM, kv_heads * HEAD_DIM, kv_heads * HEAD_DIM]
        self.qkv = nn.Linear(HIDDEN, sum(self.sizes), bias)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [part.unflatten(-1, (-1, HEAD_DIM)) for part in self.qkv(x).split(self.sizes, -1)]
        return self.out(attend(*parts))


class ShardedAttention(nn.Module):
    """The same of our layers."""

    def __init__(self, kv_heads: int, bias: bool, sequence: bool, store: WeightGradients | None) -> None:
        super().__init__()
        options = {"group": group(), "bias": bias, "sequence_parallel": sequence, "weight_gradients": store}
        self.qkv = QKVParallelLinear(HIDDEN, HEAD_DIM, HEADS, kv_heads, device=device(), **options)
        self.out = RowParallelLinear(HEADS * HEAD_DIM, HIDDEN, device=device(), **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(attend(*self.qkv(x)))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention of `[seq, batch, heads, dim]`, query heads sharing key-value heads in order."""
    k, v = (t.repeat_interleave(q.size(2) // t.size(2), 2) for t in (k, v))
    weights = torch.einsum("sbhd,tbhd->bhst", q, k).softmax(-1)
    return torch.einsum("bhst,tbhd->sbhd", weights, v).flatten(2)


def qkv_full(qkv: QKVParallelLinear, name: str, gradients: bool) -> torch.Tensor:
    """The full [q | k | v] weight or bias of our projection, or its gradient."""
    layers = [qkv.merged] if qkv.merged is not None else [qkv.query, qkv.key, qkv.value]
    found = []
    for layer in layers:
        parameter = getattr(layer, name)
        value = parameter.grad if gradients else parameter
        found.append(gather_full(value, shard_of(parameter), group()))
    return torch.cat(found)


def load(parameter: nn.Parameter, full: torch.Tensor) -> None:
    """Put the local part of `full` into a parameter."""
    shard = shard_of(parameter)
    with torch.no_grad():
        parameter.copy_(full if shard is None else shard.take(full))


def load_attention(own: ShardedAttention, full: Attention) -> None:
    """Give ours the unsharded one's weights."""
    for name in ("weight", "bias") if full.qkv.bias is not None else ("weight",):
        source = getattr(full.qkv, name)
        if own.qkv.merged is not None:
            load(getattr(own.qkv.merged, name), source)
        else:
            parts = source.split(full.sizes)
            for layer, part in zip((own.qkv.query, own.qkv.key, own.qkv.value), parts, strict=True):
                load(getattr(layer, name), part)
        load(getattr(own.out, name), getattr(full.out, name))


def test_attention(tp_ranks: World) -> None:
    """As many key-value heads as query heads, fewer, fewer than ranks, and one; every mode."""

    def body() -> None:
        for kv_heads, bias, sequence, deferred in itertools.product(
            (8, 4, 2, 1), (True, False), (False, True), (False, True)
        ):
            mode = (kv_heads, bias, sequence, deferred)
            torch.manual_seed(0)
            full, store = Attention(kv_heads, bias), WeightGradients() if deferred else None
            own = ShardedAttention(kv_heads, bias, sequence, store)
            load_attention(own, full)
            full = full.double()  # two softmaxes in fp32 differ by more than one does from the truth
            piece = (lambda t: own_piece(t, 0)) if sequence else (lambda t: t)
            x, dy = normal(1, SEQ, BATCH, HIDDEN).requires_grad_(), normal(2, SEQ, BATCH, HIDDEN)
            y = full(x.double())
            own_x = piece(x.detach()).to(device()).requires_grad_()
            got = own(own_x)
            for micro_batch in (0, 1):  # a second pass through the same graph adds to the gradients
                y.backward(dy.double(), retain_graph=micro_batch == 0)
                if store is None:
                    got.backward(piece(dy).to(device()), retain_graph=micro_batch == 0)
                    continue
                with store.at(0, micro_batch):
                    got.backward(piece(dy).to(device()), retain_graph=micro_batch == 0)
                store.run(0, micro_batch)
            assert_close((*mode, "y"), got, piece(y))
            assert_close((*mode, "dx"), own_x.grad, piece(x.grad))
            for name in ("weight", "bias") if bias else ("weight",):
                expected = getattr(full.qkv, name)
                assert torch.equal(qkv_full(own.qkv, name, False).cpu(), expected.float()), mode
                # The gradient of the key's bias is zero but for rounding: compare with the whole of it.
                assert_close((*mode, name), qkv_full(own.qkv, name, True), expected.grad)
            assert_same_gradients(mode, own.out, full.out)

    tp_ranks.run(body)


def test_heads_of_each_rank(cpu_ranks: World) -> None:
    """Key-value heads that every rank has its own of are sharded, shared ones are replicated."""

    def body() -> list[tuple[int, int, bool]]:
        found = []
        for kv_heads in (8, 2, 1):
            qkv = QKVParallelLinear(HIDDEN, HEAD_DIM, HEADS, kv_heads, group=group(), seed=0)
            q, k, v = qkv(normal(0, 3, 1, HIDDEN))
            assert q.shape == (3, 1, qkv.local_heads, HEAD_DIM)
            assert k.shape == v.shape == (3, 1, qkv.local_kv_heads, HEAD_DIM)
            marks = [hasattr(p, "tensor_model_parallel") for p in qkv.parameters()]
            found.append((qkv.local_heads, qkv.local_kv_heads, all(marks)))
        return found

    size = cpu_ranks.size
    two_each = (HEADS // size, 2 // size, True) if size == 2 else (HEADS // size, 1, False)
    expected = [(HEADS // size, HEADS // size, True), two_each, (HEADS // size, 1, False)]
    assert cpu_ranks.run(body) == [expected] * size


def test_qkv_reduces_the_input_gradient_once(cpu_ranks: World) -> None:
    def body() -> list[int]:
        calls = []
        for kv_heads in (8, 1):
            qkv = QKVParallelLinear(HIDDEN, HEAD_DIM, HEADS, kv_heads, group=group(), bias=False, seed=0)
            for parameter in qkv.parameters():
                parameter.requires_grad_(False)
            x = normal(0, 3, 1, HIDDEN).requires_grad_()
            calls.append(
                count_calls(["all_reduce"], lambda q=qkv, x=x: sum(t.sum() for t in q(x)).backward())[
                    "all_reduce"
                ]
            )
        return calls

    assert cpu_ranks.run(body) == [[1, 1]] * cpu_ranks.size


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x)), unsharded, with [gate | up] in one weight; or down(gelu(up(x)))."""

    def __init__(self, gated: bool, bias: bool) -> None:
        super().__init__()
        self.gated = gated
        self.up = nn.Linear(HIDDEN, 16 * (1 + gated), bias)
        self.down = nn.Linear(16, HIDDEN, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.gated:
            return self.down(F.gelu(self.up(x)))
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


def test_mlps(tp_ranks: World) -> None:
    def body() -> None:
        for gated, bias, sequence, deferred in itertools.product((False, True), repeat=4):
            mode = (gated, bias, sequence, deferred)
            store = WeightGradients() if deferred else None
            torch.manual_seed(0)
            full = MLP(gated, bias)
            torch.manual_seed(0)
            own = (GatedParallelMLP if gated else ParallelMLP)(
                HIDDEN,
                16,
                group=group(),
                bias=bias,
                sequence_parallel=sequence,
                weight_gradients=store,
                device=device(),
            )
            piece = (lambda t: own_piece(t, 0)) if sequence else (lambda t: t)
            x, dy = normal(1, SEQ, BATCH, HIDDEN).requires_grad_(), normal(2, SEQ, BATCH, HIDDEN)
            y = full(x)
            y.backward(dy)
            own_x = piece(x.detach()).to(device()).requires_grad_()
            got = own(own_x)
            with store.at(0, 0) if store else torch.enable_grad():
                got.backward(piece(dy).to(device()))
            if store:
                store.run(0, 0)
            assert_close((*mode, "y"), got, piece(y))
            assert_close((*mode, "dx"), own_x.grad, piece(x.grad))
            assert_same_gradients(mode, own, full)

    tp_ranks.run(body)


def test_one_input_reduction_for_several_layers(tp_ranks: World) -> None:
    """reduce_input_gradient=False behind one copy_to_region: one all-reduce."""

    def body() -> None:
        full = [nn.Linear(HIDDEN, 8) for _ in range(3)]
        own = [
            ColumnParallelLinear(
                HIDDEN, 8, group=group(), reduce_input_gradient=False, seed=0, device=device()
            )
            for _ in full
        ]
        for mine, theirs in zip(own, full, strict=True):
            torch.manual_seed(0)
            theirs.reset_parameters()
            assert torch.equal(gather_full(mine.weight, shard_of(mine.weight), group()).cpu(), theirs.weight)
        x = normal(1, SEQ, BATCH, HIDDEN).requires_grad_()
        sum((n + 1) * layer(x).sin().sum() for n, layer in enumerate(full)).backward()
        own_x = x.detach().to(device()).requires_grad_()

        def run() -> None:
            entered = copy_to_region(own_x, group())
            sum((n + 1) * layer(entered).sin().sum() for n, layer in enumerate(own)).backward()

        assert count_calls(["all_reduce"], run) == {"all_reduce": 1}
        assert_close("dx", own_x.grad, x.grad)
        for mine, theirs in zip(own, full, strict=True):
            assert_same_gradients("layers", mine, theirs)

    tp_ranks.run(body)


def test_bad_sizes_are_refused(cpu_ranks: World) -> None:
    def body() -> None:
        size = dist.get_world_size()
        for make, words in (
            (lambda: QKVParallelLinear(12, 4, 7, 7, size), f"num_heads 7 cannot be divided over {size}"),
            (lambda: QKVParallelLinear(12, 4, 8, 3, size), "3 key-value heads do not divide 8 query heads"),
            (lambda: QKVParallelLinear(12, 4, 12, 3, size), f"3 key-value heads and {size} tensor-parallel"),
            (lambda: MergedColumnParallelLinear(12, [8, 5], size), "part 1, of length 5 cannot be divided"),
            (
                lambda: MergedColumnParallelLinear(12, [8, 8], size, gather_output=True),
                "gather_output is",
            ),
            (lambda: SharedColumnParallelLinear(12, 8, 3, size), f"3 units must divide both {size} ranks"),
            (lambda: ParallelMLP(12, 15, size), f"out_features 15 cannot be divided over {size}"),
            (lambda: ParallelMLP(12, 16, size, gather_output=True), "gather_output cannot be an option"),
        ):
            with pytest.raises(TensorParallelError, match=words):
                make()

    cpu_ranks.run(body)
