"""The tables of ``tables.json``: which keys each section may hold, of which type, and their defaults.

An option's fields: ``type`` (bool, int, float, str; count is an int that DeepSpeed also takes as 2e8; pair is
two floats), ``value`` or ``rule`` its default (neither: the key is left out unless asked for), ``hf`` whether
HF fills "auto" there, ``needed`` whether DeepSpeed must be told, ``stages`` the ZeRO stages that read
it, ``device`` the offload device that reads it, and limits. ``own_pipeline`` has the keys of the section
``pipeline`` that npu_plugins' engine reads and DeepSpeed's does not (ds_configs/pipeline_section.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError

AUTO = "auto"
NUMBERS = ("int", "count", "float")


@dataclass(frozen=True)
class Option:
    """One key that a section may hold."""

    type: str
    value: Any = None
    rule: str = ""
    hf: bool = False
    needed: bool = False
    stages: tuple[int, ...] = ()
    device: str = ""
    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None
    """As ``maximum``, which is then not allowed itself."""
    choices: tuple[str, ...] = ()

    def checked(self, where: str, value: Any) -> Any:
        """Return ``value`` if this key may hold it.

        Raises:
            DsConfigError: it has another type or lies outside the limits; ``where`` names the key.
        """
        if self.type == "pair":
            if not isinstance(value, (list, tuple)) or len(value) != 2:
                raise DsConfigError(f"{where} is {show(value)}; give two numbers, such as 0.9,0.999")
            return [self._number(where, item) for item in value]
        if self.type in NUMBERS:
            return self._number(where, value)
        if not isinstance(value, {"bool": bool, "str": str}[self.type]):
            wanted = "true or false" if self.type == "bool" else "a word"
            raise DsConfigError(f"{where} is {show(value)}; give {wanted}")
        if self.choices and value not in self.choices:
            raise DsConfigError(f"{where} is {show(value)}; choose one of {', '.join(self.choices)}")
        return value

    def _number(self, where: str, value: Any) -> Any:
        integral = isinstance(value, float) and value.is_integer()
        wrong = isinstance(value, bool) or not isinstance(value, (int, float)) or value != value
        if self.type in ("int", "count") and not wrong:
            wrong = isinstance(value, float) and not (self.type == "count" and integral)
        if wrong:
            kind = "a number" if self.type in ("float", "pair") else "a whole number"
            raise DsConfigError(f"{where} is {show(value)}; give {kind}")
        if not self._within_limits(value):
            raise DsConfigError(f"{where} is {show(value)}; give a {self._limits()}")
        return value

    def _within_limits(self, value: float) -> bool:
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return low <= value <= high and value < (math.inf if self.below is None else self.below)

    def _limits(self) -> str:
        low = "" if self.minimum is None else f" of at least {self.minimum:g}"
        if self.below is not None:
            return f"number{low} and below {self.below:g}"
        if self.maximum is None:
            return f"finite number{low}"
        return f"number from {self.minimum:g} to {self.maximum:g}"


@dataclass(frozen=True)
class Recipe:
    """An optimizer or a scheduler that DeepSpeed builds: its parameters and where it works."""

    params: Mapping[str, Option]
    stages: tuple[int, ...] = (0, 1, 2, 3)
    why_stages: str = ""
    on_host: bool = False
    """Whether DeepSpeed has a kernel for it on the host, which offload wants."""
    untested: bool = False
    """Whether ZeRO takes it only with ``zero_allow_untested_optimizer``."""


def show(value: Any) -> str:
    """Return ``value`` as JSON spells it, so that "8" and 8 differ."""
    try:
        return json.dumps(value)
    except TypeError:
        return repr(value)


@cache
def _tables() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("tables.json").read_text(encoding="utf-8"))


def _options(table: Mapping[str, Any]) -> dict[str, Option]:
    lists = ("stages", "choices")
    options = {}
    for name, fields in table.items():
        values: dict[str, Any] = dict(fields)
        values.update({key: tuple(values[key]) for key in lists if key in values})
        options[name] = Option(**values)
    return options


@cache
def section(name: str) -> Mapping[str, Option]:
    """Return the options of section ``name``, in the order they are written."""
    return _options(_tables()[name])


def pipeline_options() -> Mapping[str, Option]:
    """Return all options of the section ``pipeline``, DeepSpeed's and npu_plugins'."""
    return {**section("pipeline"), **section("own_pipeline")}


def is_own_pipeline(given: Mapping[str, Any]) -> bool:
    """Whether the keys asked for of the section ``pipeline`` are for npu_plugins' engine."""
    return any(value is not None for key, value in given.items() if key in section("own_pipeline"))


@cache
def recipes(kind: str) -> Mapping[str, Recipe]:
    """Return all ``"optimizers"`` or ``"schedulers"`` by the name that DeepSpeed gives them."""
    return {
        name: Recipe(
            _options(fields["params"]), **{key: value for key, value in fields.items() if key != "params"}
        )
        for name, fields in _tables()[kind].items()
    }


def refused_optimizers() -> Mapping[str, str]:
    """Return the names people ask for that cannot be had on an NPU, each with the reason."""
    return _tables()["refused_optimizers"]


def known(where: str, names: Mapping[str, Any], name: str) -> str:
    """Return ``name`` as ``names`` spells it, regardless of case.

    Raises:
        DsConfigError: it is none of them; the message names the likely one, or all.
    """
    folded = {each.lower(): each for each in names}
    if name.lower() in folded:
        return folded[name.lower()]
    near = get_close_matches(name.lower(), folded, n=1)
    hint = f"did you mean {folded[near[0]]}?" if near else f"there are {', '.join(names)}"
    raise DsConfigError(f"{where} {name} is not offered here; {hint}")
