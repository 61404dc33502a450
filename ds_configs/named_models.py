"""The model sizes that have a name here, for `ds-config --model` and for `train.py --config_name` alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ds_configs.errors import DsConfigError


@dataclass(frozen=True)
class NamedModel:
    """One size of one model family, in the field's usual terms.

    Raises:
        DsConfigError: the heads do not divide the width, or the key and value heads the heads.
    """

    family: str
    """transformers' ``model_type``."""
    hidden: int
    """Width of the residual stream."""
    layers: int
    heads: int
    kv_heads: int
    """Key and value heads; as many as heads where the family has no grouped-query attention."""
    intermediate: int
    """Width of the MLP."""
    positions: int
    """Longest sequence in tokens."""
    tied: bool = False
    """Whether input and output embeddings share their weight."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise DsConfigError(f"hidden={self.hidden} is not divisible by heads={self.heads}")
        if self.heads % self.kv_heads:
            raise DsConfigError(f"heads={self.heads} is not divisible by kv_heads={self.kv_heads}")


@cache
def named_models() -> dict[str, NamedModel]:
    """Return the models by name, smallest first."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return {name: NamedModel(**fields) for name, fields in json.loads(text).items()}
