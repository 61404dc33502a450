"""States of one process without DeepSpeed: any optimizer, exactly; and what is refused, in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.lr_schedules import WarmupLR
from safetensors.torch import save_file
from torch import nn

from npu_plugins.checkpoint import CheckpointError
from npu_plugins.checkpoint.state import (
    StateReader,
    Trained,
    holds_state,
    load_training_state,
    save_training_state,
)
from npu_plugins.checkpoint.training import TrainingSource
from npu_plugins.checkpoint.universal import write_universal

OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "plain SGD": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "NAdam": lambda groups: torch.optim.NAdam(groups, lr=0.1),
    "Rprop": lambda groups: torch.optim.Rprop(groups, lr=0.1),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.1),
}


class Model(nn.Module):
    """Two layers, a frozen one, a tied weight, a parameter of one number, and a buffer."""

    def __init__(self, seed: int, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 4, bias=False)
        self.second.weight = nn.Parameter(torch.randn(width, 4).t())  # in memory the other way round
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.tied = self.second
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("seen", torch.tensor([float(seed)]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.tied(self.first(inputs).relu())) * self.scale + self.seen


def trained(seed: int, optimizer: str = "AdamW", **model: Any) -> Trained:
    """Return a model with an optimizer of two groups, and a schedule."""
    module = Model(seed, **model)
    named = [each for each in module.parameters() if each.requires_grad]
    groups: list[dict[str, Any]] = [{"params": named[:1]}, {"params": named[1:], "weight_decay": 0.1}]
    made = OPTIMIZERS[optimizer](groups)
    return Trained(module, made, scheduler=torch.optim.lr_scheduler.StepLR(made, 2, gamma=0.5))


def train(job: Trained, steps: range) -> None:
    """Take steps, each on numbers of its own."""
    for number in steps:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        job.module(inputs).pow(2).mean().backward()
        job.optimizer.step()
        job.optimizer.zero_grad()
        if job.scheduler is not None:
            job.scheduler.step()


def save(job: Trained, folder: Path) -> None:
    """Save the model's weights, and then the state."""
    tensors = {
        name: each.contiguous() for name, each in job.module.state_dict().items() if "tied" not in name
    }
    save_file(tensors, folder / "model.safetensors")
    save_training_state(job, folder)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_goes_on_to_the_bit(optimizer: str, tmp_path: Path) -> None:
    unbroken, other = trained(1, optimizer), trained(2, optimizer)
    train(unbroken, range(3))
    save(unbroken, tmp_path)
    train(unbroken, range(3, 6))
    train(other, range(10, 12))
    load_training_state(other, tmp_path)
    train(other, range(3, 6))
    wanted, found = unbroken.module.state_dict(), other.module.state_dict()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
    assert other.optimizer.state_dict()["param_groups"] == unbroken.optimizer.state_dict()["param_groups"]


def test_weights_that_the_model_s_files_hold_are_not_saved_again(tmp_path: Path) -> None:
    job = trained(1)
    train(job, range(2))
    save(job, tmp_path)
    states = StateReader(tmp_path).index.parameters
    assert set(states) == {"first.weight", "first.bias", "second.weight", "scale"}
    assert {key for state in states.values() for key in state.tensors} == {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
    }


def test_without_the_model_s_files_the_state_holds_all_that_is_trained(tmp_path: Path) -> None:
    job, other = trained(1), trained(2)
    train(job, range(2))
    save_training_state(job, tmp_path)
    load_training_state(other, tmp_path)
    assert torch.equal(other.module.first.weight, job.module.first.weight)
    assert not torch.equal(other.module.frozen.weight, job.module.frozen.weight)


def test_scale_of_torch_s_scaler_goes_on(tmp_path: Path) -> None:
    def scaler(scale: float) -> Any:
        return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)

    job, other = trained(1), trained(2)
    saved, loaded = scaler(64.0), scaler(2.0)
    saved.scale(torch.ones(()))  # makes its state
    saved.load_state_dict({**saved.state_dict(), "scale": 128.0, "_growth_tracker": 3})
    save_training_state(Trained(job.module, job.optimizer, scaler=saved), tmp_path)
    load_training_state(Trained(other.module, other.optimizer, scaler=loaded), tmp_path)
    loaded.scale(torch.ones(()))
    assert (loaded.get_scale(), loaded.state_dict()["_growth_tracker"]) == (128.0, 3)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def _edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "training_state" / "index.json"
        body = json.loads(file.read_text())
        change(body)
        file.write_text(json.dumps(body))

    return edit


