"""A plain loop with accelerate: divided among ranks it trains as one process does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DataLoaderConfiguration,
    DummyOptim,
    DummyScheduler,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
)
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from hf_integration.errors import TrainingInputError
from hf_integration.npu_accelerator import DividedAccelerator, npu_accelerator
from tests.harness.outcome import RankFailure
from tests.harness.pool import RankPool
from tests.hf_integration.divided import VOCABULARY, make_model
from tests.pipeline.conftest import Ranks, kept

STEPS = 6
BATCH = 8
"""Rows of an optimizer step, over all replicas."""


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_accelerator")
    yield from kept(rank_pool, 4, "hccl")


def rows() -> list[dict[str, torch.Tensor]]:
    """Sequences of one length, so that a mean over replicas is a mean over tokens."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (BATCH * STEPS + BATCH, 12), generator=generator)
    return [{"input_ids": each, "labels": each} for each in ids]


@dataclass(frozen=True)
class Loop:
    """How the loop's accelerator is made, and what it trains."""

    family: str = "llama"
    replicas: int = 1
    accumulation: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    by_config: bool = False
    """Whether optimizer and scheduler are the DeepSpeed configuration's."""
    save: Path | None = None
    clip: float | None = None
    """Norm by which the loop asks for clipping."""
    constant: bool = False
    """Whether the learning rate stays; accelerate's own steps of a scheduler depend on the launch."""


def halving(step: int) -> float:
    """A learning rate that changes at every step."""
    return 0.5**step


def staying(step: int) -> float:
    """A learning rate that does not change."""
    return 1.0


def train(loop: Loop) -> dict[str, Any]:
    """The loop of accelerate's documentation."""
    AcceleratorState._reset_state(reset_partial_state=True)
    if "plain" in loop.options:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=loop.accumulation)
    else:
        accelerator = npu_accelerator(gradient_accumulation_steps=loop.accumulation, **loop.options)
    model = make_model(loop.family)
    loader = DataLoader(rows(), batch_size=BATCH // loop.replicas // loop.accumulation, shuffle=False)
    if loop.by_config:
        optimizer: Any = DummyOptim(model.parameters(), lr=1e-2)
        scheduler: Any = DummyScheduler(optimizer, total_num_steps=STEPS)
    else:
        decayed = [each for each in model.parameters() if each.ndim > 1]
        others = [each for each in model.parameters() if each.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-2)
        scheduler = LambdaLR(optimizer, staying if loop.constant else halving)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    losses, step = [], []
    batches = list(loader)
    count = STEPS * loop.accumulation
    for batch in batches[:count]:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if loop.clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), loop.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        step.append(accelerator.gather(loss.detach()).mean().item())
        if accelerator.sync_gradients:
            losses.append(sum(step) / len(step))
            step = []
    model.eval()
    with torch.no_grad():
        outputs = [model(**batch) for batch in batches[count:]]
    last = torch.stack([each.loss for each in outputs]).mean()
    result = {"losses": losses, "last": accelerator.gather(last).mean().item()}
    result["logits"] = tuple(outputs[0].logits.shape[1:])
    if loop.save is not None:
        accelerator.save_model(model, loop.save)
    if isinstance(accelerator, DividedAccelerator):
        accelerator._engine().destroy()
        accelerator.mesh.destroy()
    return result


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The loop in one process, with accelerate's own accelerator, for each family."""
    return {name: train(Loop(name, options={"plain": True})) for name in ("llama", "qwen2", "gpt2")}


ZERO1 = {"zero_optimization": {"stage": 1}, "gradient_clipping": 0.0}
AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
LOOPS = {
    "tp 2 x dp 2": Loop("llama", 2, options={"tensor_parallel": 2}),
    "tp 2 x dp 2, accumulated": Loop("llama", 2, 2, {"tensor_parallel": 2, "deepspeed": {**AUTO, **ZERO1}}),
    "pp 2 x dp 2": Loop("qwen2", 2, options={"pipeline_parallel": 2, "micro_batches": 2}),
    "tp 2 x pp 2": Loop(
        "gpt2",
        options={
            "micro_batches": 4,
            "deepspeed": {
                **AUTO,
                **ZERO1,
                "tensor_parallel": {"autotp_size": 2},
                "pipeline": {"stages": 2},
            },
        },
    ),
}


@pytest.mark.npu
@pytest.mark.parametrize("name", LOOPS)
def test_a_plain_loop_trains_as_one_process(four: Ranks, plain: dict[str, Any], name: str) -> None:
    loop = LOOPS[name]
    wanted = plain[loop.family]
    for found in four.run(train, loop, timeout=250):
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
        assert found["last"] == pytest.approx(wanted["last"], rel=1e-5)
        assert found["logits"] == wanted["logits"]


@pytest.mark.npu
def test_the_model_is_saved_as_one_plain_directory(
    four: Ranks, plain: dict[str, Any], tmp_path: Path
) -> None:
    options = {"tensor_parallel": 2, "pipeline_parallel": 2, "micro_batches": 2}
    four.run(train, Loop("llama", options=options, save=tmp_path / "model"), timeout=250)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    last = rows()[-BATCH:]
    batch = {key: torch.stack([row[key] for row in last]) for key in last[0]}
    assert model(**batch).loss.item() == pytest.approx(plain["llama"]["last"], rel=1e-5)


BY_CONFIG = {
    **AUTO,
    **ZERO1,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.1, "torch_adam": True}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": 0.0,
            "warmup_max_lr": 1e-2,
            "warmup_num_steps": 2,
            "warmup_type": "linear",
            "total_num_steps": STEPS,
        },
    },
}


