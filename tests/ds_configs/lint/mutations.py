"""Random damage to configurations: to keys, values and structure first, then to the text."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ds_configs.schema import load_schema

BASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "bases.json").read_text(encoding="utf-8")
)
SCHEMA = load_schema()
NAMES = sorted(
    {path[-1] for path in SCHEMA.keys} | {"zero_optimisation", "lr", "x", "", "find_unused_parameters"}
)
NUMBERS = [0, 1, 2, 3, 4, 8, -1, 7, 1000, 5e8, 2e8, 0.5, 1.0, 2.5, -0.5, 1e-10, 10**30, 1e300]
TEXTS = [
    "auto",
    "8",
    "2e8",
    "1.5",
    "true",
    "False",
    "cpu",
    "CPU",
    "none",
    "nvme",
    "fp16",
    "bf16",
    "",
    "x",
    "3",
]
TEXTS += [
    "${x}",
    "<n>",
    "Warn",
    "sum",
    "AdamW",
    "adam",
    "SGD",
    "WarmupLR",
    "é",
    "a b",
    "yes",
    "DeepEP",
    "1e400",
]
scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.integers(-3, 40)
)
values = st.one_of(
    scalars,
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(
        st.sampled_from(["enabled", "device", "stage", "strict", "type", "params"]), scalars, max_size=2
    ),
)
Draw = Callable[[st.SearchStrategy[Any]], Any]
PathOf = tuple[str, ...]


def _objects(config: dict[str, Any], above: PathOf = ()) -> list[tuple[PathOf, dict[str, Any]]]:
    found = [(above, config)]
    for key, value in config.items():
        if isinstance(value, dict):
            found += _objects(value, (*above, key))
    return found


def _slot(draw: Draw, config: dict[str, Any]) -> tuple[PathOf, dict[str, Any], str] | None:
    slots = [(path, node, key) for path, node in _objects(config) for key in node]
    return draw(st.sampled_from(slots)) if slots else None


def _typo(draw: Draw, word: str) -> str:
    if not word:
        return "x"
    at = draw(st.integers(0, len(word) - 1))
    return draw(
        st.sampled_from(
            [
                word[:at] + word[at + 1 :],
                word[:at] + word[at] + word[at:],
                word.upper(),
                word.replace("_", "-"),
                word + "s",
            ]
        )
    )


def _suited(draw: Draw, path: PathOf) -> Any:
    """Return a value that the key at ``path`` may well hold."""
    key = SCHEMA.key(path)
    if key is None:
        return draw(values)
    return draw(
        st.one_of(values, st.sampled_from([key.default, *key.choices, "auto", key.minimum, key.maximum]))
    )


def _delete(draw: Draw, config: dict[str, Any]) -> None:
    slot = _slot(draw, config)
    if slot:
        del slot[1][slot[2]]


def _set(draw: Draw, config: dict[str, Any]) -> None:
    slot = _slot(draw, config)
    if slot:
        slot[1][slot[2]] = _suited(draw, (*slot[0], slot[2]))


def _wrap(draw: Draw, config: dict[str, Any]) -> None:
    slot = _slot(draw, config)
    if slot:
        value = slot[1][slot[2]]
        slot[1][slot[2]] = draw(
            st.sampled_from([[value], {"enabled": value}, str(value), json.dumps(value), "auto"])
        )


def _rename(draw: Draw, config: dict[str, Any]) -> None:
    slot = _slot(draw, config)
    if slot:
        _, node, key = slot
        name = draw(st.one_of(st.just(_typo(draw, key)), st.sampled_from(NAMES)))
        items = [(name if old == key else old, value) for old, value in node.items()]
        node.clear()
        node.update(items)


def _move(draw: Draw, config: dict[str, Any]) -> None:
    slot = _slot(draw, config)
    if slot:
        value = slot[1].pop(slot[2])
        _, target = draw(st.sampled_from(_objects(config)))
        target[slot[2]] = value


def _add_known(draw: Draw, config: dict[str, Any]) -> None:
    """Add a key of the schema at its own place."""
    path = draw(st.sampled_from(sorted(SCHEMA.keys)))
    node: Any = config
    for name in path[:-1]:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            return
    node[path[-1]] = _suited(draw, path)


def _add_stray(draw: Draw, config: dict[str, Any]) -> None:
    _, node = draw(st.sampled_from(_objects(config)))
    node[draw(st.sampled_from(NAMES))] = draw(values)


STRUCTURE = (_delete, _set, _set, _wrap, _rename, _move, _add_known, _add_known, _add_stray)


def _text_edits(draw: Draw, text: str) -> str:
    at = draw(st.integers(0, len(text)))
    lines = text.splitlines(keepends=True) or [""]
    line = draw(st.integers(0, len(lines) - 1))
    other = "".join(lines[:line] + lines[line + 1 :])
    choices = [
        text[:at]
        + draw(st.sampled_from(list("{}[],:\"'#/\\ \n\t=()1e.-\u201c\uff0c\u00a0\x00`$<")))
        + text[at:],
        text[:at] + text[at + 1 :],
        text[:at],
        text + draw(st.sampled_from(["```", "{}", " // end", "}", ",", "x", "\n---\n", "/*"])),
        draw(
            st.sampled_from(
                ["```json\n", "config = ", "// c\n", "\ufeff", "Here it is:\n", "[", "#!/bin/sh\n"]
            )
        )
        + text,
        other,
        "".join(lines[: line + 1]) + "".join(lines[line:]),
        text.replace('"', "'"),
        text.replace("true", "True").replace("null", "None"),
        text.replace("}", ",}"),
        text.replace(",", ""),
        text.replace("\n", "\r\n"),
        text.replace(
            "1", draw(st.sampled_from(["NaN", "01", "1_0", "+1", ".1", "0x1", "1e400", "Infinity", "1*2"])), 1
        ),
        text.replace('"', "", draw(st.integers(1, 4))),
        "".join(f"{each.rstrip()} # note\n" for each in lines),
    ]
    return draw(st.sampled_from(choices))


@st.composite
def mutated(draw: Draw) -> str:
    """The text of a valid configuration after one to four changes, some of them of the text itself."""
    config = copy.deepcopy(BASES[draw(st.sampled_from(sorted(BASES)))])
    for _ in range(draw(st.integers(0, 3))):
        draw(st.sampled_from(STRUCTURE))(draw, config)
    text = json.dumps(config, indent=draw(st.sampled_from([2, 4, None])), ensure_ascii=draw(st.booleans()))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        text = _text_edits(draw, text)
    return text
