"""torch_npu's fused optimiser steps, dropout, masked softmax and loss beside their formulas."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.simulator.attention_cases import make
from tests.simulator.fused_cases import close, compare


def check_adam_w() -> None:
    """Five steps of the operator equal five steps of torch.optim.AdamW."""
    rate, decay, betas, epsilon = 0.01, 0.1, (0.9, 0.95), 1e-8
    parameter = torch.nn.Parameter(make((7, 3), 0, torch.float32))
    optimizer = torch.optim.AdamW([parameter], rate, betas, epsilon, decay)
    state = [parameter.detach().clone().npu(), torch.zeros(7, 3).npu(), torch.zeros(7, 3).npu()]
    for step in range(5):
        parameter.grad = make((7, 3), 1 + step, torch.float32)
        optimizer.step()
        torch.ops.npu.npu_apply_adam_w.out(
            betas[0] ** step, betas[1] ** step, rate, decay, *betas, epsilon, parameter.grad.npu(),
            None, False, False, out=state,
        )  # fmt: skip
        close(state[0], parameter, torch.float32)
    close(state[2], optimizer.state[parameter]["exp_avg_sq"], torch.float32)


def check_adam() -> None:
    """One step of the first Adam operator, whose epsilon stands beside the uncorrected root."""
    rate, beta1, beta2, epsilon = 0.1, 0.9, 0.99, 1e-3
    start, grad = make((4, 4), 0, torch.float32), make((4, 4), 1, torch.float32)
    state = [start.npu(), torch.zeros(4, 4).npu(), torch.zeros(4, 4).npu()]
    torch.ops.npu.npu_apply_adam.out(
        beta1, beta2, rate, beta1, beta2, epsilon, grad.npu(), False, False, out=state
    )
    first, second = grad * (1 - beta1), grad.square() * (1 - beta2)
    step = rate * (1 - beta2) ** 0.5 / (1 - beta1)
    close(state[0], start - step * first / (second.sqrt() + epsilon), torch.float32)
    close(state[1], first, torch.float32)


def check_fused_optimizer(name: str, options: dict, clip: bool) -> None:
    """Four steps of torch_npu's optimizer equal four of torch's; `clip` limits the gradient."""
    from torch_npu import optim  # only here: torch_npu may not be importable where the tests are collected

    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    plain, ours = models[0], models[1].npu()
    optimizers = [
        getattr(torch.optim, name)(plain.parameters(), **options),
        getattr(optim, f"NpuFused{name}")(ours.parameters(), **options),
    ]
    for step in range(4):
        x = make((6, 4), step, torch.float32)
        for model, optimizer, batch in zip(models, optimizers, (x, x.npu()), strict=True):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            if clip and model is ours:
                optimizer.clip_grad_norm_fused_(0.1)
            elif clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    for parameter, expected in zip(ours.parameters(), plain.parameters(), strict=True):
        close(parameter, expected, torch.float32)


def check_dropout(probability: float) -> None:
    """The asked share is dropped, the rest scaled; the backward uses the same mask; the seed repeats it."""
    x = torch.ones(100, 100).npu().requires_grad_()
    torch.npu.manual_seed(3)
    out, _ = torch.ops.npu._npu_dropout(x, probability)
    torch.npu.manual_seed(3)
    again, _ = torch.ops.npu._npu_dropout(x, probability)
    assert torch.equal(out, again)
    dropped = (out == 0).float().mean().item()
    assert abs(dropped - probability) < 0.02
    kept = (out.detach() != 0).float().cpu()
    close(out, kept / (1 - probability), torch.float32)
    out.sum().backward()
    close(x.grad, kept / (1 - probability), torch.float32)


def check_masked_softmax(dtype: torch.dtype) -> None:
    """softmax(scale * x) over what the mask leaves."""
    masked = make((2, 1, 4, 32), 5, torch.float32) > 1
    value = make((2, 3, 4, 32), 0, dtype)
    ours, plain = value.npu().requires_grad_(), value.float().requires_grad_()
    fused = torch.ops.npu.npu_scaled_masked_softmax(ours, masked.npu(), 0.5, False)
    expected = (plain * 0.5).masked_fill(masked, -torch.inf).softmax(-1)
    compare((fused,), (expected,), [ours], [plain], dtype)


def check_cross_entropy(reduction: str, smoothing: float, weighted: bool) -> None:
    """The fused loss equals PyTorch's, with ignored rows, class weights and label smoothing."""
    logits = make((6, 5), 0, torch.float32)
    target = torch.tensor([0, 4, -100, 2, 1, 3])
    weight = torch.rand(5, generator=torch.Generator().manual_seed(1)) if weighted else None
    ours, plain = logits.npu().requires_grad_(), logits.clone().requires_grad_()
    fused = torch.ops.npu.npu_cross_entropy_loss(
        ours, target.npu(), None if weight is None else weight.npu(), reduction, -100, smoothing
    )[0]
    expected = functional.cross_entropy(plain, target, weight, reduction=reduction, label_smoothing=smoothing)
    compare((fused.view(expected.shape),), (expected,), [ours], [plain], torch.float32)


