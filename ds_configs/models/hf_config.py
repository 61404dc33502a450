"""Reads a Hugging Face ``config.json`` into a ModelShape; ``families.json`` says how each family spells it.

In ``families.json`` a field's rule is a constant, ``[key, …, default]`` (the first key present wins; a null
default lets the shape derive the value), or ``{"key", "true", "false", "default"}`` for a switch. Defaults
are those of transformers' configuration classes: a saved config.json leaves out what equals them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.models.shape import MlaShape, ModelShape, MoeShape

# What any decoder's configuration must say for a family that is not known here, and what it may say.
GENERIC_NEEDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
NESTED = ("text_config", "llm_config", "language_config")
FAMILIES = Path(__file__).with_name("families.json")


def read_hf_config(source: str | os.PathLike[str]) -> ModelShape:
    """Return the shape of the model whose configuration lies at ``source``, a file or its directory.

    Raises:
        DsConfigError: there is no such file, it is not a JSON object, or it describes no decoder known here.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DsConfigError(
            f"{path} does not exist; give a config.json or the directory that holds one"
        ) from None
    except (OSError, ValueError) as error:
        raise DsConfigError(f"{path} cannot be read as a model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise DsConfigError(
            f"{path} holds {type(config).__name__}, not a JSON object; give a model's config.json"
        )
    name = path.parent.name if path.name == "config.json" else path.stem
    return shape_of_config(config, name or "model")


def shape_of_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Return the shape that the contents of a config.json describe.

    Raises:
        DsConfigError: see `read_hf_config`.
    """
    text, notes = _text_part(config)
    model_type = text.get("model_type")
    if text.get("is_encoder_decoder") or "decoder_layers" in text:
        raise DsConfigError(
            f"{model_type} has an encoder beside its decoder; only decoder-only language models can be sized"
        )
    rules = load_families().get(str(model_type))
    if rules is None:
        rules = _generic(text, model_type)
        guess = (
            f"model_type {model_type!r} is not known here: taken for a Llama with this file's sizes, so "
            "biases, norms and experts of its own are not counted"
        )
        notes = (*notes, guess)
    try:
        return _build(name, text, rules, notes)
    except (TypeError, AttributeError) as error:
        raise DsConfigError(f"the configuration of {name} has a value of the wrong type: {error}") from None


@cache
def load_families() -> Mapping[str, Mapping[str, Any]]:
    """Return the rules of every known model_type."""
    return json.loads(FAMILIES.read_text(encoding="utf-8"))


def _text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    for key in NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            part = dict(nested)
            if "tie_word_embeddings" in config:  # the composite class owns the output layer
                part["tie_word_embeddings"] = config["tie_word_embeddings"]
            part.setdefault("model_type", "llama" if "llama" in str(config.get("model_type")) else None)
            note = f"sized from its {key}: the other parts of {config.get('model_type')} are not counted"
            return part, (note,)
    return config, ()


def _generic(config: Mapping[str, Any], model_type: object) -> Mapping[str, Any]:
    missing = [key for key in GENERIC_NEEDS if not isinstance(config.get(key), int)]
    experts = [key for key in config if "expert" in key and config[key]]
    if missing or experts:
        why = f"lacks {', '.join(missing)}" if missing else f"has experts ({experts[0]})"
        known = ", ".join(sorted(load_families()))
        raise DsConfigError(
            f"model_type {model_type!r} is not known and its configuration {why}; known are {known}"
        )
    return load_families()["llama"]


def _value(config: Mapping[str, Any], rule: Any) -> Any:
    if isinstance(rule, Mapping):
        return rule["true"] if config.get(rule["key"], rule["default"]) else rule["false"]
    if not isinstance(rule, list):
        return rule
    *keys, default = rule
    return next((config[key] for key in keys if config.get(key) is not None), default)


def _build(
    name: str, config: Mapping[str, Any], rules: Mapping[str, Any], notes: tuple[str, ...]
) -> ModelShape:
    values = {key: _value(config, rule) for key, rule in rules.items() if key not in ("mla", "moe")}
    values.update(_irregular(config, values))
    values["learned_positions"] = values.get("learned_positions", 0) + values.pop(
        "learned_positions_offset", 0
    )
    for field in ("layers", "hidden", "heads"):
        if not isinstance(values[field], int) or values[field] < 1:
            key = rules[field][0]
            raise DsConfigError(f"{key} of {name} is {values[field]!r}; it must be a whole number, 1 or more")
    hidden, heads = values["hidden"], values["heads"]
    values["ffn"] = values.get("ffn") or 4 * hidden
    values["kv_heads"] = values.get("kv_heads") or heads
    values["head_dim"] = values.get("head_dim") or hidden // heads
    mla = rules.get("mla")
    if mla:
        values["mla"] = MlaShape(**{key: _nullable(config, rule) for key, rule in mla.items()})
    if rules.get("moe"):
        values["moe"] = _moe(config, rules["moe"], values["layers"])
    return ModelShape(name=name, notes=notes, **values)


def _nullable(config: Mapping[str, Any], rule: list[Any]) -> Any:
    """As `_value`, but an explicit null counts: DeepSeek-V2-Lite's q_lora_rank is null, not the default."""
    key, default = rule
    return config.get(key, default)


def _moe(config: Mapping[str, Any], rules: Mapping[str, Any], layers: int) -> MoeShape:
    values = {key: _value(config, rule) for key, rule in rules.items()}
    shared = values.pop("shared_experts", None)
    if shared:
        values["shared_ffn"] = shared * values["expert_ffn"]
    dense = set(values.pop("dense_layers", ())) | set(range(values.pop("first_dense", 0)))
    step = values.pop("sparse_step", 1)
    dense |= {layer for layer in range(layers) if (layer + 1) % step}
    values["top_k"] = values["top_k"] or 1
    return MoeShape(**values, dense_layers=frozenset(dense))


def _irregular(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what depends on several keys at once."""
    if config.get("model_type") == "falcon":
        new = config.get("new_decoder_architecture", False)
        single = 1 if config.get("multi_query", True) else values["heads"]
        parallel = config.get("parallel_attn", True)
        norms = config.get("num_ln_in_parallel_attn") or (2 if new else 1)
        return {
            "kv_heads": config.get("num_kv_heads") or values["heads"] if new else single,
            "norms_per_layer": norms if new or parallel else 2,
        }
    if config.get("model_type") == "opt":
        removed = config.get("_remove_final_layer_norm", False)
        return {"final_norm": values["final_norm"] and not removed}
    return {}
