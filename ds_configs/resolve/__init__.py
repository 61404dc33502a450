"""Configurations with every ``"auto"`` replaced, as a run under HF's Trainer replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ds_configs.config_file import read_config
from ds_configs.resolve.checks import check_result
from ds_configs.resolve.document import Document, Fill
from ds_configs.resolve.hf import finalize, plug_in, process
from ds_configs.resolve.leftovers import fill_leftovers
from ds_configs.resolve.run import TrainingRun
from ds_configs.resolve.width import Width, model_width, width_of_config

__all__ = [
    "Document",
    "Fill",
    "Resolution",
    "TrainingRun",
    "Width",
    "model_width",
    "read_config",
    "resolve",
    "width_of_config",
]


@dataclass(frozen=True)
class Resolution:
    """A configuration without "auto", and who filled what."""

    config: dict[str, Any]
    fills: tuple[Fill, ...]


def resolve(config: Mapping[str, Any], run: TrainingRun, width: Width | None = None) -> Resolution:
    """Return ``config`` as DeepSpeed gets it from HF's Trainer, and with values where nobody fills.

    ``width`` is needed where bucket sizes are "auto". Nothing of ``config`` itself is changed.

    Raises:
        DsConfigError: HF, accelerate or DeepSpeed would refuse it, or something needed is not given; the
            message says what and how to mend it.
    """
    document = Document.of(config)
    process(document, run)
    plug_in(document, run)
    finalize(document, run, width)
    fill_leftovers(document)
    check_result(document, run)
    return Resolution(document.config, tuple(document.fills))
