"""A model's width, found where HF's DeepSpeed integration looks for it.

transformers 5.24, ``integrations/deepspeed.py``: ``hidden_size``, else the largest of ``hidden_sizes``, else
the same two of ``text_config``. ``width_keys.json`` says under which other key a family's config.json holds
its ``hidden_size`` (transformers' ``attribute_map``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.models.find import find_model, published
from ds_configs.named_models import named_models


@dataclass(frozen=True)
class Width:
    """The width of a model.

    Raises:
        DsConfigError: it is no whole number, 1 or more.
    """

    hidden: int
    source: str
    """Where it was found, in words."""
    plain: bool = True
    """Whether accelerate finds it too, which does not look into ``text_config``."""

    def __post_init__(self) -> None:
        if isinstance(self.hidden, bool) or not isinstance(self.hidden, int) or self.hidden < 1:
            raise DsConfigError(f"the width of {self.source} is {self.hidden!r}; it must be a whole number")


def model_width(model: str) -> Width:
    """Return the width of ``model``: a Hugging Face directory, its config.json, or a name known here.

    Raises:
        DsConfigError: it is none of these, or its configuration says no width.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return width_of_config(_read(path), str(path))
    if model in named_models() or model in published():
        return Width(find_model(model).hidden, model)
    known = ", ".join([*published(), *named_models()])
    raise DsConfigError(
        f"model {model} is neither a directory with a config.json nor one of {known}; "
        "nothing is downloaded here, so give a path, or the width with --hidden"
    )


def width_of_config(config: Mapping[str, Any], source: str) -> Width:
    """Return the width that the contents of a config.json say.

    Raises:
        DsConfigError: they say none.
    """
    text = config.get("text_config")
    for part, plain, name in ((config, True, ""), (text, False, "text_config.")):
        if not isinstance(part, Mapping):
            continue
        key = _width_keys().get(str(part.get("model_type")), "hidden_size")
        if part.get(key) is not None:
            return Width(part[key], f"{name}{key} of {source}", plain)
        sizes = part.get("hidden_sizes")
        if isinstance(sizes, list) and sizes and all(isinstance(size, int) for size in sizes):
            return Width(max(sizes), f"{name}hidden_sizes of {source}", plain)
    raise DsConfigError(
        f"{source} has neither hidden_size nor hidden_sizes, from which HF fills bucket sizes; give --hidden"
    )


@cache
def _width_keys() -> Mapping[str, str]:
    text = Path(__file__).with_name("width_keys.json").read_text(encoding="utf-8")
    return {family: key for key, families in json.loads(text).items() for family in families}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DsConfigError(f"{path} cannot be read as a model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise DsConfigError(f"{path} holds no JSON object; give a model's config.json")
    return config
