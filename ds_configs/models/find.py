"""Finds the model that a user names: a directory, a config.json, or a name known here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.models.hf_config import read_hf_config, shape_of_config
from ds_configs.models.shape import ModelShape
from ds_configs.named_models import NamedModel, named_models

PUBLISHED = Path(__file__).with_name("published.json")
# Rows of the embedding that hf_integration builds for its byte tokenizer.
BYTE_VOCABULARY = 264


def find_model(text: str) -> ModelShape:
    """Return the shape of the model that ``text`` names; nothing is downloaded.

    Raises:
        DsConfigError: ``text`` is neither a path to a configuration nor a known name.
    """
    if Path(text).exists():
        return read_hf_config(text)
    if text in published():
        return shape_of_config(published()[text], text)
    if text in named_models():
        return shape_of_config(_config(named_models()[text]), text)
    known = ", ".join([*published(), *named_models()])
    raise DsConfigError(
        f"model {text} is neither a directory with a config.json, nor such a file, nor one of {known}; "
        "nothing is downloaded here: give a path, or the size with --params"
    )


def find_or_size(model: str | None, parameters: str | None, sequence: int | None) -> ModelShape:
    """Return ``model``'s shape, or a GPT of so many ``parameters`` that takes ``sequence`` tokens.

    Raises:
        DsConfigError: see `find_model` and `ModelShape.from_parameters`; or neither is named.
    """
    if parameters is not None:
        return ModelShape.from_parameters(parameters, sequence or 0)
    if model is None:
        raise DsConfigError("no model is named; give --model, or a size with --params")
    return find_model(model)


@cache
def published() -> Mapping[str, Mapping[str, Any]]:
    """Return what the config.json of well-known models says, by a short name."""
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def _config(model: NamedModel) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "model_type": model.family,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.intermediate,
        "max_position_embeddings": model.positions,
        "vocab_size": BYTE_VOCABULARY,
        "tie_word_embeddings": model.tied,
    }
    return sizes
