"""Reading slices of a checkpoint directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import INDEX_FILE, SINGLE_FILE, WINDOW_BYTES, CheckpointFiles


def matrix(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def two_files(directory: Path) -> dict[str, torch.Tensor]:
    """Write a checkpoint of two files and return what it holds."""
    tensors = {"a.weight": matrix(6, 8), "a.bias": matrix(6), "b.weight": matrix(8, 6)}
    weight_map = {
        "a.weight": "model-1.safetensors",
        "a.bias": "model-1.safetensors",
        "b.weight": "model-2.safetensors",
    }
    for file in set(weight_map.values()):
        held = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(held, directory / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index))
    return tensors


@given(data=st.data(), dim=st.integers(0, 2))
def test_a_slice_is_the_slice_of_the_whole_tensor(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dim: int
) -> None:
    directory = tmp_path_factory.getbasetemp()
    whole = matrix(5, 7, 6)
    if not (directory / SINGLE_FILE).exists():
        save_file({"w": whole}, directory / SINGLE_FILE)
    start = data.draw(st.integers(0, whole.shape[dim] - 1))
    length = data.draw(st.integers(1, whole.shape[dim] - start))
    expected = whole.narrow(dim, start, length)
    target = torch.empty_like(expected)
    CheckpointFiles.open(directory).read("w", target, dim, start)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_tensor_of_several_windows(tmp_path: Path, dim: int) -> None:
    whole = matrix(1100, 1025)
    assert whole.nbytes > WINDOW_BYTES
    save_file({"w": whole}, tmp_path / SINGLE_FILE)
    target = torch.empty_like(whole.narrow(dim, 3, 1020))
    CheckpointFiles.open(tmp_path).read("w", target, dim, 3)
    assert torch.equal(target, whole.narrow(dim, 3, 1020))


def test_a_view_is_filled_in_place_and_converted(tmp_path: Path) -> None:
    save_file({"w": matrix(4, 6), "scalar": torch.tensor(3.0)}, tmp_path / SINGLE_FILE)
    files = CheckpointFiles.open(tmp_path)
    target = torch.zeros(6, 4, dtype=torch.bfloat16)
    files.read("w", target.t()[:2], 0, 2)
    assert torch.equal(target[:, :2], matrix(4, 6)[2:].t().bfloat16())
    assert target[:, 2:].eq(0).all()
    scalar = torch.zeros(())
    files.read("scalar", scalar)
    assert scalar == 3


def test_several_files_are_found_through_the_index(tmp_path: Path) -> None:
    tensors = two_files(tmp_path)
    files = CheckpointFiles.open(tmp_path)
    assert {name: stored.shape for name, stored in files.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert files.metadata["model-1.safetensors"] == {"format": "pt"}
    assert files.dtype() == torch.float32
    for name, tensor in tensors.items():
        target = torch.empty_like(tensor)
        files.read(name, target)
        assert torch.equal(target, tensor)


def test_mixed_dtypes_are_refused_with_the_names(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(2), "ids": torch.zeros(2, dtype=torch.long), "b": torch.zeros(2).half()}
    save_file(tensors, tmp_path / SINGLE_FILE)
    files = CheckpointFiles.open(tmp_path)
    with pytest.raises(CheckpointError, match=r"a is float32, b is float16.*pass dtype="):
        files.dtype()
    assert files.dtype(["ids", "b"]) == torch.float16


def test_a_truncated_file_is_refused_with_its_size(tmp_path: Path) -> None:
    two_files(tmp_path)
    file = tmp_path / "model-2.safetensors"
    whole = file.read_bytes()
    for size in (len(whole) - 4, 40, 0):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=rf"model-2.safetensors \({size} bytes\).*cut short"):
            CheckpointFiles.open(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    two_files(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model-2.safetensors, which its .* lists"):
        CheckpointFiles.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"b.weight": "model-1.safetensors"},
            r"says that b.weight is in model-1.safetensors, but it is in model-2",
        ),
        (
            {"c.weight": "model-1.safetensors"},
            r"says that c.weight is in model-1.safetensors, but no file has it",
        ),
        ({"a.bias": None}, r"model-1.safetensors holds a.bias, which .* does not list"),
    ],
)
def test_an_index_of_other_files_is_refused(
    tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    two_files(tmp_path)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    merged = {**index["weight_map"], **change}
    index["weight_map"] = {name: file for name, file in merged.items() if file is not None}
    if "b.weight" in change:
        index["weight_map"]["other"] = "model-2.safetensors"
        save_file({"b.weight": matrix(2, 2), "other": matrix(2)}, tmp_path / "model-2.safetensors")
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        CheckpointFiles.open(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    tensors = two_files(tmp_path)
    save_file({"b.weight": tensors["b.weight"], "a.bias": matrix(6)}, tmp_path / "model-2.safetensors")
    with pytest.raises(CheckpointError, match=r"a.bias is both in"):
        CheckpointFiles.open(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}'])
def test_a_broken_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(CheckpointError, match="is no index of safetensors files"):
        CheckpointFiles.open(tmp_path)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no weights"):
        CheckpointFiles.open(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="only pytorch_model.bin"):
        CheckpointFiles.open(tmp_path)
    with pytest.raises(CheckpointError, match="is no directory"):
        CheckpointFiles.open(tmp_path / "missing")


@pytest.mark.parametrize(
    ("shape", "dim", "start"), [((4, 6), 0, 1), ((4, 5), 0, 0), ((4, 3), 1, 4), ((24,), 0, 0)]
)
def test_a_slice_beyond_the_tensor_is_refused(
    tmp_path: Path, shape: tuple[int, ...], dim: int, start: int
) -> None:
    save_file({"w": matrix(4, 6)}, tmp_path / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=r"w in .* has shape \[4, 6\]"):
        CheckpointFiles.open(tmp_path).read("w", torch.empty(shape), dim, start)


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4).to(torch.float8_e4m3fn)}, tmp_path / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=r"w in .* has dtype F8_E4M3.*quantised"):
        CheckpointFiles.open(tmp_path)
