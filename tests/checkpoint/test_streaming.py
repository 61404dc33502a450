"""Safetensors written one tensor after another are the library's own, to the byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from npu_plugins.checkpoint.files import DTYPES
from npu_plugins.checkpoint.streaming import SafetensorsWriter, TensorInfo


def infos(tensors: dict[str, torch.Tensor]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=6),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([None, {"format": "pt"}]),
    st.randoms(),
)
def test_the_bytes_are_those_of_save_file(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: dict,
    metadata: dict[str, str] | None,
    chance: random.Random,
) -> None:
    directory = tmp_path_factory.getbasetemp()
    tensors = {name: (torch.randn(shape) * 9).to(DTYPES[code]) for name, (code, shape) in wanted.items()}
    save_file(tensors, directory / "theirs", metadata)
    order = list(tensors)
    chance.shuffle(order)
    with SafetensorsWriter(directory / "ours", infos(tensors), metadata) as writer:
        for name in order:
            writer.write(name, tensors[name])
    assert (directory / "ours").read_bytes() == (directory / "theirs").read_bytes()


def test_a_view_is_written_as_it_looks(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    save_file({"w": tensor.contiguous()}, tmp_path / "theirs")
    with SafetensorsWriter(tmp_path / "ours", infos({"w": tensor})) as writer:
        writer.write("w", tensor)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_another_tensor_than_was_said_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="w is .*float16"),
        SafetensorsWriter(tmp_path / "x", {"w": TensorInfo(torch.float32, (2,))}) as writer,
    ):
        writer.write("w", torch.zeros(2).half())
    with (
        pytest.raises(ValueError, match="a and 1 more were not written"),
        SafetensorsWriter(tmp_path / "y", infos({"a": torch.zeros(1), "b": torch.zeros(1)})),
    ):
        pass
