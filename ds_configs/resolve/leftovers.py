"""The "auto"s that neither HF nor accelerate fills: DeepSpeed would take the word for a value.

accelerate 1.15 stops at them (``fill_match``: "not found in kwargs"), plain DeepSpeed fails later or computes
with a string. A value is chosen as `ds-config generate` would, else DeepSpeed's own default is left to hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ds_configs.buckets import HCCL_BUFFER_BYTES
from ds_configs.errors import DsConfigError
from ds_configs.generate.options import Option, recipes, section
from ds_configs.resolve.document import Document, Filler
from ds_configs.schema import load_schema

NOBODY: Filler = "nobody: ds-config"


def fill_leftovers(document: Document) -> None:
    """Replace every "auto" that is left.

    Raises:
        DsConfigError: DeepSpeed knows no such key, or has no default for it.
    """
    for key in list(document.autos()):
        value, source = _choice(document, key)
        if value is None:
            document.leave_out(key, NOBODY, source)
        else:
            document.fill(key, value, NOBODY, source)


def _choice(document: Document, key: str) -> tuple[Any, str]:
    """Return the value for ``key`` and what it comes from; None: leave the key out."""
    options, name = _options(document, key)
    option = options.get(name)
    if option is not None and option.rule == "hccl_bucket":
        wide = document.get("bf16.enabled") is not True and document.get("fp16.enabled") is not True
        return HCCL_BUFFER_BYTES // (4 if wide else 2), "what HCCL's buffer of 200 MB holds"
    if option is not None and option.value is not None:
        value = list(option.value) if isinstance(option.value, list) else option.value
        return value, "the default of `ds-config generate`"
    if option is not None and not option.needed:
        return None, "left out: DeepSpeed's own default holds"
    known = load_schema().key(tuple(key.split(".")), _kind(document, key))
    if known is None:
        raise DsConfigError(
            f'{key} is "auto", which nobody fills, and DeepSpeed knows no such key; remove it'
        )
    if known.required or known.removed or "object" in known.types:
        raise DsConfigError(
            f'{key} is "auto", which nobody fills and for which there is no default; write a value'
        )
    return None, "left out: DeepSpeed's own default holds"


def _options(document: Document, key: str) -> tuple[Mapping[str, Option], str]:
    """Return the table that ``key`` is in (empty: none) and its name there."""
    above, _, name = key.rpartition(".")
    for kind in ("optimizer", "scheduler"):
        if above == f"{kind}.params":
            recipe = recipes(f"{kind}s").get(str(document.get(f"{kind}.type")))
            return (recipe.params if recipe else {}), name
    sections = {
        "zero_optimization": "zero_optimization",
        "zero_optimization.offload_optimizer": "offload_optimizer",
        "zero_optimization.offload_param": "offload_param",
        **{same: same for same in ("fp16", "bf16", "pipeline", "aio", "activation_checkpointing")},
    }
    return (section(sections[above]) if above in sections else {}), name


def _kind(document: Document, key: str) -> str | None:
    top = key.split(".")[0]
    kind = document.get(f"{top}.type") if top in ("optimizer", "scheduler") else None
    return kind if isinstance(kind, str) else None
