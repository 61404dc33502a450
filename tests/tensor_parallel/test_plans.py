"""Plans: how names match patterns, and where a model's plan comes from."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from npu_plugins.tensor_parallel.conversion import STYLES
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.plans import Plan, base_prefix, given_plan, plan_of

PART = st.sampled_from(["layers", "0", "17", "w1", "2d", "mlp", "h", "*"])


class Block(nn.Module):
    """Two layers with an attention and a feed-forward matrix."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(2, 2)}) for _ in range(2))
        self.config = config


@given(parts=st.lists(PART, min_size=1, max_size=5))
def test_numbers_between_dots_are_wildcards_as_in_transformers(parts: list[str]) -> None:
    transformers = pytest.importorskip("transformers.distributed.parallel_utils")
    name = ".".join(["model", *parts])  # transformers leaves a number at the very beginning as it is
    expected = transformers.replace_layer_number_by_wildcard(name)
    # Its expression steps over every second of several numbers in a row: once more finds them.
    expected = transformers.replace_layer_number_by_wildcard(expected)
    module = nn.Module()
    inner = module
    for part in ["model", *parts]:
        child = nn.Module()
        inner.add_module(part, child)
        inner = child
    assert Plan("p", {expected: "colwise"}).matches(module) == {name: "colwise"}


def test_a_pattern_names_all_layers_and_a_number_one() -> None:
    every = Plan("p", {"layers.*.up": "colwise"}).matches(Block())
    assert every == {"layers.0.up": "colwise", "layers.1.up": "colwise"}
    weights = Plan("p", {"layers.*.up.weight": "colwise"}).matches(Block())
    assert list(weights) == ["layers.0.up.weight", "layers.1.up.weight"]


def test_a_name_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        TensorParallelError, match=r"plan= names layers\.\*\.down \(rowwise\), which Block does"
    ):
        given_plan(Block(), {"layers.*.up": "colwise", "layers.*.down": "rowwise"}).matches(Block())
    variants = Plan("p", {"layers.*.up": "colwise", "layers.*.down": "rowwise"}, complete=False)
    assert set(variants.matches(Block()).values()) == {"colwise"}, "one plan for several variants"
    with pytest.raises(TensorParallelError, match=r"modules are like layers\.\*\.up"):
        Plan("p", {"layers.*.down": "rowwise"}, complete=False).matches(Block())


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(TensorParallelError, match="Block carries no tensor-parallel plan"):
        plan_of(Block())


@pytest.mark.parametrize("kind", ["../setup", "a/b", "", None, 3])
def test_a_model_type_is_no_path(kind: Any) -> None:
    class Config:
        model_type = kind

    with pytest.raises(TensorParallelError, match="carries no tensor-parallel plan"):
        plan_of(Block(Config()))


def test_our_plans_use_known_styles_and_say_why() -> None:
    files = list((resources.files("npu_plugins.tensor_parallel") / "model_plans").iterdir())
    assert {file.name for file in files} >= {"gpt2.json", "phi3.json"}
    for file in files:
        data = json.loads(file.read_text(encoding="utf-8"))
        assert data["why"].endswith(".")
        assert set(data["base"].values()) | set(data["head"].values()) <= set(STYLES)
        kinds = {kind for attributes in data["local"].values() for kind in attributes.values()}
        assert kinds <= {"heads", "kv_heads"}


def test_the_prefix_of_the_base_model() -> None:
    model = Block()
    model.base_model_prefix = "layers"  # type: ignore[assignment]
    assert base_prefix(model) == "layers."
    assert base_prefix(Block()) == ""
