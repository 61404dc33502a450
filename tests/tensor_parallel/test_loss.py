"""vocab_parallel_cross_entropy is torch's cross_entropy of the gathered logits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from npu_plugins.tensor_parallel import TensorParallelError, vocab_parallel_cross_entropy
from tests.harness.pool import World
from tests.tensor_parallel.comparing import assert_close, device, group, laid_out, normal, own_piece

SEQ, BATCH, WIDTH = 5, 3, 24  # WIDTH: columns of all ranks, padding included
CASES = list(
    itertools.product(
        [24, 21, 5],  # vocabulary: none, some and whole ranks of padding
        [0.0, 0.1, 1.0],  # label smoothing
        ["mean", "sum", "none"],
        ["none", "some", "all"],  # ignored targets
        ["contiguous", "transposed", "expanded"],
    )
)


def data(
    vocab: int, ignored: str, layout: str, ignore_index: int = -100
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits `[SEQ, BATCH, WIDTH]`, large ones among them, and targets `[SEQ, BATCH]`."""
    logits = laid_out(normal(1, SEQ, BATCH, WIDTH) * 5 + 50, layout)
    target = torch.randint(0, vocab, (SEQ, BATCH), generator=torch.Generator().manual_seed(2))
    target[0, 0], target[-1, -1] = 0, vocab - 1
    if ignored != "none":
        target[1 if ignored == "some" else slice(None)] = ignore_index
    return logits, target


