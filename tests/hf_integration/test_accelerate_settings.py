"""What ``accelerate launch`` puts into the ranks' environment reaches a divided model, or is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds_configs.presets import preset_path
from hf_integration.errors import TrainingInputError
from hf_integration.npu_arguments import NpuTrainingArguments

Launch = Callable[..., NpuTrainingArguments]


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Arguments of two pipeline stages, with variables of the launcher in the environment."""

    def arguments(variables: dict[str, str], **flags: Any) -> NpuTrainingArguments:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        flags = {"pipeline_model_parallel_size": 2, "dry_run": True, "report_to": "none", **flags}
        return NpuTrainingArguments(output_dir=str(tmp_path), **flags)

    return arguments


SETTINGS = {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_GRADIENT_CLIPPING": "0.5",
    "ACCELERATE_MIXED_PRECISION": "bf16",
}


def test_the_launcher_s_settings_are_the_engine_s(launched: Launch) -> None:
    args = launched(SETTINGS)
    config = args.parallel.config
    assert config is not None
    assert config["zero_optimization"] == {"stage": 1, "reduce_bucket_size": "auto"}
    assert (config["gradient_accumulation_steps"], config["gradient_clipping"]) == (4, 0.5)
    assert config["pipeline"] == {"stages": 2}
    assert (args.bf16, args.fp16) == (True, False)


def test_accelerate_makes_no_engine_of_its_own(launched: Launch) -> None:
    """The mark is also what an engine that accelerate made earlier in this process leaves behind."""
    launched({"ACCELERATE_USE_DEEPSPEED": "true"})
    assert "ACCELERATE_USE_DEEPSPEED" not in os.environ


def test_flags_go_before_the_launcher_s_settings(launched: Launch) -> None:
    args = launched({**SETTINGS, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, zero_stage=0, fp16=True)
    assert args.parallel.config is not None
    assert args.parallel.config["zero_optimization"]["stage"] == 0
    assert (args.bf16, args.fp16) == (False, True)
    given = launched(SETTINGS, deepspeed=str(preset_path("zero0"))).parallel.config
    assert given is not None
    assert given["zero_optimization"]["stage"] == 0


def test_the_launcher_s_file_is_read(launched: Launch) -> None:
    args = launched({"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(preset_path("zero1"))})
    assert args.parallel.config is not None
    assert args.parallel.config["zero_optimization"]["stage"] == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "ZeRO stage 3 divides the gradients"),
        ({"ACCELERATE_DEEPSPEED_CONFIG_FILE": "nowhere.json"}, "nowhere.json does not exist"),
        ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "mixed_precision is fp8, which is not offered"),
        ({"ACCELERATE_USE_FSDP": "true"}, "remove distributed_type: FSDP from accelerate's configuration"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "remove distributed_type: MEGATRON_LM"),
        ({"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "remove parallelism_config from accelerate's"),
        ({"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "ACCELERATE_DYNAMO_BACKEND=INDUCTOR, which is not"),
    ],
)
def test_what_would_be_passed_over_is_refused(
    launched: Launch, variables: dict[str, str], message: str
) -> None:
    with pytest.raises(TrainingInputError, match=message):
        launched(variables)


def test_the_launcher_s_defaults_ask_for_nothing(launched: Launch) -> None:
    args = launched({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"})
    assert (args.bf16, args.fp16) == (False, False)
