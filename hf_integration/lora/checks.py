"""What peft offers and a divided model cannot have: refused by name, never passed over."""

from __future__ import annotations

import dataclasses
from typing import Any

from peft import LoraConfig, PeftModel
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer

from hf_integration.errors import TrainingInputError

SERVED = frozenset(
    {
        *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("r", "lora_alpha", "lora_dropout", "bias", "lora_bias", "use_rslora", "rank_pattern"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "alpha_pattern"),
        *("fan_in_fan_out", "init_lora_weights", "inference_mode"),
    }
)
"""Settings of `LoraConfig` that are done; any other may stand at peft's default only."""

DRAWN = (True, False, "gaussian")
"""Values of init_lora_weights that need no base weights."""


def check_config(config: Any) -> None:
    """Refuse a peft configuration that a divided model cannot be trained with.

    Raises:
        TrainingInputError: it is none of LoRA, or asks for more than adapters on linear layers.
    """
    if type(config) is not LoraConfig:
        raise TrainingInputError(
            f"peft_config is a {type(config).__name__}, but with tensor or pipeline parallelism LoRA is the "
            "method that is offered; give a LoraConfig, or train without dividing the model"
        )
    default = LoraConfig()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in SERVED and value and value != getattr(default, field.name):
            raise TrainingInputError(
                f"{field.name} is {value!r} in the LoraConfig, which is not offered with tensor or pipeline "
                "parallelism; leave it out, or train without dividing the model"
            )
    if config.init_lora_weights not in DRAWN:
        raise TrainingInputError(
            f"init_lora_weights is {config.init_lora_weights!r} in the LoraConfig, which looks at the whole "
            "base weights; choose True, False or 'gaussian' with tensor or pipeline parallelism"
        )


def only_adapter(model: PeftModel) -> str:
    """Return the name of the adapter of a peft model that is to be divided.

    Raises:
        TrainingInputError: it is in a state in which that would not be the same training.
    """
    names = list(model.peft_config)
    if len(names) != 1:
        raise TrainingInputError(
            f"the model has adapters {', '.join(names)}, but with tensor or pipeline parallelism one is "
            "trained; delete the others (delete_adapter), or merge them first (merge_and_unload)"
        )
    check_config(model.peft_config[names[0]])
    output = model.get_base_model().get_output_embeddings()
    tied = getattr(model.get_base_model().config.get_text_config(), "tie_word_embeddings", False)
    for path, layer in model.get_base_model().named_modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        if not isinstance(layer, Linear):
            raise TrainingInputError(
                f"target_modules names {path}, a {type(layer.get_base_layer()).__name__}; with tensor or "
                "pipeline parallelism adapters are for linear layers: leave it out"
            )
        if layer is output and tied:
            raise TrainingInputError(
                f"target_modules names {path}, whose weight is the embedding's as well; leave it out"
            )
        if layer.merged or layer.disable_adapters:
            state = "merged into its weight" if layer.merged else "disabled"
            raise TrainingInputError(
                f"the adapter of {path} is {state}, so that there is nothing to train; call "
                f"{'unmerge_adapter' if layer.merged else 'enable_adapter_layers'} first"
            )
    return names[0]


def trained_of_base(model: PeftModel, adapter: str) -> frozenset[str]:
    """Return the plain names of the base model's parameters that are trained: biases, if the settings say so.

    Raises:
        TrainingInputError: the adapter is frozen, or other parameters are not.
    """
    bias = model.peft_config[adapter].bias
    found, frozen = set(), []
    for name, parameter in model.get_base_model().named_parameters():
        if ".lora_" in name:
            frozen += [] if parameter.requires_grad else [name]
        elif parameter.requires_grad:
            if bias == "none" or not name.endswith("bias"):
                raise TrainingInputError(
                    f"{name} is trained beside the adapters, but no adapter file would hold it; freeze it "
                    "(requires_grad_(False)), or name biases with bias='all' or 'lora_only'"
                )
            found.add(name.replace(".base_layer.", "."))
    if frozen:
        raise TrainingInputError(
            f"{frozen[0]} does not require gradients, so that the adapters would not be trained; load them "
            "with PeftModel.from_pretrained(…, is_trainable=True)"
        )
    return frozenset(found)
