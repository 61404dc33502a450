"""What the schema says of a key, in words: type, default, limits, what becomes of it, what it was before."""

from __future__ import annotations

from ds_configs.schema import VERSIONS, Json, Key, Schema, load_schema
from ds_configs.schema.key import shown

# From here on a number is easier to read with its power of ten beside it.
LARGE = 10**6
NO_LIMIT = 2**63 - 1  # sys.maxsize, which stands for that


def kind_of(key: Key) -> str:
    """Return the type with its limits, such as "int above 0" or "one of none, cpu, nvme"."""
    if not key.types:
        return "no value"
    words = [name for name in key.types if name != "null"]
    kind = " or ".join(words) or "null"
    if key.items and "list" in key.types:
        kind = kind.replace("list", f"list of {' or '.join(key.items)}")
    if key.choices:
        kind += f" (one of {', '.join(shown(choice) for choice in key.choices)})"
    low, high = key.minimum, key.maximum
    if low is not None:
        kind += f" {'above' if key.open_minimum else 'from'} {low:g}"
    if high is not None:
        kind += f" {'below' if key.open_maximum else 'to'} {high:g}"
    return f"{kind} or null" if "null" in key.types and words else kind


def default_of(schema: Schema, key: Key, kind: str | None = None) -> str:
    """Return the default in words; of a parameter, that of the type ``kind``, or each type's own."""
    above = key.path[:-1]
    kinds = {
        kind: names[key.path[-1]]
        for kind, names in schema.variants.get(above, {}).items()
        if key.path[-1] in names
    }
    if not kinds or kind is not None:
        return _default(key)
    by_default: dict[str, list[str]] = {}
    for name, one in kinds.items():
        by_default.setdefault(_default(one), []).append(name)
    return "; ".join(f"{default} ({', '.join(names)})" for default, names in by_default.items())


def _default(key: Key) -> str:
    if key.required:
        return "none, it must be given"
    if key.default_rule:
        return key.default_rule
    if key.default is None and "null" not in key.types:
        return "not set"
    if isinstance(key.default, int) and "float" in key.types:
        return number(float(key.default))
    return number(key.default)


def number(value: Json) -> str:
    """Return a value as JSON, a large number with its power of ten."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGE:
        power = f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
        if value >= NO_LIMIT:
            return "no limit"
        return f"{value} ({power})" if float(power) == value else shown(value)
    return shown(value)


def fate_of(schema: Schema, key: Key) -> list[str]:
    """Return what DeepSpeed does with the key besides using it, a sentence each."""
    notes = []
    if key.removed:
        who = "the parser refuses it, even empty" if key.removed_by == "parser" else "the engine refuses it"
        reason = key.removed[0].upper() + key.removed[1:]
        notes.append(f"Removed in DeepSpeed {schema.version}: {who}. {_sentence(reason)}")
    if key.alias_of:
        notes.append(f"Another spelling of {'.'.join(key.alias_of)}.")
    if key.deprecated:
        notes.append(f"Deprecated: {_sentence(key.deprecated)}")
    condition = _ignored(schema, key)
    if condition and key.consumed:  # the text of a key that is never read says so itself
        notes.append(f"Ignored {condition}.")
    return notes


def _ignored(schema: Schema, key: Key) -> str:
    """When the key has no effect; what is said of an object holds for what stands in it."""
    for length in range(len(key.path), 0, -1):
        above = schema.keys.get(key.path[:length])
        if above is not None and above.ignored:
            return above.ignored
        if above is not None and above.needs:
            return f"unless {above.needs} stands beside {'it' if above == key else above.name}"
    return key.ignored


def history_of(key: Key, version: str) -> str:
    """Return in which versions the key is missing or has another default, "" when in none."""
    missing: list[str] = []
    different: dict[str, list[str]] = {}
    for other in VERSIONS:
        found = load_schema(other).key(key.path)
        if found is None or (found.removed and not key.removed):
            missing.append(other)
        elif not found.removed and not key.removed and other != version and _default(found) != _default(key):
            different.setdefault(_default(found), []).append(other)
    parts = [f"default {default} in {', '.join(names)}" for default, names in different.items()]
    if missing:
        parts.insert(0, f"not a key of {', '.join(missing)}")
    return f"Other versions: {'; '.join(parts)}." if parts else ""


def _sentence(text: str) -> str:
    stripped = text.strip()
    return stripped if stripped.endswith((".", "?", "!")) else f"{stripped}."
