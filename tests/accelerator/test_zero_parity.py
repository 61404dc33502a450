"""ZeRO on NPUs trains like one process in plain torch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.accelerator.conftest import KeptWorld
from tests.accelerator.reference import (
    MICRO_BATCH,
    RANKS,
    STEPS,
    WIDTH,
    Recipe,
    batch,
    make_model,
    reference_losses,
)

BOUNDS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}  # relative, of each step's loss
COMPILE_SECONDS = 400.0  # the first offload on a machine compiles CPUAdam: a minute, if the machine is idle

pytestmark = pytest.mark.npu


def ds_config(recipe: Recipe, stage: int, **zero: Any) -> dict[str, Any]:
    """A DeepSpeed configuration of the recipe."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_clipping": recipe.clip,
        "zero_optimization": {"stage": stage, **zero},
        "optimizer": {"type": "AdamW", "params": {"lr": recipe.lr, "weight_decay": recipe.weight_decay}},
    }
    if recipe.precision == "bf16":
        config["bf16"] = {"enabled": True}
    if recipe.precision == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": recipe.loss_scale}
    return config


def train(config: dict[str, Any], width: int = WIDTH) -> dict[str, Any]:
    """On a rank: train, and say with what."""
    import deepspeed
    import torch

    engine, optimizer, _, _ = deepspeed.initialize(model=make_model(width), config=config)
    rank = torch.distributed.get_rank()
    losses = []
    for step in range(STEPS):
        loss = engine(batch(step, rank).to(engine.device))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    inner = getattr(optimizer, "optimizer", optimizer)
    report = {
        "losses": losses,
        "device": str(engine.device),
        "accelerator": type(deepspeed.accelerator.get_accelerator()).__module__,
        "backend": torch.distributed.get_backend(),
        "optimizer": type(inner).__name__,
        "skipped": engine.skipped_steps,
    }
    engine.destroy()
    return report


def train_without_a_compiler(config: dict[str, Any]) -> dict[str, Any]:
    """On a rank: train where no C++ compiler runs, and say which Adam kernel was used."""
    import os

    from deepspeed.ops.op_builder.builder import OpBuilder

    loaded, compiler = dict(OpBuilder._loaded_ops), os.environ.get("CXX")
    OpBuilder._loaded_ops.clear()
    os.environ["CXX"] = "no-such-compiler"
    try:
        return {**train(config), "kernel": type(OpBuilder._loaded_ops["cpu_adam"]).__name__}
    finally:
        OpBuilder._loaded_ops.clear()
        OpBuilder._loaded_ops.update(loaded)
        os.environ.pop("CXX")
        if compiler is not None:
            os.environ["CXX"] = compiler


def check(two_ranks: KeptWorld, recipe: Recipe, config: dict[str, Any], optimizer: str) -> None:
    """Train on the ranks and compare each step's mean loss with the reference."""
    compare(two_ranks.run(train, config, timeout=COMPILE_SECONDS), recipe, optimizer)


def compare(reports: list[dict[str, Any]], recipe: Recipe, optimizer: str) -> None:
    """Assert that the ranks trained on NPUs over HCCL, to the losses of the reference."""
    for rank, report in enumerate(reports):
        assert report["device"] == f"npu:{rank}"
        assert report["accelerator"].startswith("npu_plugins.")
        assert report["backend"] == "hccl"
        assert report["optimizer"] == optimizer
        assert report["skipped"] == 0
    losses = [sum(step) / RANKS for step in zip(*(report["losses"] for report in reports), strict=True)]
    expected = reference_losses(recipe)
    assert losses == pytest.approx(expected, rel=BOUNDS[recipe.precision])
    assert expected[-1] < expected[0] - 0.05, "the reference itself learns nothing"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_stage(two_ranks: KeptWorld, stage: int, precision: str) -> None:
    recipe = Recipe(precision, warm_start=int(stage == 0 and precision != "fp32"))
    check(two_ranks, recipe, ds_config(recipe, stage), "FusedAdam")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offloaded_optimizer(two_ranks: KeptWorld, stage: int, precision: str) -> None:
    recipe = Recipe(precision)
    config = ds_config(recipe, stage, offload_optimizer={"device": "cpu", "pin_memory": True})
    check(two_ranks, recipe, config, "DeepSpeedCPUAdam")


def test_offload_without_a_compiler(two_ranks: KeptWorld) -> None:
    recipe = Recipe("fp32")
    config = ds_config(recipe, 2, offload_optimizer={"device": "cpu"})
    reports = two_ranks.run(train_without_a_compiler, config, timeout=COMPILE_SECONDS)
    assert [report["kernel"] for report in reports] == ["HostAdam"] * RANKS
    compare(reports, recipe, "DeepSpeedCPUAdam")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_offloaded_parameters(two_ranks: KeptWorld, precision: str) -> None:
    recipe = Recipe(precision)
    offload = {"device": "cpu", "pin_memory": True}
    config = ds_config(recipe, 3, offload_optimizer=offload, offload_param=offload)
    check(two_ranks, recipe, config, "DeepSpeedCPUAdam")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_clipping(two_ranks: KeptWorld, stage: int, precision: str) -> None:
    recipe = Recipe(precision, clip=0.1, warm_start=int(stage == 0 and precision != "fp32"))
    check(two_ranks, recipe, ds_config(recipe, stage), "FusedAdam")
