"""Small values that go through JSON and back."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
import torch

from npu_plugins.checkpoint import CheckpointError
from npu_plugins.checkpoint.state.values import plain, restored


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1 + 0.2,
        float("inf"),
        "cosine",
        [1, [2.5]],
        (0.9, 0.999),
        {"base_lrs": [1e-3], "f": [None]},
    ],
    ids=str,
)
def test_comes_back_as_it_was(value: Any) -> None:
    again = restored(json.loads(json.dumps(plain(value, "it"))))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(0.1), torch.tensor([1, 2]), torch.tensor([0.1, -2.0], dtype=torch.bfloat16)],
    ids=str,
)
def test_tensors_come_back_to_the_bit(tensor: torch.Tensor) -> None:
    again = restored(json.loads(json.dumps(plain({"lr": tensor}, "it"))))["lr"]
    assert again.dtype == tensor.dtype
    assert torch.equal(again, tensor)


def test_numbers_of_numpy_are_numbers() -> None:
    assert plain(numpy.float64(0.5), "it") == 0.5


@pytest.mark.parametrize(
    ("value", "kind"), [({1: 2}, "dict"), (object(), "object"), ({"a": {3}}, "set"), ({"tuple": 1}, "dict")]
)
def test_anything_else_is_refused_by_its_place(value: Any, kind: str) -> None:
    with pytest.raises(CheckpointError, match=f"the scheduler.* is a {kind}"):
        plain(value, "the scheduler")
