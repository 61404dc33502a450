"""Models to train: sizes built from a configuration, or a directory that ``save_pretrained`` wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_integration.errors import TrainingInputError

# Embedding rows are padded to this multiple: it divides among 2, 4 or 8 tensor-parallel ranks.
VOCABULARY_MULTIPLE = 8


@dataclass(frozen=True)
class ModelPreset:
    """One size of one model family, in the field's usual terms.

    Attributes:
        family: transformers' ``model_type``.
        hidden: width of the residual stream.
        layers: number of decoder layers.
        heads: attention heads.
        kv_heads: key and value heads (equal to ``heads`` where the family has no grouped-query attention).
        intermediate: width of the MLP.
        positions: longest sequence in tokens.
        tied: whether input and output embeddings share their weight.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    positions: int
    tied: bool = False

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is not divisible by heads={self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not divisible by kv_heads={self.kv_heads}")

    def config(self, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
        """Return the transformers configuration of this size for ``tokenizer``'s vocabulary."""
        vocabulary = -(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
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


PRESETS: Mapping[str, ModelPreset] = MappingProxyType(
    {
        "tiny-llama": ModelPreset("llama", 128, 2, 4, 2, 352, 1024),
        "tiny-qwen2": ModelPreset("qwen2", 128, 2, 4, 2, 352, 1024, tied=True),
        "tiny-gpt2": ModelPreset("gpt2", 128, 2, 4, 4, 512, 1024, tied=True),
        "llama-10m": ModelPreset("llama", 320, 8, 5, 5, 864, 2048),
        "llama-100m": ModelPreset("llama", 768, 14, 12, 4, 2048, 4096),
        "llama-1b": ModelPreset("llama", 2048, 20, 32, 8, 5632, 8192),
    }
)


def preset_names() -> list[str]:
    """Return the names that ``--config_name`` takes, smallest model first."""
    return list(PRESETS)


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
        return PRESETS[str(preset)].config(tokenizer)
    with refusing_unreadable(directory):
        config = AutoConfig.from_pretrained(directory)
    rows = config.get_text_config().vocab_size
    if len(tokenizer) > rows:
        raise TrainingInputError(
            f"the tokenizer has {len(tokenizer)} tokens but the embedding of {directory} only {rows} rows; "
            "give the tokenizer that the model was made with, or a model with a larger vocabulary"
        )
    return config


def longest_sequence(config: PretrainedConfig) -> int | None:
    """Return how many positions the model has, in tokens; None where its configuration sets no limit."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def resolve_block_size(wanted: int | None, config: PretrainedConfig) -> int:
    """Return the sequence length in tokens: ``wanted``, or 256 where the model takes that much.

    Raises:
        TrainingInputError: ``wanted`` is longer than the model's positions.
    """
    longest = longest_sequence(config)
    if wanted is None:
        return min(256, longest) if longest else 256
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


@contextlib.contextmanager
def refusing_unreadable(directory: str) -> Iterator[None]:
    """Turn transformers' errors on loading from ``directory`` into a TrainingInputError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise TrainingInputError(f"{directory} cannot be loaded: {str(error).splitlines()[0]}") from error
