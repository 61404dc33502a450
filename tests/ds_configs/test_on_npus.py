"""Generated configurations train on two NPUs: the presets for plain DeepSpeed, and every optimizer
offered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ds_configs.generate import ConfigRequest, generate
from ds_configs.generate.options import recipes
from ds_configs.presets import load_preset
from tests.accelerator.conftest import KeptWorld
from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool, World

STEPS = 3
WIDTH = 32
COMPILE_SECONDS = 400.0  # the first use of a host optimizer on a machine compiles it

pytestmark = pytest.mark.npu


@pytest.fixture(scope="module")
def two_ranks(rank_pool: RankPool) -> Iterator[KeptWorld]:
    """Two ranks on two NPUs, DeepSpeed imported; they load a host optimizer once for all its tests."""
    reason = why_no_npu()
    if reason:
        pytest.skip(reason)
    rank_pool.preload("deepspeed")
    with rank_pool.world(2, "hccl") as world:
        yield KeptWorld(world)


def layers() -> list[Any]:
    """The layers of a small model."""
    from torch import nn

    return [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)]


def examples(micro_batch: int, index: int, rank: int) -> tuple[Any, Any]:
    """The micro-batch ``index`` of every step: inputs, and targets that a linear map could learn."""
    import torch

    torch.manual_seed(100 * index + rank)
    inputs = torch.randn(micro_batch, WIDTH)
    return inputs, inputs.flip(-1) * 0.5


def train(config: dict[str, Any]) -> dict[str, Any]:
    """On a rank: train a model as a program does that calls DeepSpeed itself; say how it went."""
    import deepspeed
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(*layers())
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    dtype = next(engine.module.parameters()).dtype
    losses = []
    accumulation, micro_batch = engine.gradient_accumulation_steps(), engine.train_micro_batch_size_per_gpu()
    for index in list(range(accumulation)) * STEPS:
        inputs, targets = examples(micro_batch, index, torch.distributed.get_rank())
        output = engine(inputs.to(engine.device, dtype))
        loss = nn.functional.mse_loss(output.float(), targets.to(engine.device))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    report = {"losses": losses, "steps": engine.global_steps, "optimizer": type(inner).__name__}
    engine.destroy()
    return {**report, "device": str(engine.device), "skipped": engine.skipped_steps}


def train_pipeline(config: dict[str, Any]) -> dict[str, Any]:
    """On a rank: train a model in two stages."""
    import deepspeed
    import torch
    from deepspeed.pipe import PipelineModule
    from torch import nn

    deepspeed.init_distributed()
    torch.manual_seed(0)

    def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output.float(), targets.float())

    model = PipelineModule(layers(), num_stages=2, loss_fn=loss_of)
    parameters = [each for each in model.parameters() if each.requires_grad]
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    dtype = next(engine.module.parameters()).dtype

    def batches() -> Iterator[tuple[Any, Any]]:
        for index in list(range(engine.gradient_accumulation_steps())) * STEPS:
            inputs, targets = examples(engine.train_micro_batch_size_per_gpu(), index, 0)
            yield inputs.to(engine.device, dtype), targets.to(engine.device, dtype)

    data = batches()
    losses = [engine.train_batch(data).item() for _ in range(STEPS)]
    return {"losses": losses, "steps": engine.global_steps, "stages": engine.num_stages}


def check(reports: list[dict[str, Any]]) -> None:
    """Assert that both ranks made the steps, and that the loss fell."""
    for report in reports:
        assert report["steps"] == STEPS
        part = len(report["losses"]) // STEPS
        first, last = report["losses"][:part], report["losses"][-part:]
        assert sum(last) < sum(first), report["losses"]


def test_preset_for_a_plain_program_trains(two_ranks: KeptWorld) -> None:
    reports = two_ranks.run(train, load_preset("zero2_plain"))
    assert [report["device"] for report in reports] == ["npu:0", "npu:1"]
    assert [report["optimizer"] for report in reports] == ["FusedAdam"] * 2
    check(reports)


@pytest.mark.ranks(2, preload=("deepspeed",))
def test_preset_for_a_pipeline_trains(ranks: World) -> None:
    """In a world of its own: DeepSpeed keeps a pipeline's groups for the process."""
    reports = ranks.run(train_pipeline, load_preset("zero1_pp"))
    assert [report["stages"] for report in reports] == [2, 2]
    check(reports)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("name", recipes("optimizers"))
def test_every_optimizer_offered_works_on_npus(
    two_ranks: KeptWorld, name: str, offload: str, precision: str
) -> None:
    recipe = recipes("optimizers")[name]
    if offload == "cpu" and not recipe.on_host:
        pytest.skip("is refused: it has no kernel on the host")
    stage = 0 if 2 not in recipe.stages else 2
    request = ConfigRequest(
        "deepspeed",
        stage,
        precision=precision,
        micro_batch=4,
        optimizer=name,
        optimizer_params={"lr": 1e-1 if name == "SGD" else 1e-2},
        offload_optimizer=offload,
    )
    reports = two_ranks.run(train, generate(request), timeout=COMPILE_SECONDS)
    assert [report["skipped"] for report in reports] == [0, 0]
    check(reports)
