"""Expert parallelism: a rank holds its share of the experts, whatever the ZeRO stage."""

from __future__ import annotations

import pytest

from ds_configs.memory import MemoryJob, estimate
from ds_configs.models import find_model
from ds_configs.parallel import ParallelConfig


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("ep", [1, 2, 8])
def test_a_rank_holds_its_experts(stage: int, ep: int) -> None:
    shape = find_model("mixtral-8x7b")
    experts = shape.layers * 8 * 3 * shape.hidden * shape.ffn
    held = shape.parameters() - experts + experts / ep
    job = MemoryJob(shape, ParallelConfig(dp=64, ep=ep), stage=stage, recomputation="full")
    assert estimate(job).terms["parameters"] == pytest.approx(2 * held, rel=1e-6)
