"""Each fused operator of torch_npu beside the plain PyTorch formula it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class FusedCase:
    """A fused operator, its formula, and the shapes of its inputs for (batch, rows, size); size is even.

    `fused` gets tensors on the NPU, `plain` float32 ones on the CPU; both return the differentiable outputs.
    """

    fused: Callable[..., tuple[Tensor, ...]]
    plain: Callable[..., tuple[Tensor, ...]]
    shapes: Callable[[int, int, int], list[tuple[int, ...]]]
    has_gradient: bool = True  # torch_npu has no backward for a few


def _op(name: str) -> Callable:
    """The operator `npu::name`, looked up when it is called: torch_npu may not be importable here."""
    return lambda *args, **kwargs: getattr(torch.ops.npu, name)(*args, **kwargs)


def _first(name: str, *options: object, **named: object) -> Callable[..., tuple[Tensor, ...]]:
    """The operator's first output only."""

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        out = _op(name)(*tensors, *options, **named)
        return (out,) if isinstance(out, Tensor) else (out[0],)

    return call


def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (functional.rms_norm(x, weight.shape, weight, 1e-6),)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


def swiglu(x: Tensor) -> tuple[Tensor, ...]:
    left, right = x.chunk(2, -1)
    return (functional.silu(left) * right,)


def geglu(x: Tensor) -> tuple[Tensor, ...]:
    left, right = x.chunk(2, -1)
    return (left * functional.gelu(right, approximate="tanh"),)


def deep_norm(x: Tensor, residual: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (functional.layer_norm(0.3 * x + residual, weight.shape, weight, bias, 1e-6),)


def _three(batch: int, rows: int, size: int) -> list[tuple[int, ...]]:
    return [(batch, rows, size)]


def _four(batch: int, rows: int, size: int) -> list[tuple[int, ...]]:
    return [(batch, rows, 2, size), (1, rows, 1, size), (1, rows, 1, size)]


CASES: dict[str, FusedCase] = {
    "rms_norm": FusedCase(_first("npu_rms_norm"), rms_norm, lambda b, r, s: [(b, r, s), (s,)]),
    "add_rms_norm": FusedCase(
        lambda a, b, w: _op("npu_add_rms_norm")(a, b, w)[::2],
        lambda a, b, w: (*rms_norm(a + b, w), a + b),
        lambda b, r, s: [(b, r, s), (b, r, s), (s,)],
        has_gradient=False,
    ),
    "add_layer_norm": FusedCase(
        _first("npu_add_layer_norm"),
        lambda a, b, w, bias: (functional.layer_norm(a + b, w.shape, w, bias),),
        lambda b, r, s: [(b, r, s), (b, r, s), (s,), (s,)],
    ),
    "deep_norm": FusedCase(
        lambda *t: _op("npu_deep_norm")(*t)[2:], deep_norm, lambda b, r, s: [(b, r, s), (b, r, s), (s,), (s,)]
    ),
    "rotary_mul_half": FusedCase(
        _first("npu_rotary_mul"), lambda x, cos, sin: (x * cos + rotate_half(x) * sin,), _four
    ),
    "rotary_mul_interleave": FusedCase(
        _first("npu_rotary_mul", "interleave"), lambda x, cos, sin: (x * cos + rotate_pairs(x) * sin,), _four
    ),
    "swiglu": FusedCase(_first("npu_swiglu"), swiglu, _three),
    "geglu": FusedCase(_first("npu_geglu"), geglu, _three),
    "gelu": FusedCase(_first("npu_gelu"), lambda x: (functional.gelu(x),), _three),
    "gelu_tanh": FusedCase(
        _first("npu_gelu", approximate="tanh"), lambda x: (functional.gelu(x, approximate="tanh"),), _three
    ),
    "fast_gelu": FusedCase(_first("fast_gelu"), lambda x: (x * torch.sigmoid(1.702 * x),), _three),
    "silu": FusedCase(_first("npu_silu"), lambda x: (functional.silu(x),), _three),
    "mish": FusedCase(_first("npu_mish"), lambda x: (functional.mish(x),), _three),
    "linear": FusedCase(
        _first("npu_linear"),
        lambda x, w, b: (functional.linear(x, w, b),),
        lambda b, r, s: [(b * r, s), (r, s), (r,)],
    ),
    "batched_product": FusedCase(
        lambda a, b: (_op("npu_bmmV2")(a, b, []),),
        lambda a, b: (a @ b,),
        lambda b, r, s: [(b, r, s), (b, s, r)],
    ),
    "confusion_transpose": FusedCase(
        lambda x: (
            _op("npu_confusion_transpose")(x, [0, 2, 1], [x.shape[0] * x.shape[2], x.shape[1]], True),
        ),
        lambda x: (x.permute(0, 2, 1).reshape(-1, x.shape[1]),),
        _three,
    ),
    "maximum": FusedCase(_first("npu_max", 1), lambda x: (x.max(1).values,), _three),
    "minimum": FusedCase(_first("npu_min", 1), lambda x: (x.min(1).values,), _three),
    "dtype_cast": FusedCase(
        lambda x: (_op("_npu_dtype_cast")(x, torch.float32),), lambda x: (x.float(),), _three
    ),
    "format_cast": FusedCase(lambda x: (_op("npu_format_cast")(x, 2),), lambda x: (x.clone(),), _three),
}


def check(name: str, dtype: torch.dtype, batch: int, rows: int, size: int) -> None:
    """Outputs and gradients of the fused operator equal those of its formula in float32."""
    case = CASES[name]
    generator = torch.Generator().manual_seed(batch * 100 + rows * 10 + size)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in case.shapes(batch, rows, size)]
    on_npu = [value.npu().requires_grad_(case.has_gradient) for value in values]
    on_cpu = [value.float().requires_grad_(case.has_gradient) for value in values]
    compare(case.fused(*on_npu), case.plain(*on_cpu), on_npu, on_cpu, dtype)


def compare(
    fused: tuple[Tensor, ...],
    plain: tuple[Tensor, ...],
    on_npu: list[Tensor],
    on_cpu: list[Tensor],
    dtype: torch.dtype,
) -> None:
    """Assert that outputs agree, and the gradients of a weighted sum of them if the inputs want any."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(out.shape, generator=generator).to(dtype) for out in plain]
    for ours, expected in zip(fused, plain, strict=True):
        close(ours, expected, dtype)
    if not on_npu[0].requires_grad:
        return
    sum((out.float() * w.npu().float()).sum() for out, w in zip(fused, weights, strict=True)).backward()
    sum((out * w.float()).sum() for out, w in zip(plain, weights, strict=True)).backward()
    for ours, expected in zip(on_npu, on_cpu, strict=True):
        assert ours.grad is not None and expected.grad is not None
        close(ours.grad, expected.grad, dtype)


def close(ours: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal within the rounding of `dtype`, relative to the largest value."""
    assert ours.device.type == "npu"
    scale = max(1.0, expected.detach().abs().max().item())
    torch.testing.assert_close(
        ours.detach().float().cpu(), expected.detach().float(), rtol=0, atol=TOLERANCE[dtype] * scale
    )
