"""Keys: removed, unknown, misspelt, misplaced, deprecated, given twice, never read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds_configs.documents import Edit, Node, insert_member, rename_key, replace_value
from ds_configs.lint.context import AUTO, Context, Path
from ds_configs.lint.finding import Finding
from ds_configs.lint.words import Guess, meant
from ds_configs.schema import Key
from ds_configs.schema.key import spelt
from ds_configs.schema.lax import truth_of

SHOWN = 6
# An object with more unknown keys than this was never a configuration: nobody meant known words by them.
MOST_GUESSED = 100
BESIDE = "stands beside "  # how the schema says that a setting is given under two names
OFF: tuple[Any, ...] = (False, None, 0, "", {}, [])


def check(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the names of keys, object by object."""
    yield from _object(context, (), context.root)


def _object(context: Context, path: Path, node: Node) -> Iterator[Finding]:
    known = context.schema.children(path, _kind(context, path))
    owner = context.schema.key(path) if path else None
    if owner is not None and owner.open:
        return
    unknown = []
    for member in node.members:
        here = (*path, member.key)
        key = known.get(member.key)
        if key is None:
            unknown.append(here)
            continue
        yield from _known(context, here, key, node)
        if member.node.kind == "object" and not key.removed:
            yield from _object(context, here, member.node)
    if unknown and _is_parameters(path):
        return  # rules/engine.py: there they are refused
    if path == ("pipeline",) and context.own_pipeline:
        return  # rules/pipeline.py: another engine reads them
    yield from _unknown(context, path, unknown)


def _is_parameters(path: Path) -> bool:
    return path in (("optimizer", "params"), ("scheduler", "params"))


def _kind(context: Context, path: Path) -> str | None:
    kind = context.get((path[0], "type")) if _is_parameters(path) else None
    return kind if isinstance(kind, str) else None


def _known(context: Context, path: Path, key: Key, node: Node) -> Iterator[Finding]:
    if key.removed:
        off = _is_off(context.get(path))
        mend = "delete the key" + ("" if off else ": this version cannot do what it asks for")
        stops_later = getattr(key, "removed_by", "parser") == "engine"
        code = "DSC611" if stops_later else "DSC201"
        if stops_later and (off or path[-1] == "max_grad_norm"):
            return  # rules/engine.py moves max_grad_norm to where it works
        yield context.finding(
            code, path, f"{key.name} is removed: {key.removed}", mend, edits=context.delete(path), safe=off
        )
        return
    if path == ("bfloat16",) and context.get(("bf16",)) is not None:
        edits = context.delete(path)
        yield context.finding("DSC409", path, "bfloat16 is ignored beside bf16", "delete it", edits=edits)
        return
    partner = _other_name(context, path)
    if partner:
        same = node.value.get(path[-1]) == node.value.get(partner)
        mend = f"keep {partner} and delete {path[-1]}" + (
            "" if same else ", or the other way round: they differ"
        )
        yield context.finding(
            "DSC207",
            path,
            f"{path[-1]} and {partner} are the same setting",
            mend,
            edits=context.delete(path),
            safe=same,
        )
    elif key.deprecated:
        yield from _deprecated(context, path, key)
    if not key.consumed and path[0] != "pipeline":
        harmless = context.get(path) == key.default
        yield context.finding(
            "DSC407",
            path,
            f"DeepSpeed parses {key.name} and never reads it",
            "delete the key",
            edits=context.delete(path),
            severity="note" if harmless else "warning",
        )


def _is_off(value: Any) -> bool:
    return value in OFF or (isinstance(value, dict) and value.get("enabled") in (False, 0))


def _other_name(context: Context, path: Path) -> str:
    """Return the other name of this setting that stands beside it and is refused with it, "" if none is."""
    for reason in context.refused.get(path, []):
        if reason.startswith(BESIDE):
            return reason.removeprefix(BESIDE).partition(",")[0]
    return ""