def by_hand() -> list[float]:
    """Return what the configuration's optimizer, scheduler and clipping give, written out in plain torch."""
    model = make_model("llama")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    data = rows()
    losses = []
    for step in range(STEPS):
        # DeepSpeed's WarmupDecayLR: up to the rate in two steps, then down to zero; it starts one step late.
        count = max(0, step - 1)
        factor = count / 2 if count < 2 else (STEPS - count) / (STEPS - 2)
        optimizer.param_groups[0]["lr"] = 1e-2 * factor
        batch = torch.stack([row["input_ids"] for row in data[step * BATCH : (step + 1) * BATCH]])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.npu
@pytest.mark.parametrize(
    "loop",
    [
        Loop("llama", 2, options={"tensor_parallel": 2, "deepspeed": BY_CONFIG}, by_config=True),
        Loop(
            "llama",
            2,
            options={"pipeline_parallel": 2, "micro_batches": 2, "deepspeed": BY_CONFIG},
            by_config=True,
        ),
    ],
    ids=["tp", "pp"],
)
def test_optimizer_scheduler_and_clipping_of_the_configuration(four: Ranks, loop: Loop) -> None:
    wanted = by_hand()
    for found in four.run(train, loop, timeout=250):
        assert found["losses"] == pytest.approx(wanted, rel=1e-5)


def refused(case: str) -> str:
    """Return the sentence with which something wrong in a loop is refused."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator: Any = npu_accelerator(pipeline_parallel=4, micro_batches=2)
    model = make_model("llama")
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(rows(), batch_size=4)
    with pytest.raises(TrainingInputError) as caught:
        if case == "no loader":
            accelerator.prepare(model, optimizer)
        elif case == "other optimizer":
            accelerator.prepare(model, torch.optim.LBFGS(model.parameters()), loader)
        elif case == "other parameters":
            accelerator.prepare(model, torch.optim.AdamW(make_model("llama").parameters()), loader)
        elif case == "other object":
            accelerator.prepare(model, optimizer, loader, torch.nn.Linear(2, 2))
        elif case == "no model":
            accelerator.prepare(optimizer, loader)
        elif case == "state":
            accelerator.save_state("somewhere")
        elif case == "whole state":
            accelerator.get_state_dict(model)
        elif case == "clipping values":
            accelerator.clip_grad_value_(model.parameters(), 1.0)
        elif case == "stand-in":
            accelerator.prepare(model, DummyOptim(model.parameters()), loader)
        else:
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            batch = next(iter(loader))
            model.train()
            if case == "no labels":
                model(input_ids=batch["input_ids"])
            loss = model(**batch).loss
            if case == "halved loss":
                accelerator.backward(loss / 2)
            if case == "two calls":
                model(**batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
    accelerator.mesh.destroy()
    return str(caught.value)


@pytest.mark.npu
def test_what_a_divided_loop_cannot_do_is_refused(four: Ranks) -> None:
    for case, message in {
        "no loader": "prepare got no loader with a batch size",
        "other optimizer": "the optimizer is a LBFGS, which may need whole matrices",
        "other parameters": "is none of the model's",
        "other object": "prepare got a Linear",
        "no model": "prepare got the optimizer without its model",
        "state": "save_state is not offered for a divided model",
        "whole state": "no rank has the whole state dict",
        "clipping values": "clip_grad_value_ is not offered for a divided model",
        "stand-in": 'has no "optimizer"; prepare one of your own in place of a DummyOptim',
        "no labels": "the batch has no labels",
        "halved loss": "backward got something else than the loss of the pipelined model's last call",
        "two calls": "has not been handed to accelerator.backward",
        "clipping": "clip_grad_norm_ got max_norm 1.0 and norm_type 2, but the engine clips by the 2-norm at",
    }.items():
        for sentence in four.run(refused, case, timeout=120):
            assert message in sentence, case


@pytest.mark.npu
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": 3}, "--tensor_model_parallel_size 3"),
        ({"tensor_parallel": 2, "micro_batches": 2}, "micro_batches is 2, which with 1 pipeline stage"),
        (
            {"pipeline_parallel": 2, "gradient_accumulation_steps": 2},
            "gradient_accumulation_steps is 2, but a pipeline steps after each batch",
        ),
        ({"pipeline_parallel": 2, "mixed_precision": "fp8"}, "mixed_precision is 'fp8'"),
    ],
)
def test_what_no_accelerator_is_made_for(four: Ranks, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RankFailure, match=message):
        four.run(npu_accelerator, timeout=120, **options)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"kwargs_handlers": [InitProcessGroupKwargs()]}, "kwargs_handlers"),
        ({"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=2)}, "gradient_accumulation"),
        ({"dataloader_config": DataLoaderConfiguration(dispatch_batches=True)}, "dispatch_batches"),
    ],
    ids=["handlers", "plugin", "loaders"],
)
def test_accelerate_s_arguments_that_would_be_passed_over_are_refused(given: Any, name: str) -> None:
    with pytest.raises(TrainingInputError, match=f"{name}.* is given, which is not looked at"):
        npu_accelerator(tensor_parallel=2, **given)


def test_a_degree_of_1_goes_before_the_configuration_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "hf_integration.npu_accelerator"
    monkeypatch.setattr(f"{module}.DeepSpeedPlugin", lambda hf_ds_config: hf_ds_config)
    monkeypatch.setattr(f"{module}.Accelerator", lambda **keywords: keywords["deepspeed_plugin"])
    plain = {**AUTO, **ZERO1}
    divided = {**plain, "tensor_parallel": {"autotp_size": 2}}
    found: list[Any] = [
        npu_accelerator(tensor_parallel=1, deepspeed=divided),
        npu_accelerator(deepspeed=plain),
    ]
    assert found == [plain, plain]
