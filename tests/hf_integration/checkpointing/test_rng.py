"""A rank's random generators go on after loading as they would have without."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_integration.checkpointing.rng import file_name, load_rng, save_rng
from hf_integration.errors import TrainingInputError
from tests.harness.fixtures import on_ranks

CPU = torch.device("cpu")


def draw() -> list[float]:
    """Return numbers of all three generators of a process."""
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())] + (
        torch.rand(3).tolist()
    )


def test_loading_brings_back_the_numbers_that_would_have_come(tmp_path: Path) -> None:
    draw()
    save_rng(tmp_path / "rng_state.pth", CPU)
    expected = draw()
    draw()
    assert load_rng(tmp_path / "rng_state.pth", CPU)
    assert draw() == expected


@on_ranks(1)
def test_generator_of_the_device_goes_on_too(tmp_path: Path) -> None:
    device = torch.device("npu:0")
    save_rng(tmp_path / "rng_state.pth", device)
    expected = torch.rand(5, device=device).tolist()
    load_rng(tmp_path / "rng_state.pth", device)
    assert torch.rand(5, device=device).tolist() == expected


def test_file_of_transformers_is_left_to_it(tmp_path: Path) -> None:
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    torch.save(states, tmp_path / "rng_state.pth")
    before = torch.get_rng_state()
    assert not load_rng(tmp_path / "rng_state.pth", CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_names_are_those_that_transformers_gives() -> None:
    assert [file_name(0, 1), file_name(3, 8)] == ["rng_state.pth", "rng_state_3.pth"]


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize("damage", ["missing", "cut short", "hostile"])
def test_what_cannot_be_read_is_named(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rng_state.pth"
    monkeypatch.chdir(tmp_path)
    if damage == "cut short":
        save_rng(file, CPU)
        file.write_bytes(file.read_bytes()[:-100])
    if damage == "hostile":
        torch.save({"format": "npu_plugins.rng", "python": Evil()}, file)
    with pytest.raises(TrainingInputError, match=r"rng_state\.pth .*give another checkpoint") as told:
        load_rng(file, CPU)
    assert "\n" not in str(told.value)
    assert not Path("unpickled").exists()
