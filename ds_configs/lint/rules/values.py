"""Values: of the wrong type, out of range, no choice, quoted, null, "auto" without HF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from ds_configs.documents import Member, replace_value
from ds_configs.documents.scan import PLACEHOLDER
from ds_configs.lint.context import Context, Path, is_finite
from ds_configs.lint.finding import DEEPSPEED, Finding
from ds_configs.lint.rules.filled import AUTO, filled
from ds_configs.lint.rules.keys import BESIDE
from ds_configs.schema import Key
from ds_configs.schema.key import shown
from ds_configs.schema.lax import WHAT, truth_of

# Whose values are handed as they are to a class that computes with them.
PARAMETERS = (("optimizer", "params"), ("scheduler", "params"))
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


def check(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with values: what the parser refuses, then what it lets through."""
    refused = context.refused
    for path, reasons in refused.items():
        key = context.schema.key(path)
        for reason in reasons:
            if key is not None and not key.removed and not reason.startswith(BESIDE):  # those: rules/keys.py
                yield _refused(context, path, key, reason)
    for path, member in context.root.walk():
        key = context.schema.key(path, _kind(context, path))
        if path[0] == "pipeline" and context.own_pipeline:
            continue  # rules/pipeline.py
        below = any(path[:length] in refused for length in range(1, len(path) + 1))
        if key is not None and not below and not key.removed and not key.fits(member.node.value):
            yield from _let_through(context, path, key, member)


def _kind(context: Context, path: Path) -> str | None:
    if len(path) == 3 and path[0] in ("optimizer", "scheduler"):
        kind = context.get((path[0], "type"))
        return kind if isinstance(kind, str) else None
    return None


def _refused(context: Context, path: Path, key: Key, reason: str) -> Finding:
    member = context.member(path)
    value = context.get(path)
    said = f"{key.name} {reason}"
    if member is None:
        return context.finding("DSC203", path, said, "correct the value")
    if value == AUTO and path in filled():
        return context.finding(
            "DSC211",
            path,
            f'{key.name} is "auto"',
            "write a number, or train through HF",
            on_value=True,
            loaders=(DEEPSPEED,),
        )
    if value is None:
        mend = "delete the key, so that the default holds"
        return context.finding("DSC210", path, said, mend, on_value=True, edits=context.delete(path))
    if isinstance(value, str):
        return _refused_text(context, path, key, member, said)
    if (
        isinstance(value, float)
        and is_finite(value)
        and not value.is_integer()
        and "int" in key.types
        and "float" not in key.types
    ):
        whole = max(round(value), 1 if value > 0 else 0)
        edits = replace_value(member.node, whole)
        return context.finding(
            "DSC209",
            path,
            f"{key.name} must be a whole number, not {value!r}",
            f"write {whole}",
            on_value=True,
            edits=edits,
            safe=not key.choices,
        )
    if isinstance(value, int | float) and not isinstance(value, bool) and key.fits(value):
        code = "DSC205" if key.choices else "DSC204"
        mend = "write a value that is allowed"
        if key.choices:
            mend = f"choose one of {', '.join(map(str, key.choices))}"
        return context.finding(code, path, said, mend, on_value=True)
    return context.finding("DSC203", path, said, f"write {_wanted(key)}", on_value=True)


def _refused_text(context: Context, path: Path, key: Key, member: Member, said: str) -> Finding:
    value = member.node.value
    if PLACEHOLDER.fullmatch(value):
        reason = f"{key.name} is {value}, a placeholder that nothing has filled in"
        return context.finding("DSC117", path, reason, "fill it in", on_value=True)
    number = _as_number(value, key)
    if number is not None and key.fits(number):
        edits = replace_value(member.node, number)
        return context.finding(
            "DSC208", path, f"{key.name} is the text {value!r}", f"write {number}", on_value=True, edits=edits
        )
    if key.choices:
        words = {str(choice).lower(): choice for choice in key.choices}
        near = get_close_matches(value.strip().lower(), words, n=1, cutoff=0.8)
        if near:
            edits = replace_value(member.node, words[near[0]])
            same = near[0] == value.strip().lower()
            return context.finding(
                "DSC205", path, said, f"write {words[near[0]]}", on_value=True, edits=edits, safe=same
            )
        return context.finding(
            "DSC205", path, said, f"choose one of {', '.join(map(str, key.choices))}", on_value=True
        )
    return context.finding("DSC203", path, said, f"write {_wanted(key)}", on_value=True)


def _as_number(text: str, key: Key) -> int | float | None:
    """Return the number that ``text`` spells, if ``key`` wants one."""
    if not NUMBER.fullmatch(text) or not {"int", "float"} & set(key.types):
        return None
    number = float(text)
    if not is_finite(number):
        return None
    if number.is_integer() and abs(number) < 1e15:
        return int(number)
    return number


def _wanted(key: Key) -> str:
    names = {**WHAT, "str": "a string in quotes"}
    return " or ".join(names[name] for name in key.types) or "nothing: delete the key"


def _let_through(context: Context, path: Path, key: Key, member: Member) -> Iterator[Finding]:
    """Yield what the parser converts or does not look at."""
    value = member.node.value
    if value == AUTO:
        yield from _auto(context, path, key)
        return
    number = _as_number(value, key) if isinstance(value, str) else None
    better: Any = number if number is not None and key.fits(number) else _better(key, value)
    edits = () if better is None else replace_value(member.node, better)
    mend = f"write {_wanted(key)}" if better is None else f"write {json.dumps(better, ensure_ascii=False)}"
    reason = f"{key.name} should be {_wanted(key)}, not {shown(value)}"
    if key.check == "nothing" and better is not None and better == value:  # 1e5 and 1 compute as they should
        yield context.finding("DSC214", path, reason, mend, on_value=True, edits=edits, severity="note")
        return
    converted = key.check not in ("nothing", "container")
    code = "DSC214" if converted else "DSC213"
    if code == "DSC213" and value is None and path[:-1] in PARAMETERS:
        mend = "delete the key, so that the default holds"
        yield context.finding(code, path, reason, mend, on_value=True, edits=context.delete(path))
        return
    if code == "DSC213" and value is None:
        yield context.finding(
            "DSC214", path, reason, mend, on_value=True, consequence="it may work as the default does"
        )
        return
    yield context.finding(code, path, reason, mend, on_value=True, edits=edits)


def _better(key: Key, value: Any) -> Any:
    """Return the value that is meant by one of a neighbouring type, None if that is not plain."""
    if key.types[:1] == ("bool",) and not isinstance(value, bool) and truth_of(value) is not None:
        return truth_of(value)
    if isinstance(value, float) and value.is_integer() and "int" in key.types:
        return int(value)
    return None


def _auto(context: Context, path: Path, key: Key) -> Iterator[Finding]:
    """Yield what "auto" means to DeepSpeed alone; what HF makes of it is rules/hf.py's."""
    if context.schema.is_strict(path[:-1]):
        reason = f'"auto" for {key.name} means its default to DeepSpeed: {shown(key.default)}'
        yield context.finding(
            "DSC408", path, reason, "write the value that is meant", on_value=True, loaders=(DEEPSPEED,)
        )
    elif path in filled():
        reason = f'{key.name} is "auto", which only HF fills'
        mend = "write a number, or train through HF"
        yield context.finding("DSC216", path, reason, mend, on_value=True, loaders=(DEEPSPEED,))
    elif "str" not in key.types:
        reason = f'{key.name} is "auto", which nobody fills'
        yield context.finding(
            "DSC213", path, reason, f"write {_wanted(key)}", on_value=True, loaders=(DEEPSPEED,)
        )