def both(
    logits: torch.Tensor, target: torch.Tensor, vocab: int, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss and own logits' gradient, of torch and of ours."""
    full = logits.clone().requires_grad_()
    expected = F.cross_entropy(full[..., :vocab].flatten(0, 1), target.flatten(), **options)
    expected = expected.view_as(target) if expected.dim() else expected
    own = own_piece(logits, -1).to(device()).detach().requires_grad_()
    got = vocab_parallel_cross_entropy(own, target.to(device()), group(), vocab_size=vocab, **options)
    weight = normal(3, *expected.shape)
    expected.backward(weight)
    got.backward(weight.to(device()))
    return got, own.grad, expected, own_piece(full.grad, -1)


def test_every_mode(tp_ranks: World) -> None:
    def body() -> None:
        for vocab, smoothing, reduction, ignored, layout in CASES:
            mode = (vocab, smoothing, reduction, ignored, layout)
            logits, target = data(vocab, ignored, layout)
            got, grad, expected, expected_grad = both(
                logits, target, vocab, label_smoothing=smoothing, reduction=reduction
            )
            if reduction == "mean" and ignored == "all":
                assert got.isnan() and expected.isnan()
                continue
            scale = max(1.0, expected_grad.abs().max().item())
            assert_close((*mode, "loss"), got, expected)
            # A rank that holds padding only has a gradient of zeros, exactly.
            assert (grad.cpu() - expected_grad).abs().max() <= 1e-6 * scale, mode
            assert bool(grad.any()) == bool(expected_grad.any()), mode

    tp_ranks.run(body)


def test_neither_logits_nor_target_are_written_to(tp_ranks: World) -> None:
    """Megatron-core's loss leaves exponentials in fp32 logits."""

    def body() -> None:
        for dtype in (torch.float32, torch.bfloat16):
            logits, target = data(24, "some", "contiguous")
            own, target = own_piece(logits, -1).to(device(), dtype).requires_grad_(), target.to(device())
            before = own.detach().clone(), target.clone()
            vocab_parallel_cross_entropy(own, target, group(), label_smoothing=0.1).backward()
            assert torch.equal(own, before[0]) and torch.equal(target, before[1])

    tp_ranks.run(body)


def test_all_ranks_agree_under_label_smoothing(tp_ranks: World) -> None:
    """Megatron-core smooths over the rank's own vocabulary: ranks disagree by 0.053."""

    def body() -> float:
        logits, target = data(24, "some", "contiguous")
        own = own_piece(logits, -1).to(device())
        return vocab_parallel_cross_entropy(own, target.to(device()), group(), label_smoothing=0.3).item()

    assert len(set(tp_ranks.run(body))) == 1


def test_another_ignore_index(cpu_ranks: World) -> None:
    """Also one that is an id of the vocabulary; −100 gives loss and gradient in megatron-core."""

    def body() -> None:
        for ignore_index in (-100, -1, 3):
            logits, target = data(24, "some", "contiguous", ignore_index)
            got, grad, expected, expected_grad = both(logits, target, 24, ignore_index=ignore_index)
            assert_close((ignore_index, "loss"), got, expected)
            assert_close((ignore_index, "grad"), grad, expected_grad)
            assert not grad[target == ignore_index].any()

    cpu_ranks.run(body)


def test_twice_through_one_graph(cpu_ranks: World) -> None:
    """A second backward pass (retain_graph) gives the same gradient again."""

    def body() -> None:
        logits, target = data(24, "none", "contiguous")
        own = own_piece(logits, -1).detach().requires_grad_()
        loss = vocab_parallel_cross_entropy(own, target, group())
        loss.backward(retain_graph=True)
        first = own.grad.clone()
        loss.backward()
        assert torch.equal(own.grad, 2 * first)

    cpu_ranks.run(body)


def test_half_precision_and_double(tp_ranks: World) -> None:
    def body() -> None:
        bounds = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
        if device().type == "cpu":  # HCCL has no fp64
            bounds[torch.float64] = 1e-12
        for dtype, bound in bounds.items():
            logits, target = data(24, "some", "contiguous")
            logits = logits.to(dtype)
            exact = logits.double().clone().requires_grad_()
            expected = F.cross_entropy(exact.flatten(0, 1), target.flatten())
            expected.backward()
            own = own_piece(logits, -1).to(device()).requires_grad_()
            got = vocab_parallel_cross_entropy(own, target.to(device()), group())
            got.backward()
            assert got.dtype == torch.promote_types(dtype, torch.float32) and own.grad.dtype == dtype
            assert_close((dtype, "loss"), got, expected, 1e-12 if dtype == torch.float64 else 1e-6)
            assert_close((dtype, "grad"), own.grad, own_piece(exact.grad, -1), bound)

    tp_ranks.run(body)


def test_logits_masked_with_minus_infinity(cpu_ranks: World) -> None:
    def body() -> None:
        logits, target = data(24, "none", "contiguous")
        logits[..., 6:] = -torch.inf  # whole ranks of them
        target = target % 6
        got, grad, expected, expected_grad = both(logits, target, 24)
        assert_close("loss", got, expected)
        assert (grad - expected_grad).abs().max() <= 1e-6

    cpu_ranks.run(body)


def test_without_a_group() -> None:
    logits, target = data(24, "some", "contiguous")
    got = vocab_parallel_cross_entropy(logits, target, label_smoothing=0.1)
    assert_close("loss", got, F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1))


def test_bad_arguments_are_refused(cpu_ranks: World) -> None:
    def body() -> None:
        own, target = normal(0, SEQ, BATCH, WIDTH // dist.get_world_size()), torch.zeros(SEQ, BATCH).long()
        for options, words in (
            ({"label_smoothing": 1.5}, "label_smoothing is 1.5; give 0 to 1"),
            ({"reduction": "average"}, "reduction is 'average'; give 'mean', 'sum' or 'none'"),
            ({"vocab_size": 25}, "vocab_size is 25, but .* hold 24"),
            ({"vocab_size": 0}, "vocab_size is 0"),
        ):
            with pytest.raises(TensorParallelError, match=words):
                vocab_parallel_cross_entropy(own, target, group(), **options)
        with pytest.raises(TensorParallelError, match=r"want targets of shape \(5, 3\), but they are \(5,\)"):
            vocab_parallel_cross_entropy(own, target[:, 0], group())
        for wrong in (24, -1):
            with pytest.raises(TensorParallelError, match=f"target {wrong} is neither one of 24 ids"):
                vocab_parallel_cross_entropy(own, target + wrong, group())

    cpu_ranks.run(body)