RANK_FILE = "training_state/rank-00000.safetensors"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no file": (lambda folder: (folder / RANK_FILE).unlink(), "rank-00000.safetensors is missing"),
    "cut file": (lambda folder: _cut(folder / RANK_FILE), "rank-00000.safetensors .* cut short"),
    "no index": (lambda folder: (folder / "training_state/index.json").unlink(), "index.json is missing"),
    "cut index": (lambda folder: _cut(folder / "training_state/index.json"), "index.json cannot be read"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weight scale"),
    "cut weights": (lambda folder: _cut(folder / "model.safetensors"), "model.safetensors .* cut short"),
    "later version": (_edit(lambda body: body.update(version=2)), "of version 2, but"),
    "other format": (_edit(lambda body: body.update(format="x")), "index.json is 'x'"),
    "file outside": (
        _edit(lambda body: body["parameters"]["scale"]["fragments"][0].__setitem__(3, "../x")),
        "leads out of it",
    ),
    "no piece": (
        _edit(lambda body: body["parameters"]["first.weight"]["fragments"].clear()),
        "has 0 of 12 elements of first.weight",
    ),
    "two saves": (
        _edit(lambda body: body["parameters"]["first.weight"]["tensors"].update(exp_avg="F16")),
        "as first.weight/exp_avg, but index.json says F16",
    ),
    "unknown settings": (
        _edit(lambda body: body["parameters"]["scale"].update(settings=7)),
        "scale has settings 7 of 2",
    ),
    "unknown dtype": (
        _edit(lambda body: body["parameters"]["scale"]["tensors"].update(exp_avg="F7")),
        "index.json cannot be read, .* scale has dtype 'F7', which is none of F64, F32",
    ),
}


@pytest.mark.parametrize("kind", list(DAMAGE))
def test_damage_is_named_and_nothing_is_loaded(kind: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[kind]
    job, other = trained(1), trained(2)
    train(job, range(1))
    save(job, tmp_path)
    damage(tmp_path)
    before = other.module.first.weight.clone()
    with pytest.raises(CheckpointError, match=message) as caught:
        load_training_state(other, tmp_path)
    assert "\n" not in str(caught.value)
    assert torch.equal(other.module.first.weight, before)
    assert not other.optimizer.state


OTHERS: dict[str, tuple[Callable[[], Trained], str]] = {
    "shape": (lambda: trained(2, width=5), r"first.weight has shape \[3, 4\] .* but \[5, 4\]"),
    "optimizer": (lambda: trained(2, "SGD"), "of AdamW with betas, but SGD has momentum"),
    "schedule": (
        lambda: Trained(*(lambda job: (job.module, job.optimizer))(trained(2))),
        "has state of a learning-rate scheduler, but none is here",
    ),
    "other schedule": (
        lambda: _with_other_schedule(),
        "another learning-rate scheduler, with .*last_epoch.* than WarmupLR",
    ),
    "more": (lambda: _more_trained(), "no state of frozen.weight, which is trained here"),
    "fewer": (lambda: _fewer_trained(), "has the state of scale and 0 more parameters"),
    "no optimizer": (lambda: Trained(Model(2), None), "there is no optimizer"),
}


def _with_other_schedule() -> Trained:
    job = trained(2)
    return replace(job, scheduler=WarmupLR(job.optimizer))


def _more_trained() -> Trained:
    job = trained(2)
    job.module.frozen.weight.requires_grad_(True)
    job.optimizer.param_groups[1]["params"].append(job.module.frozen.weight)
    return job


def _fewer_trained() -> Trained:
    job = trained(2)
    for group in job.optimizer.param_groups:
        group["params"] = [each for each in group["params"] if each is not job.module.scale]
    return job


@pytest.mark.parametrize("kind", list(OTHERS))
def test_state_of_another_model_or_optimizer_is_refused(kind: str, tmp_path: Path) -> None:
    make, message = OTHERS[kind]
    job = trained(1)
    train(job, range(1))
    save(job, tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_training_state(make(), tmp_path)


def test_an_optimizer_that_counts_no_steps_can_be_converted_too(tmp_path: Path) -> None:
    job = trained(1, "SGD")
    save(job, tmp_path)
    assert TrainingSource(tmp_path).optimizer is None, "it has not begun"
    train(job, range(2))
    save(job, tmp_path)
    source = TrainingSource(tmp_path)
    assert source.optimizer is not None
    assert float(source.optimizer.step) == 0
    assert source.optimizer.groups[0]["momentum"] == 0.9
    momentum = job.optimizer.state[job.module.first.weight]["momentum_buffer"]
    assert torch.equal(source.moments("first.weight")["momentum_buffer"], momentum)


def test_an_optimizer_without_a_number_for_each_element_does_not_become_universal(tmp_path: Path) -> None:
    job = trained(1, "Adafactor")
    train(job, range(1))
    save(job, tmp_path)
    with pytest.raises(CheckpointError, match=r"_var of \w+\.weight .* has shape \[\d, \d\], but"):
        write_universal(TrainingSource(tmp_path), tmp_path / "universal")


def test_whether_there_is_a_state(tmp_path: Path) -> None:
    assert not holds_state(tmp_path)
    save(trained(1), tmp_path)
    assert holds_state(tmp_path)