def check_synchronised_batch_norm() -> None:
    """The statistics of two halves of a batch, combined, and the backward of the whole."""
    x, grad = make((4, 3, 5), 0, torch.float32), make((4, 3, 5), 1, torch.float32)
    weight, bias = make((3,), 2, torch.float32), make((3,), 3, torch.float32)
    running = [torch.zeros(3).npu(), torch.ones(3).npu()]
    parts = [torch.ops.npu.batch_norm_reduce(half.unsqueeze(2).npu(), 1e-5) for half in x.split(2)]
    sums, squares = (torch.stack(rows) for rows in zip(*parts, strict=True))
    count = torch.full((2,), 10.0).npu()
    mean, inverse = torch.ops.npu.batch_norm_gather_stats_update(
        x.npu(), sums, squares, *running, 0.1, 1e-5, count
    )
    out = torch.batch_norm_elemt(x.npu(), weight.npu(), bias.npu(), mean, inverse, 1e-5)

    plain = torch.nn.BatchNorm1d(3)
    with torch.no_grad():
        plain.weight.copy_(weight)
        plain.bias.copy_(bias)
    leaf = x.clone().requires_grad_()
    expected = plain(leaf)
    expected.backward(grad)
    close(out, expected, torch.float32)
    close(running[0], plain.running_mean, torch.float32)
    close(running[1], plain.running_var, torch.float32)
    arguments = (grad.npu(), x.npu(), mean, inverse, weight.npu())
    total, centred, dweight, dbias = torch.batch_norm_backward_reduce(*arguments, True, True, True)
    close(dweight, plain.weight.grad, torch.float32)
    close(dbias, plain.bias.grad, torch.float32)
    dx = torch.batch_norm_backward_elemt(*arguments, total, centred, torch.tensor([10, 10]).int().npu())
    close(dx, leaf.grad, torch.float32)


def check_recurrent(kind: str) -> None:
    """Two layers in both directions give the CPU's outputs and gradients."""
    torch.manual_seed(0)
    plain = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True)
    ours = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True)
    ours.load_state_dict(plain.state_dict())
    ours.npu()
    x = make((3, 2, 5), 0, torch.float32)
    on_npu, on_cpu = x.npu().requires_grad_(), x.clone().requires_grad_()
    compare((ours(on_npu)[0],), (plain(on_cpu)[0],), [on_npu], [on_cpu], torch.float32)
    for name, parameter in ours.named_parameters():
        close(parameter.grad, plain.get_parameter(name).grad, torch.float32)


def check_unknown_operator() -> None:
    """An operator that is not simulated says so by name, and nothing runs after it as if all were well."""
    boxes = torch.rand(1, 4, 5).npu()
    with pytest.raises(RuntimeError, match="RotatedIou"):
        _ = torch.ops.npu.npu_rotated_iou(boxes, boxes).cpu()
    with pytest.raises(RuntimeError, match="earlier task of the current stream failed"):
        _ = boxes + 1
