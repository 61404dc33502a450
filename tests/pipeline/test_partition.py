"""Where layers are cut: even, never empty, as the method says."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
import torch
from deepspeed.pipe import LayerSpec
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.partition import balanced, count_parameters, cut, measure_layers


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_the_heaviest_stage_is_as_light_as_can_be(weights: list[int], data: st.DataObject) -> None:
    """Against all cuts there are."""
    stages = data.draw(st.integers(1, len(weights)))

    def heaviest(bounds: tuple[int, ...]) -> int:
        return max(sum(weights[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))

    every = [(0, *inner, len(weights)) for inner in combinations(range(1, len(weights)), stages - 1)]
    found = balanced(weights, stages)
    assert found in every
    assert heaviest(found) == min(map(heaviest, every))


def test_equal_weights_are_cut_evenly() -> None:
    assert balanced([1] * 10, 4) in [(0, 2, 4, 7, 10), (0, 3, 6, 8, 10), (0, 2, 5, 7, 10), (0, 2, 5, 8, 10)]
    assert balanced([0, 1, 0, 0, 1, 0], 2) in [(0, 3, 6), (0, 2, 6), (0, 4, 6)]
    assert cut([torch.relu] * 6, 3, "parameters") == (0, 2, 4, 6), "layers without parameters are spread"


def test_methods() -> None:
    linear = nn.Linear(4, 4)
    layers = [LayerSpec(nn.Embedding, 100, 4), torch.tanh, linear, nn.Linear(4, 4), LayerSpec(nn.ReLU)]
    assert [count_parameters(layer) for layer in layers] == [400, 0, 20, 20, 0]
    assert cut(layers, 2, "parameters") == (0, 2, 5)
    assert cut(layers, 2, "uniform") in [(0, 2, 5), (0, 3, 5)]
    assert cut(layers, 2, "type:linear") == (0, 3, 5)
    assert cut(layers, 2, [4, 1]) == (0, 4, 5)
    assert cut(layers, 2, "time", lambda: [1.0, 1.0, 1.0, 1.0, 4.0]) == (0, 4, 5)


def test_every_layer_runs_on_the_output_of_the_one_before() -> None:
    """One number a layer; the numbers themselves are the machine's."""
    layers = [LayerSpec(nn.Embedding, 9, 4), torch.tanh, LayerSpec(nn.Linear, 4, 6), nn.Linear(6, 2)]
    times = measure_layers(layers, torch.arange(9), torch.device("cpu"), repeats=1)
    assert len(times) == 4 and min(times) > 0


@pytest.mark.parametrize(
    ("layers", "stages", "method", "words"),
    [
        (3, 4, "uniform", "4 stages for 3 layers"),
        (3, 4, "parameters", "4 stages for 3 layers"),
        (3, 4, "time", "4 stages for 3 layers (3 × Linear)"),
        (3, 2, "time", "nothing to run them on"),
        (3, 2, "fastest", "choose uniform, parameters"),
        (3, 2, "type:(", "no regular expression"),
        (3, 2, "type:Conv", "matches no layer; their classes are Linear"),
        (3, 2, [1, 1], "places 2 layers, but the model has 3"),
        (3, 2, [3, 0], "every stage needs one"),
        (3, 2, [1, 1, 1], "3 numbers for 2 stages"),
    ],
)
def test_refusals(layers: int, stages: int, method: str | list[int], words: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(words)):
        cut([nn.Linear(2, 2) for _ in range(layers)], stages, method)