def _deprecated(context: Context, path: Path, key: Key) -> Iterator[Finding]:
    value = context.get(path)
    node = context.object_at(path[:-1])
    edits: tuple[Edit, ...] = ()
    mend = key.deprecated
    member = context.member(path)
    if member is not None and node is not None and key.new_path is not None:
        new = _current_name(context, (*path[:-1], key.new_path[-1]))
        if new.startswith("offload_"):
            on = truth_of(value)
            mend = f'write "{new}": {{"device": "cpu"}}' if on else "delete the key"
            if on and new not in node.value:
                edits = (*rename_key(member, new), *replace_value(member.node, {"device": "cpu"}))
            elif on is not None:
                edits = context.delete(path)
        elif new not in node.value:
            mend, edits = f"call it {new}", rename_key(member, new)
    yield context.finding("DSC206", path, f"{key.name} is deprecated: {key.deprecated}", mend, edits=edits)


def _current_name(context: Context, path: Path) -> str:
    """Return the name that is documented for the key at ``path``, which may be its internal name."""
    key = context.schema.key(path)
    return key.alias_of[-1] if key is not None and key.alias_of else path[-1]


def _unknown(context: Context, above: Path, paths: list[Path]) -> Iterator[Finding]:
    strange = []
    for place, path in enumerate(paths):
        strict = path in context.refused  # not an "auto", which DeepSpeed's models drop before they look
        guess = meant(context, path) if place < MOST_GUESSED else None
        if (
            guess is not None
            and guess.path[:-1] != path[:-1]
            and not _fits(context, guess.path, context.get(path))
        ):
            guess = None  # the same word for something else
        if guess is not None and (guess.sure or strict):
            yield _guessed(context, path, guess, strict)
        elif strict:
            where = ".".join(above)
            yield context.finding(
                "DSC202",
                path,
                f"{where} has no key {spelt(path[-1])}, and refuses those it does not know",
                "delete the key",
                edits=context.delete(path),
            )
        else:
            strange.append(path)
    if strange:
        names = ", ".join(spelt(path[-1]) for path in strange[:SHOWN])
        more = f" and {len(strange) - SHOWN} more" if len(strange) > SHOWN else ""
        where = f"in {'.'.join(above)}" if above else "at the top level"
        reason = f"DeepSpeed knows no {names}{more} {where}"
        yield context.finding("DSC403", strange[0], reason, "delete them, unless another program reads them")


def _guessed(context: Context, path: Path, guess: Guess, strict: bool) -> Finding:
    target = ".".join(guess.path)
    moved = guess.path[:-1] != path[:-1]
    edits, fits = _move(context, path, guess) if moved else _rename(context, path, guess)
    if strict:
        code = "DSC212" if moved else "DSC202"
        reason = f"{'.'.join(path[:-1])} has no key {spelt(path[-1])}; {guess.why}"
    else:
        code = "DSC402" if moved else "DSC401"
        reason = f"DeepSpeed knows no key {'.'.join(map(spelt, path))}; {guess.why}"
    if not edits and strict:
        edits = context.delete(path)
    mend = f"move it to {target}" if moved else f"write {guess.path[-1]}"
    return context.finding(code, path, reason, mend, edits=edits, safe=guess.sure and fits)


def _rename(context: Context, path: Path, guess: Guess) -> tuple[tuple[Edit, ...], bool]:
    member = context.member(path)
    if member is None or context.member(guess.path) is not None:
        return (), False
    return rename_key(member, guess.path[-1]), _fits(context, guess.path, member.node.value)


def _move(context: Context, path: Path, guess: Guess) -> tuple[tuple[Edit, ...], bool]:
    member = context.member(path)
    target = context.object_at(guess.path[:-1])
    if member is None or context.member(guess.path) is not None:
        return (), False
    fits = _fits(context, guess.path, member.node.value)
    if target is None:
        if len(guess.path) != 2 or context.member(guess.path[:1]) is not None:
            return (), False
        added = insert_member(
            context.document.text, context.root, guess.path[0], {guess.path[1]: member.node.value}
        )
    else:
        added = insert_member(context.document.text, target, guess.path[-1], member.node.value)
    return (*context.delete(path), *added), fits


def _fits(context: Context, path: Path, value: Any) -> bool:
    key = context.schema.key(path)
    return key is not None and (key.fits(value) or value == AUTO)
