"""Ready DeepSpeed configurations: requests with a name, and the JSON files made from them.

Most are for the HF Trainer, which fills batch sizes, clipping, precision and the optimizer's numbers from its
own flags, so that one preset serves fp32, bf16 and fp16 runs alike. ``preset_requests.json`` holds the
requests; `python -m ds_configs.presets` rewrites the files next to this module, and a test compares them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.generate import ConfigRequest, generate, to_text

PRESET_DIR = Path(__file__).parent / "presets"
REQUESTS = Path(__file__).with_name("preset_requests.json")


def preset_names() -> list[str]:
    """Return the names of the presets that are whole and lie in a file, sorted."""
    return sorted(name for name, entry in _entries().items() if "needs" not in entry)


def starting_points() -> list[str]:
    """Return the names that `generate --preset` takes: the presets, and those that lack a value, sorted."""
    return sorted(_entries())


def preset_path(name: str) -> Path:
    """Return the JSON file of preset ``name``, as ``--deepspeed`` takes it.

    Raises:
        DsConfigError: no preset has this name (the message lists those that exist), or it lacks a value.
    """
    needs = _entry(name).get("needs")
    if needs:
        flags = " ".join(f"--{_flag(key)} …" for key in needs)
        raise DsConfigError(
            f"preset {name} needs {', '.join(needs.values())}; give it to "
            f"`ds-config generate --preset {name} {flags}`"
        )
    return PRESET_DIR / f"{name}.json"


def load_preset(name: str) -> dict[str, Any]:
    """Return preset ``name`` as a dictionary, ``"auto"`` values left as they are.

    Raises:
        DsConfigError: no preset has this name, or it lacks a value.
    """
    return json.loads(preset_path(name).read_text(encoding="utf-8"))


def preset_request(name: str) -> dict[str, Any]:
    """Return the fields of the ConfigRequest that ``name`` stands for, to start from.

    Raises:
        DsConfigError: no preset has this name.
    """
    return dict(_entry(name)["request"])


def describe_preset(name: str) -> str:
    """Return one line that says what preset ``name`` shards, what it offloads and what is special in it."""
    request = preset_request(name)
    stage = request["stage"]
    sharded = ("optimizer state", "gradients", "parameters")[:stage]
    text = f"ZeRO stage {stage}: " + (f"shards {', '.join(sharded)}" if sharded else "shards nothing")
    for key, what in (("offload_optimizer", "optimizer state"), ("offload_param", "parameters")):
        if key in request:
            text += f"; keeps {what} on the {request[key]}"
    about, needs = _entry(name).get("about"), _entry(name).get("needs")
    text += f"; {about}" if about else ""
    return text + (f"; needs --{' --'.join(_flag(key) for key in needs)}" if needs else "")


def rewrite_presets(folder: Path = PRESET_DIR) -> list[Path]:
    """Write the file of every preset into ``folder`` and return the paths, sorted."""
    paths = []
    for name in preset_names():
        path = folder / f"{name}.json"
        path.write_text(to_text(generate(ConfigRequest.from_mapping(preset_request(name)))), encoding="utf-8")
        paths.append(path)
    return paths


@cache
def _entries() -> dict[str, Any]:
    return json.loads(REQUESTS.read_text(encoding="utf-8"))


def _entry(name: str) -> dict[str, Any]:
    if name not in _entries():
        raise DsConfigError(f"no preset is named {name!r}; choose one of {', '.join(starting_points())}")
    return _entries()[name]


def _flag(key: str) -> str:
    return key.replace("_", "-")


if __name__ == "__main__":
    print(*rewrite_presets(), sep="\n")
