"""The flags of train.py for LoRA."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import HfArgumentParser

from hf_integration.errors import TrainingInputError
from hf_integration.lora import LoraArguments


def parsed(*argv: str) -> LoraArguments:
    """Return the arguments of a command line."""
    (arguments,) = HfArgumentParser(LoraArguments).parse_args_into_dataclasses(args=list(argv))
    return arguments


def test_without_a_rank_there_are_no_adapters() -> None:
    assert parsed().peft_config() is None


def test_a_rank_alone_puts_adapters_on_all_linear_layers_and_counts_them_twice() -> None:
    config = parsed("--lora_r", "4").peft_config()
    assert (config.r, config.lora_alpha, config.target_modules, config.bias) == (4, 8, "all-linear", "none")
    assert (config.lora_dropout, config.use_rslora, config.task_type) == (0.0, False, "CAUSAL_LM")


def test_every_flag_arrives_in_the_configuration() -> None:
    flags = "--lora_r 4 --lora_alpha 3 --lora_dropout 0.1 --lora_bias all --lora_use_rslora"
    config = parsed(*flags.split(), "--lora_target_modules", "q_proj", "v_proj").peft_config()
    assert (config.lora_alpha, config.lora_dropout, config.bias, config.use_rslora) == (3, 0.1, "all", True)
    assert config.target_modules == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora_alpha": 3}, "--lora_alpha needs adapters; give their rank with --lora_r"),
        ({"lora_merge": True}, "--lora_merge needs adapters"),
        ({"lora_dropout": 0.0}, "--lora_dropout needs adapters"),
        ({"lora_r": 0}, "--lora_r is 0; give a rank of 1 or more"),
        ({"lora_r": 2, "lora_dropout": 1.0}, "--lora_dropout is 1.0; give a probability below 1"),
        ({"lora_r": 2, "lora_bias": "some"}, "--lora_bias is some; choose one of none, all, lora_only"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingInputError, match=message):
        LoraArguments(**given)
