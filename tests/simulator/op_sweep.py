"""Runs torch's own operator samples on an NPU and on the CPU and tells where the two differ.

The samples are those of torch's operator tests (OpInfo): over six hundred operators with shapes, dtypes and
keyword arguments chosen by their authors. Imported by ranks only: the table takes seconds to load.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

SAMPLES = 4  # for each operator and dtype

# Computed in higher precision on devices other than the CPU, by torch itself; the rest must agree to 1e-5.
ROUNDED_LATER = {
    "nn.functional.linear_cross_entropy.chunked": 2e-2,
    "nn.functional.linear_cross_entropy.chunked_none": 2e-2,
}

# Their values are drawn or left over: only shape, dtype and device can be compared.
UNDETERMINED = {
    "bernoulli",
    "cauchy",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "new_empty",
    "new_empty_strided",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention",
    "normal",
    "normal.in_place",
    "normal.number_mean",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "svd_lowrank",
    "uniform",
}

# What a card with torch_npu does not have either, or what the samples do not say in a way that can be moved.
LEFT_OUT = {
    "sparse.sampled_addmm": "sparse tensors are not simulated",
    "sparse.mm.reduce": "sparse tensors are not simulated",
    "to_sparse": "sparse tensors are not simulated",
    "to": "torch_npu refuses channels_last in .to()",
    "as_strided": "its in-place form moves the start of the tensor",
    "tensor_split": "takes its indices on the CPU on every device",
    "as_strided.partial_views": "the sample is a view of a larger storage, which a copy does not keep",
}


def name_of(op: OpInfo) -> str:
    """The operator with its variant, as in torch's tests."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def move(value: Any, device: str) -> Any:
    """`value` with every tensor in it on `device`, with the same strides and need of a gradient."""
    if isinstance(value, torch.Tensor):
        moved = (
            torch.empty_like(value, device=device)
            if device != "cpu"
            else torch.empty_like(value, device="cpu")
        )
        moved.copy_(value.detach())
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(move(item, device) for item in value)
    if isinstance(value, dict):
        return {key: move(item, device) for key, item in value.items()}
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(device)
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of a nested result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def compare(op: OpInfo, actual: Any, expected: Any) -> str:
    """The first difference in words, or ''."""
    ours, theirs = tensors_in(actual), tensors_in(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors instead of {len(theirs)}"
    if not theirs:
        same = isinstance(actual, type(expected)) and (actual == expected or name_of(op) in UNDETERMINED)
        return "" if same else f"{actual!r} instead of {expected!r}"
    for one, other in zip(ours, theirs, strict=True):
        if one.device.type != "npu":
            return f"the result lies on {one.device}"
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{one.dtype} {tuple(one.shape)} instead of {other.dtype} {tuple(other.shape)}"
        if name_of(op) in UNDETERMINED:
            continue
        tolerance = ROUNDED_LATER.get(name_of(op), 1e-5)
        try:
            torch.testing.assert_close(
                one.detach().cpu(), other.detach(), equal_nan=True, rtol=tolerance, atol=tolerance
            )
        except AssertionError as difference:
            return " ".join(str(difference).split())[:300]
    return ""


def on_npu(op: Callable[..., Any], sample: SampleInput, **more: Any) -> Any:
    """`op` on the sample, moved to the NPU."""
    args, kwargs = move((sample.args, sample.kwargs), "npu")
    return op(move(sample.input, "npu"), *args, **kwargs, **more)


def forward(op: OpInfo, sample: SampleInput) -> str | None:
    """The operator itself."""
    expected = on_cpu(partial(op, move(sample.input, "cpu"), *sample.args, **sample.kwargs))
    return None if expected is None else compare(op, on_npu(op, sample), expected)


def in_place(op: OpInfo, sample: SampleInput) -> str | None:
    """Its in-place form: same result, in the same memory, and the argument itself comes back."""
    if not op.inplace_variant or sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
        return None
    mine, theirs = move(sample.input, "npu"), move(sample.input, "cpu")
    if on_cpu(partial(op.inplace_variant, theirs, *sample.args, **sample.kwargs)) is None:
        return None
    address = mine.data_ptr()
    args, kwargs = move((sample.args, sample.kwargs), "npu")
    if op.inplace_variant(mine, *args, **kwargs) is not mine or mine.data_ptr() != address:
        return "the in-place form returned another tensor"
    return compare(op, mine, theirs)


def into_out(op: OpInfo, sample: SampleInput) -> str | None:
    """Its out= form: into a tensor that holds something else, then into one that needs resizing."""
    result = on_cpu(partial(op, sample.input, *sample.args, **sample.kwargs)) if op.supports_out else None
    if not isinstance(result, torch.Tensor):
        return None
    for shape in (result.shape, (0,)):
        mine, theirs = (torch.zeros(shape, dtype=result.dtype, device=device) for device in ("npu", "cpu"))
        if on_cpu(partial(op, sample.input, *sample.args, **sample.kwargs, out=theirs)) is None:
            continue
        if on_npu(op, sample, out=mine) is not mine:
            return "out= returned another tensor"
        if difference := compare(op, mine, theirs):
            return f"out= of shape {tuple(shape)}: {difference}"
    return ""


def backward(op: OpInfo, sample: SampleInput) -> str | None:
    """Gradients of its inputs."""
    if not op.supports_autograd or name_of(op) in UNDETERMINED:
        return None
    expected = on_cpu(partial(gradients, op, *move((sample.input, sample.args, sample.kwargs), "cpu")))
    if not expected:
        return None
    actual = gradients(op, *move((sample.input, sample.args, sample.kwargs), "npu"))
    return compare(op, actual, expected)


def gradients(op: OpInfo, given: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Gradients of the sum of all outputs, of every floating-point input that has one."""
    leaves = [leaf.requires_grad_() for leaf in tensors_in((given, args)) if leaf.is_floating_point()]
    outputs = [output for output in tensors_in(op(given, *args, **kwargs)) if output.requires_grad]
    if not outputs or not leaves:
        return []
    ones = [torch.ones_like(output) for output in outputs]
    found = torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def on_cpu(call: Callable[[], Any]) -> Any:
    """The result of `call`, or None where the CPU itself refuses these arguments."""
    try:
        return call()
    except Exception:
        return None


def samples_of(op: OpInfo, dtype: torch.dtype) -> Iterator[SampleInput]:
    """The first few samples; op.sample_inputs() would record a stack for each and take 20 times as long."""
    torch.manual_seed(0)
    return islice(op.sample_inputs_func(op, "cpu", dtype, False), SAMPLES)


def sweep(part: int, parts: int, dtype_name: str, form: str) -> tuple[int, list[str]]:
    """Every `parts`-th operator from `part` in one form: how many samples ran, and all differences."""
    warnings.simplefilter("ignore")
    run = {"forward": forward, "in_place": in_place, "into_out": into_out, "backward": backward}[form]
    dtype = getattr(torch, dtype_name)
    count, complaints = 0, []
    for op in op_db[part::parts]:
        if name_of(op) in LEFT_OUT or not op.supports_dtype(dtype, "cpu"):
            continue
        for sample in samples_of(op, dtype):
            try:
                difference = run(op, sample)
            except Exception as error:
                difference = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            count += difference is not None
            if difference:
                complaints.append(f"{name_of(op)} ({dtype_name}, {form}): {difference}")
                break
    return count, complaints
