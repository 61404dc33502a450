"""Checkpoints: DeepSpeed's files, saved at one layout and loaded at another; and a mesh with tp."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import checkpoint_cases, damage_cases, layout_cases, odd_layer_cases
from tests.pipeline.conftest import Ranks
from tests.pipeline.layout_cases import Layout
from tests.pipeline.models import Case

TIED = Case(tied=True, clip=0.3)
ON_THE_HOST = (("offload_optimizer", {"device": "cpu"}),)


@pytest.mark.parametrize(("schedule", "zero"), [("1f1b", 0), ("zb-h1", 1), ("zb-v", 0)])
def test_training_resumes(two_cpus: Ranks, tmp_path: Path, schedule: str, zero: int) -> None:
    two_cpus.run(checkpoint_cases.resume, two_cpus.backend, schedule, zero, str(tmp_path))


def test_any_layout(four: Ranks, tmp_path: Path) -> None:
    """Stages, replicas, schedule, partition and ZeRO all change, each way."""
    ways = [
        (Layout(4), Layout(2, "zb-v")),
        (Layout(2, "zb-v", zero=1, options=(("elastic_checkpoint", True),)), Layout(1, zero=1)),
        (Layout(1, zero=1), Layout(4, partition=[1, 1, 3, 3])),
        (Layout(2, "interleaved", 2), Layout(4, zero=1)),
    ]
    four.run(layout_cases.carry, four.backend, TIED, ways, str(tmp_path))


def test_universal(four: Ranks, tmp_path: Path) -> None:
    """ds_to_universal.py makes of ours what ours loads, also without ZeRO, which DeepSpeed cannot."""
    ways = [
        (Layout(2, "zb-v", zero=1), Layout(4, universal=True)),
        (Layout(2, zero=1, partition=[2, 6]), Layout(2, "zb-v", zero=1, universal=True)),
    ]
    four.run(layout_cases.carry, four.backend, TIED, ways, str(tmp_path))


def test_master_weights(two: Ranks, tmp_path: Path) -> None:
    """Half precision with fp32 master weights: with ZeRO and without, on the host, in a universal folder."""
    case = Case(tied=True, clip=0.3, precision="bf16")
    ways = [(Layout(2), Layout(1, zero=1))]
    if two.backend == "gloo":
        ways += [
            (Layout(1, zero=1, options=ON_THE_HOST), Layout(2, "zb-v")),
            (Layout(2, zero=1), Layout(1, zero=1, universal=True)),
            (Layout(2), Layout(1, precision="fp32")),
            (Layout(1, precision="fp32"), Layout(2, zero=1)),
        ]
    two.run(layout_cases.carry, two.backend, case, ways, str(tmp_path))
    if two.backend == "hccl":  # DeepSpeed has no fp16 on CPUs
        dynamic = (("fp16", {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}),)
        case = Case(tied=True, clip=0.3, precision="fp16", extra=dynamic)
        ways = [(Layout(2), Layout(1, zero=1)), (Layout(1, zero=1), Layout(2, "zb-v"))]
        two.run(layout_cases.carry, two.backend, case, ways, str(tmp_path))


def test_seeds_and_rates(two_cpus: Ranks, tmp_path: Path) -> None:
    two_cpus.run(layout_cases.seeds_and_rates, two_cpus.backend, str(tmp_path))


def test_weights_without_states(two_cpus: Ranks, tmp_path: Path) -> None:
    two_cpus.run(damage_cases.parts_of_it, two_cpus.backend, str(tmp_path))
    two_cpus.run(damage_cases.rounded_master_weights, two_cpus.backend, str(tmp_path))


def test_layers_with_more_than_trained_parameters(two_cpus: Ranks, tmp_path: Path) -> None:
    two_cpus.run(odd_layer_cases.go_on, str(tmp_path))
    two_cpus.run(odd_layer_cases.own_parts_of_tied_modules, str(tmp_path))


def test_damaged_files(two_cpus: Ranks, tmp_path: Path) -> None:
    two_cpus.run(damage_cases.damaged, two_cpus.backend, str(tmp_path))


def test_saves_that_are_cut_off(two_cpus: Ranks, tmp_path: Path) -> None:
    two_cpus.run(damage_cases.cut_off, two_cpus.backend, str(tmp_path))


def test_refusals(two_cpus: Ranks, tmp_path: Path) -> None:
    two_cpus.run(damage_cases.refused, two_cpus.backend, str(tmp_path))


def test_tensor_parallel_shards(four: Ranks, tmp_path: Path) -> None:
    """Also of a vocabulary that is padded; directly and through a universal folder."""
    case = Case(clip=0.3)
    ways = [
        (Layout(2, tp=2, zero=1), Layout(2, "zb-v")),
        (Layout(2), Layout(1, tp=2, zero=1)),
        (Layout(2, tp=2, zero=1), Layout(2, zero=1, universal=True)),
        (Layout(1, tp=2, zero=1), Layout(2, tp=2, universal=True)),
    ]
    four.run(layout_cases.carry, four.backend, case, ways, str(tmp_path))


def test_tensor_parallelism(four: Ranks) -> None:
    four.run(checkpoint_cases.with_tensor_parallelism, four.backend)


@pytest.mark.parametrize(("precision", "zero"), [("fp32", 0), ("fp32", 1), ("bf16", 0)])
def test_from_deepspeeds_own_engine(two_cpus: Ranks, tmp_path: Path, precision: str, zero: int) -> None:
    """At its layout always; at another if the file names its parameters, as ZeRO's and bf16's do."""
    after = [Layout(2, zero=zero)]
    if (precision, zero) != ("fp32", 0):
        after.append(Layout(1, zero=zero))
    case = Case(tied=True, zero=zero, precision=precision)
    two_cpus.run(layout_cases.from_stock, two_cpus.backend, case, after, str(tmp_path))


@pytest.mark.parametrize(("precision", "zero"), [("fp32", 0), ("fp32", 1), ("bf16", 1)])
def test_to_deepspeeds_own_engine(two_cpus: Ranks, tmp_path: Path, precision: str, zero: int) -> None:
    """Not bf16 without ZeRO, of which DeepSpeed 0.19.8 does not load its own checkpoints either."""
    case = Case(tied=True, zero=zero, precision=precision)
    two_cpus.run(layout_cases.to_stock, two_cpus.backend, case, str(tmp_path))
