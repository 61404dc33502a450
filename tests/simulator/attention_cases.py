"""torch_npu's fused attention beside softmax(scale * Q K^T) V written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.simulator.fused_cases import close, compare

COMPRESSED = 2048  # side of the triangle that stands for a causal mask of any size
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "BNSD": lambda t: t,
    "BSND": lambda t: t.transpose(1, 2),
    "BSH": lambda t: t.transpose(1, 2).flatten(2),
    "SBH": lambda t: t.permute(2, 0, 1, 3).flatten(2),
}


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, masked: Tensor | None, pse: Tensor | None = None
) -> Tensor:
    """(B, N, S, D) tensors; `masked` is true where a score is left out; a row without scores gives zeros."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2)
    if pse is not None:
        scores = scores + pse
    scores = scores / math.sqrt(query.shape[-1])
    if masked is None:
        return scores.softmax(-1) @ value
    return scores.masked_fill(masked, -torch.inf).softmax(-1).nan_to_num(0) @ value


def triangle() -> Tensor:
    """The compressed causal mask on the NPU."""
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool).triu(1).npu()


def masked_by_mode(mode: int, queries: int, keys: int, pre: int, following: int) -> Tensor:
    """What sparse modes 2 to 4 leave out."""
    distance = torch.arange(keys)[None] - torch.arange(queries)[:, None]
    if mode == 2:
        return distance > 0
    distance = distance - (keys - queries)
    return distance > 0 if mode == 3 else (distance > following) | (distance < -pre)


def make(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_layout(
    layout: str, dtype: torch.dtype, mode: int, batch: int, key_heads: int, queries: int, keys: int
) -> None:
    """One layout and sparse mode, with two query heads for each key head."""
    heads, size = 2 * key_heads, 8
    arrange = LAYOUTS[layout]
    shapes = [(batch, heads, queries, size), *[(batch, key_heads, keys, size)] * 2]
    values = [make(shape, seed, dtype) for seed, shape in enumerate(shapes)]
    on_npu = [arrange(value).contiguous().npu().requires_grad_() for value in values]
    on_cpu = [arrange(value).float().contiguous().requires_grad_() for value in values]
    pre, following = 3, 1
    options: dict = {"scale": 1 / math.sqrt(size), "sparse_mode": mode}
    masked = None
    if mode == 1:
        masked = make((queries, keys), 9, torch.float32) > 0.8
        options["atten_mask"] = masked.npu()
    elif mode:
        masked = masked_by_mode(mode, queries, keys, pre, following)
        options |= {"atten_mask": triangle(), "pre_tockens": pre, "next_tockens": following}
    fused = torch.ops.npu.npu_fusion_attention(*on_npu, heads, layout, **options)
    plain = plain_attention(*[_by_head(t, layout, size) for t in on_cpu], masked)
    compare((fused[0],), (arrange(plain),), on_npu, on_cpu, dtype)


def _by_head(tensor: Tensor, layout: str, size: int) -> Tensor:
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    split = tensor.unflatten(-1, (-1, size))
    return split.transpose(1, 2) if layout == "BSH" else split.permute(1, 2, 0, 3)


def check_packed(dtype: torch.dtype, lengths: list[int]) -> None:
    """The TND layout: sequences one after the other, causal each for itself."""
    heads, size, total = 2, 8, sum(lengths)
    ends = torch.tensor(lengths).cumsum(0).tolist()
    values = [make((total, heads, size), seed, dtype) for seed in range(3)]
    on_npu = [value.npu().requires_grad_() for value in values]
    on_cpu = [value.float().requires_grad_() for value in values]
    fused = torch.ops.npu.npu_fusion_attention(
        *on_npu, heads, "TND", scale=1 / math.sqrt(size), sparse_mode=3, atten_mask=triangle(),
        actual_seq_qlen=ends, actual_seq_kvlen=ends,
    )  # fmt: skip
    parts = []
    for sequence in zip(*[t.split(lengths) for t in on_cpu], strict=True):
        rows = [t.transpose(0, 1)[None] for t in sequence]
        masked = masked_by_mode(3, len(sequence[0]), len(sequence[0]), 0, 0)
        parts.append(plain_attention(*rows, masked)[0].transpose(0, 1))
    compare((fused[0],), (torch.cat(parts),), on_npu, on_cpu, dtype)


def check_bias_and_statistics(size: int) -> None:
    """A position bias gets its gradient; the softmax's maximum and sum come out eight times each."""
    values = [make((2, 2, size, 8), seed, torch.float32) for seed in range(3)]
    values.append(make((1, 2, size, size), 3, torch.float32))
    on_npu = [value.npu().requires_grad_() for value in values]
    on_cpu = [value.clone().requires_grad_() for value in values]
    query, key, value, pse = on_npu
    fused = torch.ops.npu.npu_fusion_attention(query, key, value, 2, "BNSD", pse=pse, scale=1 / math.sqrt(8))
    compare((fused[0],), (plain_attention(*on_cpu[:3], None, on_cpu[3]),), on_npu, on_cpu, torch.float32)
    scores = ((values[0] @ values[1].transpose(-1, -2)) + values[3]) / math.sqrt(8)
    maximum = scores.amax(-1, keepdim=True)
    close(fused[1], maximum.expand(2, 2, size, 8), torch.float32)
    close(fused[2], (scores - maximum).exp().sum(-1, keepdim=True).expand(2, 2, size, 8), torch.float32)


def check_sink(size: int) -> None:
    """A sink adds to the denominator alone and gets its gradient."""
    values = [make((1, 2, size, 8), seed, torch.float32) for seed in range(3)] + [
        make((2,), 3, torch.float32)
    ]
    on_npu = [value.npu().requires_grad_() for value in values]
    on_cpu = [value.clone().requires_grad_() for value in values]
    fused = torch.ops.npu.npu_fusion_attention(*on_npu[:3], 2, "BNSD", scale=0.5, sink=on_npu[3])
    query, key, value, sink = on_cpu
    scores = query @ key.transpose(-1, -2) * 0.5
    with_sink = torch.cat((scores, sink.view(1, 2, 1, 1).expand(1, 2, size, 1)), -1).softmax(-1)
    compare((fused[0],), (with_sink[..., :-1] @ value,), on_npu, on_cpu, torch.float32)


def check_dropout(size: int) -> None:
    """Dropout keeps the asked share, repeats with the seed, and its backward uses the forward's mask."""
    keep = 0.75
    query = torch.zeros(1, 2, size, size).npu()
    value = torch.eye(size).expand(1, 2, size, size).npu().requires_grad_()
    torch.npu.manual_seed(7)
    first = torch.ops.npu.npu_fusion_attention(query, query, value, 2, "BNSD", keep_prob=keep)
    torch.npu.manual_seed(7)
    again = torch.ops.npu.npu_fusion_attention(query, query, value, 2, "BNSD", keep_prob=keep)
    other = torch.ops.npu.npu_fusion_attention(query, query, value, 2, "BNSD", keep_prob=keep)
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    weights = first[0].detach().cpu()  # the value is the identity: the output is the dropped weights
    kept = weights > 0
    assert abs(kept.float().mean().item() - keep) < 0.03
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / size / keep))
    grad = torch.autograd.grad(first[0].sum(), value)[0]
    close(grad, weights.sum(2)[..., None].expand(1, 2, size, size), torch.float32)
