"""The hardware presets, stored as JSON files in ``chips/``: a figure is a value, its unit and its source."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.hardware.chip import Figure, Hardware

CHIP_DIR = Path(__file__).parent / "chips"


def hardware_names() -> list[str]:
    """Return the names of all hardware presets, sorted."""
    return sorted(path.stem for path in CHIP_DIR.glob("*.json"))


def hardware_figures(name: str) -> dict[str, Figure]:
    """Return each figure of preset ``name`` with its unit and source.

    Raises:
        DsConfigError: no preset has this name; the message lists those that exist.
    """
    return {key: Figure(**figure) for key, figure in _read(name)["figures"].items()}


@lru_cache(maxsize=32)
def load_hardware(name: str) -> Hardware:
    """Return preset ``name``.

    Raises:
        DsConfigError: no preset has this name; the message lists those that exist.
    """
    data = _read(name)
    values: dict[str, Any] = {key: figure["value"] for key, figure in data["figures"].items()}
    return Hardware(name=data["name"], title=data["title"], accelerator=data["accelerator"], **values)


def _read(name: str) -> dict[str, Any]:
    if name not in hardware_names():
        raise DsConfigError(f"no hardware is named {name!r}; choose one of {', '.join(hardware_names())}")
    return json.loads((CHIP_DIR / f"{name}.json").read_text(encoding="utf-8"))
