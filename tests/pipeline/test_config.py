"""The section `pipeline` of a DeepSpeed configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.errors import PipelineError


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
    ],
)
def test_refusals(section: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        read(**section)


def test_a_section_that_is_none() -> None:
    with pytest.raises(PipelineError, match="give a section"):
        PipelineConfig.from_ds_config({"pipeline": 4})
