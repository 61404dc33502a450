"""What ``accelerate launch`` asks of a script, as its ranks find it in their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hf_integration.errors import TrainingInputError
from hf_integration.parallel_settings import MINIMAL_CONFIG

USE_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
CONFIG_FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
SAVES_WHOLE_MODEL = "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"
PRECISIONS = ("bf16", "fp16")

# Variable → (the value that asks for nothing, the setting's name in accelerate's configuration file).
REFUSED: Mapping[str, tuple[str, str]] = {
    "ACCELERATE_USE_FSDP": ("false", "distributed_type: FSDP"),
    "ACCELERATE_USE_MEGATRON_LM": ("false", "distributed_type: MEGATRON_LM"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("false", "parallelism_config"),
    "ACCELERATE_DYNAMO_BACKEND": ("no", "dynamo_backend"),
}


def launched_with_deepspeed() -> bool:
    """Return whether ``accelerate launch`` has settings of DeepSpeed.

    Only the launcher sets these variables; `USE_DEEPSPEED` accelerate 1.15 sets with every engine as well.
    """
    return any(name.startswith("ACCELERATE_DEEPSPEED_") for name in os.environ)


def launched_config_file() -> str | None:
    """Return the ``deepspeed_config_file`` of accelerate's configuration, None without one."""
    file = os.environ.get(CONFIG_FILE, "none")
    return None if file == "none" else file


def launched_config() -> dict[str, Any]:
    """Return the DeepSpeed configuration that accelerate makes of settings without a file of DeepSpeed's.

    Batch and precision are left to the Trainer's arguments.
    """
    from accelerate.utils import DeepSpeedPlugin

    asked = DeepSpeedPlugin()
    zero: dict[str, Any] = {**MINIMAL_CONFIG["zero_optimization"], "stage": asked.zero_stage}
    for name in ("optimizer", "param"):
        device = getattr(asked, f"offload_{name}_device")
        if device != "none":
            zero[f"offload_{name}"] = {"device": device}
    config = {**MINIMAL_CONFIG, "zero_optimization": zero}
    config["gradient_accumulation_steps"] = asked.gradient_accumulation_steps
    config["gradient_clipping"] = asked.gradient_clipping
    return config


def launched_precision() -> str | None:
    """Return the ``mixed_precision`` of accelerate's configuration: bf16, fp16, or None.

    Raises:
        TrainingInputError: it is another one, of which the engine of a divided model knows nothing.
    """
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if asked not in ("no", *PRECISIONS):
        raise TrainingInputError(
            f"accelerate's mixed_precision is {asked}, which is not offered with tensor or pipeline "
            f"parallelism; set it to no, {' or '.join(PRECISIONS)}"
        )
    return None if asked == "no" else asked


def check_launch() -> None:
    """Refuse what accelerate's configuration asks for and a divided model would pass over.

    Raises:
        TrainingInputError: with the setting and the mend.
    """
    for name, (nothing, setting) in REFUSED.items():
        asked = os.environ.get(name, nothing)
        if asked.lower() != nothing:
            raise TrainingInputError(
                f"accelerate launch has set {name}={asked}, which is not offered with tensor or pipeline "
                f"parallelism; remove {setting} from accelerate's configuration, and give "
                "--tensor_model_parallel_size and --pipeline_model_parallel_size"
            )


def hide_deepspeed_from_accelerate() -> None:
    """Let accelerate take every rank as it is: it would make an engine of its own, of the whole model."""
    os.environ.pop(USE_DEEPSPEED, None)
