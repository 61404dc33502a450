"""Models to train: sizes built from a configuration, or a directory that ``save_pretrained`` wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from types import MappingProxyType

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ds_configs.named_models import NamedModel, named_models
from hf_integration.errors import TrainingInputError

# Embedding rows are padded to this multiple: it divides among 2, 4 or 8 tensor-parallel ranks.
VOCABULARY_MULTIPLE = 8


def needed_rows(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the rows that an embedding needs for ``tokenizer``; ids may have gaps, so not its length."""
    return max(tokenizer.get_vocab().values()) + 1


class ModelPreset(NamedModel):
    """A named size that transformers can build."""

    def config(self, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
        """Return the transformers configuration of this size for ``tokenizer``'s vocabulary."""
        vocabulary = -(-needed_rows(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        grouped = {} if self.family == "gpt2" else {"num_key_value_heads": self.kv_heads}
        mlp = "n_inner" if self.family == "gpt2" else "intermediate_size"
        return AutoConfig.for_model(
            self.family,
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.positions,
            tie_word_embeddings=self.tied,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **{mlp: self.intermediate},
            **grouped,
        )


@cache
def presets() -> Mapping[str, ModelPreset]:
    """Return the sizes that ``--config_name`` takes, by name."""
    models = {name: ModelPreset(**asdict(model)) for name, model in named_models().items()}
    return MappingProxyType(models)


def preset_names() -> list[str]:
    """Return the names that ``--config_name`` takes, smallest model first."""
    return list(presets())


def model_config(
    directory: str | None, preset: str | None, tokenizer: PreTrainedTokenizerBase
) -> PretrainedConfig:
    """Return the configuration of the model to train and check that ``tokenizer`` fits its embedding.

    Exactly one of ``directory`` and ``preset`` is to be given.

    Raises:
        TrainingInputError: ``directory`` holds no configuration that transformers knows, or ``tokenizer`` has
            more tokens than the embedding has rows.
    """
    if directory is None:
        return presets()[str(preset)].config(tokenizer)
    with refusing_unreadable(directory):
        config = AutoConfig.from_pretrained(directory)
    rows = config.get_text_config().vocab_size
    needed = needed_rows(tokenizer)
    if needed > rows:
        raise TrainingInputError(
            f"the tokenizer has {needed} tokens but the embedding of {directory} only {rows} rows; "
            "give the tokenizer that the model was made with, or a model with a larger vocabulary"
        )
    return config


def longest_sequence(config: PretrainedConfig) -> int | None:
    """Return how many positions the model has, in tokens; None where its configuration sets no limit.

    Rotary positions that stretch with the sequence ("dynamic") set none.
    """
    text = config.get_text_config()
    rotary = getattr(text, "rope_parameters", None) or {}
    return None if rotary.get("rope_type") == "dynamic" else getattr(text, "max_position_embeddings", None)


def resolve_block_size(wanted: int | None, config: PretrainedConfig, default: int = 256) -> int:
    """Return the sequence length in tokens: ``wanted``, or ``default`` where the model takes that much.

    Raises:
        TrainingInputError: ``wanted`` is longer than the model's positions.
    """
    longest = longest_sequence(config)
    if wanted is None:
        return min(default, longest) if longest else default
    if longest and wanted > longest:
        raise TrainingInputError(
            f"--block_size {wanted} is longer than the {longest} positions of the model; lower it"
        )
    return wanted


def build_model(config: PretrainedConfig, directory: str | None) -> PreTrainedModel:
    """Return the model with fp32 weights: loaded from ``directory``, or initialised from ``config`` if None.

    Seed torch first. DeepSpeed casts the weights itself; under ZeRO-3 transformers partitions them at birth,
    so the TrainingArguments must exist before this is called.

    Raises:
        TrainingInputError: ``directory`` holds no weights that transformers can read.
    """
    if directory is None:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with refusing_unreadable(directory):
        return AutoModelForCausalLM.from_pretrained(directory, config=config, dtype=torch.float32)


def build_skeleton(config: PretrainedConfig) -> PreTrainedModel:
    """Return the model on the meta device, which takes no memory, with fp32 for its weights' dtype."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@contextlib.contextmanager
def refusing_unreadable(directory: str) -> Iterator[None]:
    """Turn transformers' errors on loading from ``directory`` into a TrainingInputError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise TrainingInputError(f"{directory} cannot be loaded: {str(error).splitlines()[0]}") from error
