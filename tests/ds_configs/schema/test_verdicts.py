"""The schema's verdict on a value equals DeepSpeed's own, for keys and values drawn at random."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_configs.schema import Key, Schema, load_schema
from tests.ds_configs.oracle import Oracle

# Switches that DeepSpeed takes only with another key beside them: rules between keys, which lint has.
NEED_COMPANY = {
    "elasticity.enabled",
    "data_efficiency.data_sampling.curriculum_learning.enabled",
    "data_efficiency.data_sampling.dynamic_batching.enabled",
    "bf16.bf16_optimizer_states",
    "bfloat16.bf16_optimizer_states",
}
ODD_TEXT = ["", "auto", "8", " 8 ", "+8", "-1", "08", "1_000", "8.0", "8.5", "2e8", "1e400", "nan", "inf"]
ODD_WORDS = ["true", "False", " true", "on", "no", "t", "cpu", "nvme", "none", "fp16", "BF16", "warn", "sum"]
ODD_NUMBERS: list[float] = [
    0,
    1,
    2,
    3,
    4,
    -1,
    8,
    10**30,
    0.0,
    0.5,
    1.0,
    2.0,
    2.5,
    -0.5,
    2e8,
    1e30,
    math.inf,
    math.nan,
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_TEXT + ODD_WORDS),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
)
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(st.sampled_from(["enabled", "device", "stage", "strict", "x"]), scalars, max_size=2),
)


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    running = Oracle()
    yield running
    running.close()


@pytest.fixture(scope="module")
def schema() -> Schema:
    return load_schema(importlib.metadata.version("deepspeed"))


def keys_of(schema: Schema) -> st.SearchStrategy[Key]:
    """Any key of the schema, by its number: Hypothesis would hash all of them for each example."""
    keys = list(schema.keys.values())
    return st.integers(0, len(keys) - 1).map(keys.__getitem__)


def document_with(key: Key, value: Any) -> dict[str, Any]:
    """A configuration that DeepSpeed takes but for ``value`` at ``key``."""
    document: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
    if key.name == "train_micro_batch_size_per_gpu":
        document = {"train_batch_size": 2} if value is None else {}
    if key.path[0] == "expert_parallel":
        document["expert_parallel"] = {"enabled": False}
    if key.path[:2] == ("optimizer", "params"):
        document["optimizer"] = {"type": "Adam"}
    if key.name.endswith("master_weights_and_grads"):
        document["zero_optimization"] = {"stage": 2}
    inner = document
    for name in key.path[:-1]:
        inner = inner.setdefault(name, {})
    inner[key.path[-1]] = value
    return document


def is_for_rules_between_keys(key: Key, value: Any) -> bool:
    """Whether DeepSpeed's answer depends on more than this key."""
    if key.name in NEED_COMPANY or key.name.startswith("optimizer.params."):
        return True
    if f"{key.name}.enabled" in NEED_COMPANY and isinstance(value, dict):
        return bool(value.get("enabled"))
    if key.name == "zero_optimization.compute_grad_norm":
        return value not in (True, 1, "auto")
    if key.name.endswith("offload_optimizer.ratio"):
        return True
    return key.name == "train_batch_size" and isinstance(value, int | float) and value > 0


def test_verdict_equals_deepspeeds_for_every_key(oracle: Oracle, schema: Schema) -> None:
    panel = [
        None,
        True,
        "auto",
        "8",
        "8.0",
        "x",
        0,
        -1,
        1,
        2,
        2.5,
        2e8,
        [],
        ["a"],
        [1],
        {},
        {"x": 1},
        {"enabled": True},
    ]
    wrong = []
    for key in schema.keys.values():
        limits = [limit for limit in (key.minimum, key.maximum) if limit is not None]
        for value in [*panel, *limits, *key.choices, *(str(choice).upper() for choice in key.choices)]:
            if is_for_rules_between_keys(key, value):
                continue
            document = document_with(key, value)
            refusals, answer = schema.refusals(document), oracle.deepspeed(document)
            if bool(refusals) != bool(answer):
                wrong.append((key.name, value, refusals, answer))
    assert wrong == []


@settings(max_examples=400)
@given(data=st.data())
def test_verdict_equals_deepspeeds(data: st.DataObject, oracle: Oracle, schema: Schema) -> None:
    key = data.draw(keys_of(schema))
    suited = st.sampled_from([*key.choices, key.default, *(str(choice).upper() for choice in key.choices)])
    value: Any = data.draw(st.one_of(values, suited))
    if is_for_rules_between_keys(key, value):
        return
    document = document_with(key, value)
    refusals = schema.refusals(document)
    answer = oracle.deepspeed(document)
    assert bool(refusals) == bool(answer), f"{document}: schema {refusals}, DeepSpeed {answer!r}"


@settings(max_examples=300)
@given(data=st.data())
def test_what_the_schema_refuses_deepspeed_refuses_in_any_company(
    data: st.DataObject, oracle: Oracle, schema: Schema
) -> None:
    document: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
    for key in data.draw(st.lists(keys_of(schema), min_size=2, max_size=6)):
        inner: Any = document
        for name in key.path[:-1]:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner[key.path[-1]] = data.draw(st.one_of(values, st.sampled_from([key.default, *key.choices])))
    if schema.refusals(document):
        assert oracle.deepspeed(document), f"{document}: only the schema refuses {schema.refusals(document)}"


def test_every_default_is_taken_by_deepspeed(oracle: Oracle, schema: Schema) -> None:
    refused = {}
    for key in schema.keys.values():
        optional = key.default is None and "null" not in key.types
        if key.types and not (key.required or optional or key.name == "bfloat16"):
            answer = oracle.deepspeed(document_with(key, key.default))
            if answer:
                refused[key.name] = answer
    assert refused == {}


def test_every_removed_key_is_refused_even_empty(oracle: Oracle, schema: Schema) -> None:
    taken = [
        (key.name, value)
        for key in schema.keys.values()
        if key.removed_by == "parser"
        for value in ({}, [], None, False)
        if not oracle.deepspeed(document_with(key, value))
    ]
    assert taken == []


def test_objects_are_strict_where_the_schema_says_so(oracle: Oracle, schema: Schema) -> None:
    wrong = []
    for key in schema.keys.values():
        if "object" in key.types and not key.open and key.check != "nothing":
            refused = bool(oracle.deepspeed(document_with(key, {"no_such_key": 1})))
            if refused != schema.is_strict(key.path):
                wrong.append((key.name, refused))
    assert wrong == []
