"""Files of torch.save: nothing in them is run, and damage is found."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.torch_files import damage, read_torch


class Payload:
    """Runs a command of the shell when it is unpickled by a reader that trusts its input."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def malicious(file: Path, mark: Path, **options: Any) -> None:
    """Write what looks like a model's state, with a payload among the tensors."""
    torch.save({"module": {"w": torch.zeros(2)}, "extra": Payload(mark)}, file, **options)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_malicious_file_is_refused_and_runs_nothing(tmp_path: Path, zipped: bool) -> None:
    file, mark = tmp_path / "mp_rank_00_model_states.pt", tmp_path / "it-ran"
    malicious(file, mark, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"asks for (posix|os)\.system, and nothing of it was run"):
        read_torch(file)
    problem = damage(file)
    assert problem is not None
    assert "more than tensors and plain values" in problem
    assert "\n" not in problem
    assert not mark.exists()
    torch.load(file, weights_only=False)
    assert mark.exists(), "the payload works on a reader that trusts its input"


def test_a_bare_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    file, mark = tmp_path / "pytorch_model.bin", tmp_path / "it-ran"
    file.write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(CheckpointError):
        read_torch(file)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "builtins.getattr", "torch.hub.load", "subprocess.Popen"])
def test_no_function_is_called(tmp_path: Path, name: str) -> None:
    module, _, own = name.rpartition(".")

    class Call:
        def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
            return getattr(__import__(module, fromlist=[own]), own), ("1/0",)

    torch.save([Call()], tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=rf"it asks for (\w+\.)*{own}, and nothing"):
        read_torch(tmp_path / "x.pt")


def test_tensors_and_plain_values_are_read(tmp_path: Path) -> None:
    content = {"w": torch.arange(6.0).reshape(2, 3), "step": 3, "betas": (0.9, 0.95), "name": None}
    torch.save(content, tmp_path / "x.pt")
    found = read_torch(tmp_path / "x.pt")
    assert torch.equal(found.pop("w"), content.pop("w"))
    assert found == content
    assert damage(tmp_path / "x.pt") is None


def test_deepspeeds_own_classes_are_read(tmp_path: Path) -> None:
    from deepspeed.checkpoint.universal_checkpoint import SubparamShape
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    content = {
        "zero_stage": ZeroStageEnum.weights,
        "slice": fragment_address(numel=3, start=7),
        "static": LossScaler(scale=4.0),
        "dynamic": DynamicLossScaler(2.0**16, 2.0, 1000, 1.0, 2),
        "shape": SubparamShape(patterns=["a"], shape=(2, 3), partition_dim=0),
    }
    torch.save(content, tmp_path / "x.pt")
    found = read_torch(tmp_path / "x.pt")
    assert found["zero_stage"] == ZeroStageEnum.weights
    assert found["slice"] == content["slice"]
    assert found["shape"] == content["shape"]
    assert vars(found["static"]) == vars(content["static"])
    assert vars(found["dynamic"]) == vars(content["dynamic"])


def test_the_trainers_generators_are_read(tmp_path: Path) -> None:
    import numpy

    torch.save({"numpy": numpy.random.get_state()}, tmp_path / "rng_state_0.pth")
    assert damage(tmp_path / "rng_state_0.pth") is None
    (tmp_path / "rng_state_0.pth").rename(tmp_path / "other.pth")
    assert "numpy" in str(damage(tmp_path / "other.pth"))


def test_damage_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    torch.save({"w": torch.arange(1000.0)}, file)
    whole = file.read_bytes()
    for size in (0, 10, 700, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert "no whole file of torch.save" in str(damage(file)), size
    with zipfile.ZipFile(tmp_path / "y.pt", "w") as archive:
        archive.writestr("x", "no checkpoint")
    assert "no whole file of torch.save" in str(damage(tmp_path / "y.pt"))
    place = whole.index(torch.arange(1000.0).numpy().tobytes()) + 400
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert "checksum of its part x/data/0 differs" in str(damage(file))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"x\.pt is missing"):
        read_torch(file)


def test_objects_of_programs_are_checked_without_being_read(tmp_path: Path) -> None:
    mark = tmp_path / "it-ran"
    torch.save(Payload(mark), tmp_path / "training_args.bin")
    assert damage(tmp_path / "training_args.bin") is None
    assert not mark.exists()
    file = tmp_path / "training_args.bin"
    file.write_bytes(file.read_bytes()[:-30])
    assert damage(file) is not None
