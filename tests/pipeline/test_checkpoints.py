"""The engine with what surrounds it: DeepSpeed's checkpoints, and a mesh with tensor parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import checkpoint_cases as cases
from tests.pipeline.conftest import Ranks


@pytest.mark.parametrize(("schedule", "zero"), [("1f1b", 0), ("zb-h1", 1), ("zb-v", 0)])
def test_training_resumes(two_cpus: Ranks, tmp_path: Path, schedule: str, zero: int) -> None:
    two_cpus.run(cases.resume, two_cpus.backend, schedule, zero, str(tmp_path))


def test_tensor_parallelism(four: Ranks) -> None:
    four.run(cases.with_tensor_parallelism, four.backend)
