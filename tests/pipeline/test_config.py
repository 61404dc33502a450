"""The section `pipeline` of a DeepSpeed configuration."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_configs.generate.options import section
from ds_configs.pipeline_section import KEYS, STAGES_OF_A_RANK, faults
from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.schedules.registry import TRAINING_SCHEDULES, chunks_of


def read(**section: Any) -> PipelineConfig:
    """Read a configuration that has this section."""
    return PipelineConfig.from_ds_config({"pipeline": section})


def test_values_and_defaults(tmp_path: Path) -> None:
    assert PipelineConfig.from_ds_config({}) == PipelineConfig() == PipelineConfig.from_ds_config(None)
    section = {
        "stages": 4,
        "schedule": "zb-v",
        "partition": [1, 2],
        "trace_steps": 3,
        "recomputation": "full",
    }
    config = read(**section)
    assert (config.stages, config.schedule, config.partition, config.trace_steps) == (4, "zb-v", (1, 2), (3,))
    assert config.recomputed_layers == 1 and config.given == set(section)
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"pipeline": section}), encoding="utf-8")
    assert PipelineConfig.from_ds_config(path) == config


def test_auto_is_the_default_and_deepspeeds_name_is_understood() -> None:
    assert read(stages="auto", partition="auto") == PipelineConfig()
    assert read(activation_checkpoint_interval=2).recomputed_layers == 2
    assert read(activation_checkpoint_interval=1, recomputation="full").recomputed_layers == 1
    assert read(use_reentrant=False, pipe_partitioned=False) == PipelineConfig()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"schedul": "1f1b"}, "pipeline.schedul is no key .* did you mean schedule"),
        ({"colour": 1}, "its keys are stages, schedule"),
        ({"schedule": "2f2b"}, "choose one of gpipe, 1f1b"),
        ({"schedule": "1f1b", "virtual_stages": 2}, "schedule 1f1b has 1 stage on each rank, not 2"),
        ({"stages": 0}, "pipeline.stages is 0; give a whole number"),
        ({"stages": True}, "pipeline.stages is True"),
        ({"partition": "best"}, "choose uniform, parameters"),
        ({"partition": [1, "2"]}, "pipeline.partition is '2'"),
        ({"recomputation": "some"}, "choose none, full, or a number"),
        ({"recomputation": -1}, "pipeline.recomputation is -1"),
        ({"activation_checkpoint_interval": 2, "recomputation": "full"}, "two names of one thing"),
        ({"use_reentrant": True}, "loses gradients"),
        ({"pipe_partitioned": True}, "this engine does not do"),
        ({"trace_steps": [0]}, "pipeline.trace_steps is 0"),
        ({"seed_layers": "yes"}, "give true or false"),
        ({"use_reentrant": "no"}, "use_reentrant is 'no', but"),
        ({"trace_file": 3}, "pipeline.trace_file is 3; give the path"),
        ({"trace_file": ""}, "give the path of a file"),
        ({"trace_file": "{rank}.json"}, "the only thing that is replaced in it is {step}"),
        ({"trace_steps": [1, 2], "trace_file": "a.json"}, r"steps \[1, 2\] would replace each other"),
    ],
)
def test_refusals(section: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        read(**section)


def test_a_section_that_is_none() -> None:
    with pytest.raises(PipelineError, match="give a section"):
        PipelineConfig.from_ds_config({"pipeline": 4})


POOL: dict[str, list[Any]] = {
    "stages": [None, 2, 0, True, "auto", "2"],
    "schedule": ["1f1b", "zb-v", "interleaved", "eval", "auto", None, 3, ["zb-v"]],
    "virtual_stages": [None, 1, 2, 3, 0, 2.0, "auto"],
    "partition": ["uniform", "type:Block", "best", [1, 2], [1, "2"], [0], 3, None, {}, "auto"],
    "recomputation": ["none", "full", "some", 0, 2, -1, True, 1.5, None, [1], "auto"],
    "seed_layers": [True, "yes", 0, "auto"],
    "dynamic_shape": [False, 1, None],
    "trace_steps": [2, [1, 2], [0], 0, "x", None, 2.5, {}, [], [[1]], "auto"],
    "trace_file": ["a.json", "a-{step}.json", "{rank}.json", "{step}", "", 3],
    "activation_checkpoint_interval": [0, 1, 2, -1, True, None, "auto"],
    "use_reentrant": [False, True, None],
    "pipe_partitioned": [False, True, 0],
    "grad_partitioned": [True, None, "auto"],
    "schedules": ["zb-v"],
    "colour": [1],
}


@settings(deadline=None, max_examples=400)
@given(
    st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in POOL.items()}),
)
def test_lint_refuses_what_the_engine_refuses(block: dict[str, Any]) -> None:
    """`ds_configs` knows the section without importing the engine."""
    try:
        read(**block)
        refused = False
    except PipelineError:
        refused = True
    assert bool(faults(block)) == refused


def test_ds_configs_knows_the_engines_keys_and_schedules() -> None:
    assert set(KEYS) == {each.name for each in fields(PipelineConfig)} - {"given"}
    offered = section("own_pipeline")
    assert set(offered) == set(KEYS) - {"stages"}, "pp says how many stages there are"
    assert offered["schedule"].choices == TRAINING_SCHEDULES
    assert tuple(STAGES_OF_A_RANK) == TRAINING_SCHEDULES
    for schedule, stages in STAGES_OF_A_RANK.items():
        assert chunks_of(schedule) == stages or schedule == "interleaved"
