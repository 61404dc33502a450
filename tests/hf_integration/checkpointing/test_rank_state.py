"""A rank's random generators go on after loading as they would have without."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_integration.checkpointing.rank_state import (
    UnloggedLoss,
    file_name,
    load_generators,
    load_loss,
    save_rank,
)
from hf_integration.errors import TrainingInputError
from tests.harness.fixtures import on_ranks

CPU = torch.device("cpu")
LOSS = UnloggedLoss(1.5, 10)


def draw() -> list[float]:
    """Return numbers of all three generators of a process."""
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())] + (
        torch.rand(3).tolist()
    )


def test_loading_brings_back_the_numbers_that_would_have_come(tmp_path: Path) -> None:
    draw()
    save_rank(tmp_path / "rng_state.pth", CPU, LOSS)
    expected = draw()
    draw()
    load_generators(tmp_path / "rng_state.pth", CPU)
    assert draw() == expected


@on_ranks(1)
def test_generator_of_the_device_goes_on_too(tmp_path: Path) -> None:
    device = torch.device("npu:0")
    save_rank(tmp_path / "rng_state.pth", device, LOSS)
    expected = torch.rand(5, device=device).tolist()
    load_generators(tmp_path / "rng_state.pth", device)
    assert torch.rand(5, device=device).tolist() == expected


def test_loss_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    loss = UnloggedLoss(0.1 + 0.2, 7)
    save_rank(tmp_path / "rng_state.pth", CPU, loss)
    assert load_loss(tmp_path / "rng_state.pth") == loss


def test_names_are_those_that_transformers_gives() -> None:
    assert [file_name(0, 1), file_name(3, 8)] == ["rng_state.pth", "rng_state_3.pth"]


class Evil:
    """Leaves a file behind where it is unpickled."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize("damage", ["missing", "cut short", "hostile", "of another format"])
def test_what_cannot_be_read_is_named(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rng_state.pth"
    monkeypatch.chdir(tmp_path)
    if damage == "cut short":
        save_rank(file, CPU, LOSS)
        file.write_bytes(file.read_bytes()[:-100])
    if damage == "hostile":
        torch.save({"format": "npu_plugins.rng", "python": Evil()}, file)
    if damage == "of another format":
        torch.save({"format": "npu_plugins.rng.2"}, file)
    with pytest.raises(TrainingInputError, match=r"rng_state\.pth .*give another checkpoint") as told:
        load_generators(file, CPU)
    assert "\n" not in str(told.value)
    assert not Path("unpickled").exists()
