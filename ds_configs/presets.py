"""Ready DeepSpeed configurations, stored as JSON files next to this module.

Batch sizes, clipping, precision and the optimizer's numbers are ``"auto"``: the HF Trainer fills them
from its own flags, so one preset serves fp32, bf16 and fp16 runs alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError

PRESET_DIR = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(path.stem for path in PRESET_DIR.glob("*.json"))


def preset_path(name: str) -> Path:
    """Return the JSON file of preset ``name``, as ``--deepspeed`` takes it.

    Raises:
        DsConfigError: no preset has this name; the message lists those that exist.
    """
    if name not in preset_names():
        raise DsConfigError(f"no preset is named {name!r}; choose one of {', '.join(preset_names())}")
    return PRESET_DIR / f"{name}.json"


def load_preset(name: str) -> dict[str, Any]:
    """Return preset ``name`` as a dictionary, ``"auto"`` values left as they are.

    Raises:
        DsConfigError: no preset has this name.
    """
    return json.loads(preset_path(name).read_text(encoding="utf-8"))


def describe_preset(name: str) -> str:
    """Return one line that says what preset ``name`` shards and what it offloads, read from its JSON."""
    zero = load_preset(name)["zero_optimization"]
    sharded = ("optimizer state", "gradients", "parameters")[: zero["stage"]]
    text = f"ZeRO stage {zero['stage']}: " + (f"shards {', '.join(sharded)}" if sharded else "shards nothing")
    for key, what in (("offload_optimizer", "optimizer state"), ("offload_param", "parameters")):
        if key in zero:
            text += f"; keeps {what} on the {zero[key]['device']}"
    return text
