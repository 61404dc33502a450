"""How the modules of a Hugging Face model are divided: the model's own plan, or one of ours.

A plan is data: patterns of module names and the style that each is divided in, with the names that
transformers gives the styles. transformers keeps a plan on the config (`base_model_tp_plan`) and on the class
with the output layer (`_tp_plan`). Ours, for architectures where it has none or one that gathers more than it
must, are the files in `model_plans/`, by `config.model_type`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from torch import nn

from npu_plugins.tensor_parallel.errors import TensorParallelError


@dataclass(frozen=True)
class Plan:
    """Styles by pattern of module names, a `*` standing for any number."""

    source: str
    """Where it comes from, for messages."""
    styles: Mapping[str, str]
    local: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By pattern: attributes that the module's forward pass reads, which count the heads ("heads") or the
    key-value heads ("kv_heads") of all ranks and must count this rank's."""
    complete: bool = True
    """Whether every pattern must be found. transformers writes one plan for all variants of an architecture
    (dense and mixture-of-experts layers), so that its own may name modules that a model has not."""

    def matches(self, model: nn.Module) -> dict[str, str]:
        """Return the style of each module or parameter of `model` that the plan names.

        Raises:
            TensorParallelError: a pattern, or the whole plan, names nothing that the model has.
        """
        found, unused = {}, dict(self.styles)
        for name in _names(model):
            pattern = _pattern(name)
            if pattern in self.styles:
                found[name] = self.styles[pattern]
                unused.pop(pattern, None)
        if unused and (self.complete or not found):
            missing, style = next(iter(unused.items()))
            raise TensorParallelError(
                f"{self.source} names {missing} ({style}), which {type(model).__name__} does not have; its "
                f"modules are like {_similar(model, missing)}: correct the name, * standing for a number"
            )
        return found

    def local_attributes(self, model: nn.Module) -> dict[str, Mapping[str, str]]:
        """Return, by module name, the attributes that must count this rank's heads only, and their kinds."""
        names = [name for name, _ in model.named_modules()]
        return {name: self.local[_pattern(name)] for name in names if _pattern(name) in self.local}


def plan_of(model: nn.Module) -> Plan:
    """Return the plan for a Hugging Face model.

    Raises:
        TensorParallelError: neither transformers nor this package has one.
    """
    own = _own_plan(model)
    if own is not None:
        return own
    kind = type(model).__name__
    styles = dict(getattr(model, "_tp_plan", None) or {})
    if not styles:
        raise TensorParallelError(
            f"{kind} carries no tensor-parallel plan (config.base_model_tp_plan) and none of ours is for it; "
            f"use a model of {', '.join(own_plans())}, or one that has a plan (llama, qwen2, qwen3, mistral, "
            "mixtral, gemma, gemma2, olmo2, cohere, granite and others), or in shard_model pass "
            "plan={'layers.*.mlp.up_proj': 'colwise', …}, names with * for a layer's number"
        )
    for pattern, style in _vocabulary_styles(model).items():
        styles.setdefault(pattern, style)
    return Plan(f"The plan that transformers gives {kind}", styles, complete=False)


def given_plan(model: nn.Module, styles: Mapping[str, str]) -> Plan:
    """Return the plan that a caller wrote for `model`: every pattern must name something."""
    own = _own_plan(model)
    return Plan("plan=", dict(styles), {} if own is None else own.local)


def own_plans() -> list[str]:
    """Return the model types that this package has plans for."""
    folder = resources.files(__package__) / "model_plans"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))


def _own_plan(model: nn.Module) -> Plan | None:
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    file = resources.files(__package__) / "model_plans" / f"{kind}.json"
    if not kind.isidentifier() or not file.is_file():
        return None
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    prefix = base_prefix(model)
    styles = {prefix + pattern: style for pattern, style in data["base"].items()}
    heads = {name: style for name, style in data["head"].items() if hasattr(model, name)}
    local = {prefix + pattern: attributes for pattern, attributes in data["local"].items()}
    return Plan(f"Our plan for {kind}", {**styles, **heads}, local)


def base_prefix(model: nn.Module) -> str:
    """Return the prefix of the base model's names in `model`, such as ``model.``; empty for a base model."""
    prefix = getattr(model, "base_model_prefix", "")
    return f"{prefix}." if prefix and isinstance(getattr(model, prefix, None), nn.Module) else ""


def _vocabulary_styles(model: nn.Module) -> dict[str, str]:
    """The embedding, and the output layer that may be tied to it, which older plans do not name."""
    styles = {}
    embedding, output = _call(model, "get_input_embeddings"), _call(model, "get_output_embeddings")
    for name, module in model.named_modules():
        if module is embedding:
            styles[_pattern(name)] = "embedding_rowwise"
        elif module is output:
            styles[_pattern(name)] = "colwise_gather_output"
    return styles


def _call(model: nn.Module, getter: str) -> Any:
    method = getattr(model, getter, None)
    try:
        return method() if method is not None else None
    except (NotImplementedError, AttributeError):  # how transformers says that a model has none
        return None


def _names(model: nn.Module) -> Iterator[str]:
    yield from (name for name, _ in model.named_modules() if name)
    yield from (name for name, _ in model.named_parameters(remove_duplicate=False))


def _pattern(name: str) -> str:
    """`name` with * for every number between dots, as transformers writes its plans."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _similar(model: nn.Module, missing: str) -> str:
    """A few patterns of the model, those that share most with `missing` first."""
    wanted = missing.split(".")
    patterns = dict.fromkeys(_pattern(name) for name, module in model.named_modules() if name)

    def distance(pattern: str) -> tuple[int, int]:
        parts = pattern.split(".")
        return -len(set(wanted) & set(parts)), abs(len(wanted) - len(parts))

    return ", ".join(sorted(patterns, key=distance)[:3])
