"""Degrees and zero stage from flags and configuration: flags first, nothing passed over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.resolve import TrainingRun, Width, resolve
from hf_integration.errors import TrainingInputError
from hf_integration.parallel_settings import ParallelFlags, ParallelSettings, parallel_settings

ZERO1 = {"zero_optimization": {"stage": 1}}
DEGREE = st.none() | st.integers(1, 8)


def settings(config: dict[str, Any] | None = None, **flags: Any) -> ParallelSettings:
    return parallel_settings(ParallelFlags(**flags), config)


@given(tp=DEGREE, pp=DEGREE, by_file_tp=DEGREE, by_file_pp=DEGREE)
def test_a_flag_goes_before_the_configuration(
    tp: int | None, pp: int | None, by_file_tp: int | None, by_file_pp: int | None
) -> None:
    config = {
        **ZERO1,
        "tensor_parallel": {"autotp_size": by_file_tp or 0},
        "pipeline": {"stages": by_file_pp or "auto"},
    }
    found = settings(config, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
    assert (found.tp, found.pp) == (tp or by_file_tp or 1, pp or by_file_pp or 1)
    if found.divides:
        assert found.config is not None and "tensor_parallel" not in found.config
        assert found.config.get("pipeline", {}).get("stages", 1) == found.pp


def test_pipeline_flags_go_into_the_section_and_before_it() -> None:
    config: dict[str, Any] = {
        **ZERO1,
        "pipeline": {"stages": 2, "schedule": "gpipe", "activation_checkpoint_interval": 1},
    }
    found = settings(config, pipeline_schedule="zb-h1", virtual_stages=1, recomputation="none")
    assert found.config is not None
    assert found.config["pipeline"] == {
        "stages": 2,
        "schedule": "zb-h1",
        "virtual_stages": 1,
        "recomputation": "none",
    }
    assert config["pipeline"]["schedule"] == "gpipe"  # the caller's stays as it is


def test_zero_stage_takes_the_place_of_the_configuration_s_and_of_none() -> None:
    found = settings({"zero_optimization": {"stage": 3, "overlap_comm": False}}, zero_stage=1)
    assert found.config == {"zero_optimization": {"stage": 1, "overlap_comm": False}}
    made = settings(None, zero_stage=2)
    assert made.config is not None and made.config["zero_optimization"]["stage"] == 2
    assert made.config["train_batch_size"] == "auto"
    assert settings(None).config is None
    assert settings(ZERO1).config is None  # HF reads the file itself


@pytest.mark.parametrize("degrees", [{}, {"pipeline_model_parallel_size": 2}], ids=str)
def test_without_a_file_the_bucket_follows_the_model_s_width(degrees: dict[str, int]) -> None:
    made = settings(None, zero_stage=1, **degrees).config
    assert made is not None
    zero = resolve(made, TrainingRun(world_size=2), Width(64, "a model")).config["zero_optimization"]
    assert zero == {"stage": 1, "reduce_bucket_size": 64 * 64}


@pytest.mark.parametrize(
    ("config", "flags", "message"),
    [
        (None, {"tensor_model_parallel_size": 0}, "--tensor_model_parallel_size is 0"),
        (None, {"pipeline_model_parallel_size": -2}, "--pipeline_model_parallel_size is -2"),
        (None, {"zero_stage": 4}, "--zero_stage is 4; give 0, 1, 2 or 3"),
        (None, {"pipeline_model_parallel_size": 2, "zero_stage": 2}, "ZeRO stage 2 divides the gradients"),
        (None, {"tensor_model_parallel_size": 2, "zero_stage": 3}, "ZeRO stage 3 divides the parameters"),
        (None, {"pipeline_schedule": "1f1b"}, "settings schedule need stages, of which there is one"),
        ({**ZERO1, "tensor_parallel": {"autotp_size": "2"}}, {}, "tensor_parallel.autotp_size is '2'"),
        ({**ZERO1, "pipeline": {"stages": 2.5}}, {}, "pipeline.stages is 2.5"),
        ({**ZERO1, "pipeline": {"stages": True}}, {}, "pipeline.stages is True"),
        ({**ZERO1, "pipeline": [2]}, {}, r"pipeline is \[2\] in the DeepSpeed configuration"),
        (
            {**ZERO1, "tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": True}},
            {},
            "tensor_parallel.tp_overlap_comm is a setting of DeepSpeed's AutoTP",
        ),
        (
            {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
            {"tensor_model_parallel_size": 2},
            "zero_optimization.offload_optimizer.device is 'cpu'",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(config: Any, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingInputError, match=message):
        settings(config, **flags)


def test_degrees_that_do_not_divide_the_ranks_are_refused() -> None:
    asked = settings(None, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    assert asked.degrees(8).dp == 2
    with pytest.raises(TrainingInputError, match="tp=2 × pp=2 does not divide 6 ranks"):
        asked.degrees(6)
