"""The finder names the module that makes the first nan, and leaves the model's numbers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from npu_plugins.diagnostics.nonfinite import NonFiniteError, NonFiniteFinder
from npu_plugins.diagnostics.nonfinite.finder import PIECE
from tests.harness.fixtures import on_ranks

NAN = float("nan")


class Poison(torch.autograd.Function):
    """Identity whose backward is nan in one element."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[0] = NAN
        return gradient


class Block(nn.Module):
    """x + down(act(up(norm(x)))), with a place for a fault in each of its kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.fault = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(self.norm(x))
        if self.fault == "between":
            hidden = hidden / (hidden * 0)
        if self.fault == "backward":
            hidden = Poison.apply(hidden)
        out = x + self.down(torch.relu(hidden))
        return out * NAN if self.fault == "own" else out


class Model(nn.Module):
    """Blocks, recomputed or not, behind a mask of -inf as transformers' models have them."""

    def __init__(self, recomputed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mask = nn.Identity()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 4)
        self.recomputed = recomputed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.mask(torch.full((6,), -torch.inf))
        x = torch.where(mask.isfinite(), mask, x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x)
        return self.head(x)


def batch(seed: int = 1) -> torch.Tensor:
    """Eight rows of inputs."""
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))


def step(model: nn.Module, x: torch.Tensor) -> None:
    """Forward and backward."""
    model.zero_grad()
    model(x).pow(2).mean().backward()


def poisoned(module: nn.Module) -> None:
    """Let a module return nan."""
    module.register_forward_hook(lambda module, args, output: output * NAN, prepend=True)


def set_nan(tensor: torch.Tensor) -> None:
    """Make an element nan."""
    with torch.no_grad():
        tensor.view(-1)[1] = NAN


FAULTS: list[tuple[Callable[[Model], Any], str]] = [
    (lambda model: poisoned(model.blocks[1].up), "in the forward of blocks.1.up, whose inputs"),
    (lambda model: poisoned(model.blocks[2].norm), "in the forward of blocks.2.norm, whose inputs"),
    (lambda model: set_nan(model.blocks[1].down.bias), "in the parameter blocks.1.down.bias: 1 nan and 0"),
    (lambda model: setattr(model.blocks[0], "fault", "own"), "in the forward of blocks.0, whose inputs"),
    (
        lambda model: setattr(model.blocks[1], "fault", "between"),
        "in the input of blocks.1.down: 0 nan and 64 infinite",
    ),
    (
        lambda model: setattr(model.blocks[1], "fault", "backward"),
        "in the gradient of the output of blocks.1.up, that is in what uses it",
    ),
    (
        lambda model: model.blocks[1].down.register_full_backward_hook(lambda *_: (torch.full((8, 8), NAN),)),
        "in the gradient of the output of blocks.1.up, that is in what uses it",
    ),
    (
        lambda model: model.blocks[1].up.register_full_backward_hook(lambda *_: (torch.full((8, 6), NAN),)),
        "in the gradient of the output of blocks.1.norm, that is in the backward of blocks.1.up: 48 nan",
    ),
]


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_the_first_bad_module_is_named(fault: int, recomputed: bool) -> None:
    model = Model(recomputed)
    plant, words = FAULTS[fault]
    with NonFiniteFinder(model) as finder:
        step(model, batch())
        finder.check_step(step=1)
        plant(model)
        finder.detach()
        finder.attach()  # hooks of the fault come before the finder's, as those of a program do
        step(model, batch())
        with pytest.raises(NonFiniteError, match="step 2: the first value") as caught:
            finder.check_step(step=2)
    assert words in str(caught.value)


def test_the_input_of_the_data_is_named() -> None:
    model, bad = Model(), batch()
    bad[3, 2] = torch.inf
    with NonFiniteFinder(model) as finder:
        step(model, bad)
        assert "in the input of the model: 0 nan and 1 infinite of 48 values" in str(finder.end_step())


@on_ranks(1)
def test_large_tensors_are_counted_in_pieces() -> None:
    """So that a device has room for it; logits have 10^9 values."""
    model = nn.Identity()
    values = torch.zeros(4, PIECE + 1, dtype=torch.bfloat16)
    values[0, 0], values[1, 5], values[3, 1:4] = torch.inf, -torch.inf, NAN
    values = values.to("npu")
    with NonFiniteFinder(model, names={}) as finder:
        torch.npu.reset_peak_memory_stats()
        before = torch.npu.memory_allocated()
        model(values)
        assert torch.npu.max_memory_allocated() - before < 10 * PIECE
        found = finder._events(scaled=False).events
    assert [(each.kind, each.nans, each.infinities) for each in found] == [("input", 3, 2), ("output", 3, 2)]


def test_a_loss_outside_the_model_is_named() -> None:
    model = Model()
    with NonFiniteFinder(model) as finder:
        (model(batch()).mean() * NAN).backward()
        words = "in the gradient of the output of the model, that is in what uses it, such as the loss"
        found = finder.end_step()
    assert found is not None
    assert found.event.name in ("", "head")
    assert words.replace("the model", found.event.name or "the model") in str(found)


def test_clean_steps_raise_no_alarm_and_compute_the_same() -> None:
    watched, plain = Model(), Model()
    with NonFiniteFinder(watched) as finder:
        for seed in range(5):
            step(watched, batch(seed))
            step(plain, batch(seed))
            assert finder.end_step() is None
            for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
                assert torch.equal(one.grad, other.grad)


class NoGradient(torch.autograd.Function):
    """The identity, which gives no gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Return it."""
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        """Return none."""


def test_a_gradient_that_there_is_not_is_no_fault() -> None:
    model = Model()
    with NonFiniteFinder(model) as finder:
        NoGradient.apply(model(batch())).sum().backward()
        assert finder.end_step() is None


def test_nothing_is_left_behind() -> None:
    model = Model()

    def hooks() -> list[int]:
        return [
            sum(len(held) for name, held in vars(module).items() if name.endswith("hooks") and held)
            for module in model.modules()
        ]

    before = hooks()
    with NonFiniteFinder(model):
        assert hooks() != before
        model(batch())
    assert hooks() == before
    assert all(not each._backward_hooks for each in model.parameters())


def test_an_overflow_is_the_scalers_matter() -> None:
    """Gradients of a loss times 1e38 overflow in fp32; the forward is finite."""
    for scaled in (True, False):
        model = Model()
        with NonFiniteFinder(model) as finder:
            (model(batch()).pow(2).sum() * 1e38).backward()
            assert any(not each.grad.isfinite().all() for each in model.parameters())
            assert (finder.end_step(scaled=scaled) is None) == scaled
