"""A run that stops and goes on at another layout ends as the one that never stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from npu_plugins.checkpoint.state import StateIndex
from tests.checkpoint.state.layout_cases import Case, check_chain
from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, Run, model_config, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept

TOLERANCE = 1e-5
SAVING = {"save_strategy": "steps", "save_steps": 2, "allow_layout_change": True}
STEPS = 8
"""With three steps in an epoch: of the checkpoints 4 and 6 one is within an epoch, and one between two."""
Layout = tuple[int, int, int]
ONE: Layout = (1, 1, 1)
PLACES: dict[int, tuple[str, list[tuple[Layout, dict[str, Any], Layout]]]] = {
    # ZeRO-3 first: DeepSpeed 0.19.8 never forgets that an engine had a mesh, and asks later ones for theirs.
    2: ("qwen2", [((1, 1, 2), {"zero_stage": 3}, (1, 1, 2)), ((2, 1, 1), {}, ONE), ((1, 2, 1), {}, ONE)]),
    4: ("gpt2", [((2, 2, 1), {}, ONE), ((1, 2, 2), {"zero_stage": 1}, ONE)]),
    8: ("llama", [((2, 2, 2), {}, ONE)]),
}
"""By ranks: a family, and (tp, pp, dp) with more flags of runs that go on; and where, without DeepSpeed, what
they save is gone on from."""


@pytest.fixture(scope="module")
def npus(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, request.param, "hccl")


def by_step(record: Record, key: str, first: int) -> dict[int, float]:
    """Return the values of a key of the log from a step on."""
    return {each["step"]: each[key] for each in record.log if key in each and each["step"] >= first}


def compare(record: Record, unbroken: Record, first: int) -> None:
    """Assert that a run saw the losses and gradient norms of another from a step on."""
    for key in ("loss", "grad_norm"):
        wanted = by_step(unbroken, key, first)
        assert len(wanted) == STEPS - first + 1
        assert by_step(record, key, first) == pytest.approx(wanted, rel=TOLERANCE), key


@pytest.mark.npu
@pytest.mark.parametrize("npus", [2, 4, 8], indirect=True)
def test_goes_on_at_every_layout_and_back_without_deepspeed(npus: Ranks, tmp_path: Path) -> None:
    family, places = PLACES[npus.size]
    one = Run(family, steps=STEPS, rows=20, flags=SAVING)
    unbroken = train(one, tmp_path / "one")
    checkpoint = tmp_path / "one" / "checkpoint-4"
    for number, (layout, flags, then) in enumerate(places):
        folder = tmp_path / str(number)
        run = replace(one.at(*layout), flags={**SAVING, **flags}, resume=str(checkpoint))
        for record in npus.run(train_on_rank, run, folder, "hccl", timeout=250):
            compare(record, unbroken, first=5)
        back = replace(run.at(*then), flags=SAVING, resume=str(folder / "checkpoint-6"))
        if then == ONE:
            compare(train(back, folder / "back"), unbroken, first=7)
        else:
            compare(npus.run(train_on_rank, back, folder / "back", "hccl")[0], unbroken, first=7)


FP16 = [
    Case(2, 1, 2, precision="fp16"),
    Case(2, 2, 1, precision="fp16"),
    Case(1, 1, 4, stage=1, precision="fp16", zero={"round_robin_gradients": True}),
    Case(1, 2, 2, stage=1, precision="fp16"),
]


@pytest.mark.npu
@pytest.mark.parametrize("npus", [4], indirect=True)
def test_fp16_with_its_loss_scale_is_the_same_at_every_layout(npus: Ranks, tmp_path: Path) -> None:
    check_chain(npus, FP16, tmp_path)


def forgetful_model() -> Any:
    """Return a model with dropout."""
    config = model_config("gpt2")
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.2
    torch.manual_seed(7)
    return AutoModelForCausalLM.from_config(config)


SCALED = {
    "zero_optimization": {"stage": 2},
    "fp16": {"enabled": "auto", "initial_scale_power": 24, "loss_scale_window": 2, "hysteresis": 1},
    "gradient_clipping": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
"""With a loss scale that is at first too large, and grows every other step."""


@pytest.mark.npu
@pytest.mark.parametrize("npus", [4], indirect=True)
def test_same_layout_goes_on_to_the_bit_with_dropout_and_a_loss_scale(npus: Ranks, tmp_path: Path) -> None:
    flags = {"save_strategy": "steps", "save_steps": 4, "fp16": True, "deepspeed": SCALED}
    run = Run("gpt2", steps=8, flags=flags, trainer={"model": forgetful_model()}).at(2, 1, 2)
    unbroken = npus.run(train_on_rank, run, tmp_path / "unbroken", "hccl", timeout=250)
    again = replace(run, resume=str(tmp_path / "unbroken" / "checkpoint-4"))
    resumed = npus.run(train_on_rank, again, tmp_path / "again", "hccl", timeout=250)
    for record, wanted in zip(resumed, unbroken, strict=True):
        for key in ("loss", "grad_norm"):
            assert by_step(record, key, 5) == by_step(wanted, key, 5)
        assert len(by_step(record, "loss", 5)) == 4
    scales = [
        StateIndex.read(tmp_path / name / "checkpoint-8" / "training_state").loss_scale
        for name in ("unbroken", "again")
    ]
    assert scales[0] == scales[1]
    assert scales[0] is not None
    assert scales[0]["scale"] < 2**24
