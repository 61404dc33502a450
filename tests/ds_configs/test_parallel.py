"""ParallelConfig: degrees that multiply out, and refusals that say why."""

from __future__ import annotations

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig


def test_world_is_the_product_of_the_axes() -> None:
    """The seeds' example: 64 NPUs = 8 (dp) x 4 (tp) x 2 (pp)."""
    assert ParallelConfig(tp=4, pp=2, dp=8).world_size == 64
    assert ParallelConfig.of_world(64, tp=4, pp=2) == ParallelConfig(tp=4, pp=2, dp=8)


@pytest.mark.parametrize(
    ("degrees", "reason"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"dp": 2.0}, "dp is 2.0"),
        ({"pp": True}, "pp is True"),
        ({"dp": 4, "ep": 3}, "ep=3 does not divide dp=4.*1, 2, 4"),
        ({"sequence_parallel": True}, "tp is 1"),
    ],
)
def test_impossible_degrees_are_refused(degrees: dict, reason: str) -> None:
    with pytest.raises(DsConfigError, match=reason):
        ParallelConfig(**degrees)


@pytest.mark.parametrize(("world", "tp", "pp"), [(6, 4, 1), (8, 4, 4)])
def test_degrees_that_do_not_divide_the_world_are_refused(world: int, tp: int, pp: int) -> None:
    with pytest.raises(DsConfigError, match="does not divide"):
        ParallelConfig.of_world(world, tp=tp, pp=pp)


@pytest.mark.parametrize(("world", "tp", "pp"), [(8, 0, 1), (0, 1, 1), (8, 1, -2)])
def test_a_world_or_degree_below_1_is_named(world: int, tp: int, pp: int) -> None:
    with pytest.raises(DsConfigError, match=r"(tp|pp|world size) is (0|-2); give a whole number"):
        ParallelConfig.of_world(world, tp=tp, pp=pp)
