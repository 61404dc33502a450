"""What the loss curves of test_zero_parity.py are too coarse to show, and offload to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_plugins.accelerator.op_builders import AsyncIOBuilder
from tests.accelerator.conftest import KeptWorld
from tests.accelerator.reference import Recipe
from tests.accelerator.test_zero_parity import COMPILE_SECONDS, compare, ds_config, train

pytestmark = pytest.mark.npu

FIRST_STEP = 1.0e-3  # Adam's first update is the learning rate
SECOND_STEP = 7.44e-4  # its second, if the first had no gradient


def first_update(config: dict[str, Any]) -> float:
    """On a rank: the largest change of a bias that starts at 0, over one step."""
    import deepspeed

    from tests.accelerator.reference import batch, make_model

    engine, _, _, _ = deepspeed.initialize(model=make_model(), config=config)
    bias = engine.module.norm.bias
    loss = engine(batch(0, 0).to(engine.device))
    engine.backward(loss)
    engine.step()
    with deepspeed.zero.GatheredParameters([bias], enabled=hasattr(bias, "ds_id")):
        change = bias.detach().float().abs().max().item()
    engine.destroy()
    return change


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_adam_begins_at_step_one_but_for_stage_0_in_half_precision(
    two_ranks: KeptWorld, stage: int, precision: str
) -> None:
    config = ds_config(Recipe(precision, weight_decay=0.0), stage)
    expected = SECOND_STEP if stage == 0 and precision != "fp32" else FIRST_STEP
    assert two_ranks.run(first_update, config) == pytest.approx([expected] * 2, rel=5e-3)


def test_offload_to_files(two_ranks: KeptWorld, tmp_path: Path) -> None:
    if not AsyncIOBuilder().is_compatible():
        pytest.skip("libaio is not installed (libaio-dev)")
    # DeepSpeed keeps less than 1 MiB a rank in memory; this width gives the optimizer more.
    recipe = Recipe("fp32", width=192)
    config = ds_config(recipe, 3, offload_optimizer={"device": "nvme", "nvme_path": str(tmp_path)})
    reports = two_ranks.run(train, config, recipe.width, timeout=2 * COMPILE_SECONDS)
    compare(reports, recipe, "DeepSpeedCPUAdam")
    written = list(tmp_path.rglob("*.swp"))
    assert sum(path.stat().st_size for path in written) > 2**20, written
