"""DeepSpeed configurations from a request in the user's terms."""

from __future__ import annotations

from typing import Any

from ds_configs.generate.batch import batch_keys
from ds_configs.generate.notes import notes
from ds_configs.generate.request import ConfigRequest
from ds_configs.generate.sections import (
    clipping,
    optimizer,
    parallelism,
    precision,
    scheduler,
    the_rest,
    zero_optimization,
)
from ds_configs.generate.text import to_text

__all__ = ["ConfigRequest", "generate", "notes", "to_text"]


def generate(request: ConfigRequest) -> dict[str, Any]:
    """Return the configuration that ``request`` asks for, as DeepSpeed 0.19.8 (or HF) reads it.

    For HF ``"auto"`` stands where the Trainer fills it and nowhere else; for plain DeepSpeed every value is a
    value.

    Raises:
        DsConfigError: something that plain DeepSpeed needs is neither given nor derivable; the message asks.
    """
    return {
        **batch_keys(request),
        **clipping(request),
        **precision(request),
        **optimizer(request),
        **scheduler(request),
        **zero_optimization(request),
        **parallelism(request),
        **the_rest(request),
    }
