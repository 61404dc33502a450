"""Explains every key of a file, with the value it sets and what becomes of that value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ds_configs.documents import Document, read_document
from ds_configs.errors import DsConfigError
from ds_configs.explain.explanation import Explanation, explanation_of
from ds_configs.explain.facts import kind_of
from ds_configs.explain.lookup import likely_keys
from ds_configs.pipeline_section import OWN, faults
from ds_configs.schema import LATEST, Json, Key, Schema, load_schema
from ds_configs.schema.document import PICKED
from ds_configs.schema.key import shown

KeyPath = tuple[str, ...]
MOST_LIKELY = 3
# Conditions that the file itself decides.
NEED = re.compile(r"Ignored unless (\w+) stands beside .*")
STAGE_CONDITION = re.compile(r"Ignored unless stage is (\d)(?: or (\d))?\.")


def explain_file(path: str, version: str = LATEST) -> list[Explanation]:
    """Explain every key of the configuration file ``path`` ("-": standard input), in its order.

    What stands inside a free-form object, or inside one that DeepSpeed does not know, is explained with it.
    Raises DsConfigError when the file cannot be read as a configuration.
    """
    return explain_document(read_document(path), version)


def explain_document(document: Document, version: str = LATEST) -> list[Explanation]:
    """Explain every key of a configuration that has been read; see ``explain_file``."""
    if document.root is None or document.root.kind != "object":
        why = f": {document.faults[0].reason}" if document.faults else ""
        raise DsConfigError(f"{document.path} holds no JSON object to explain{why}; see `ds-config lint`")
    schema = load_schema(version)
    refused = {refusal.path: refusal.reason for refusal in schema.refusals(document.value)}
    found: list[Explanation] = []
    closed: list[KeyPath] = []  # what stands below is explained with it
    for where, member in document.root.walk():
        if any(where[: len(above)] == above for above in closed):
            continue
        key = schema.key(where, _kind(schema, document.value, where))
        value = member.node.value
        if key is None:
            one = _unknown(schema, where, document.value, refused.get(where, ""))
        else:
            one = explanation_of(schema, key, _kind(schema, document.value, where))
            about = _about_value(schema, key, value, refused.get(where, ""))
            one = replace(one, notes=(*_decided(one.notes, where, document.value), *about))
        if key is None or key.open or key.removed or isinstance(value, list):
            closed.append(where)
        line, _ = document.lines.position(member.start)
        found.append(replace(one, is_set=True, value=value, line=line))
    return found


def _unknown(schema: Schema, path: KeyPath, document: Mapping[str, Json], refused: str) -> Explanation:
    name = ".".join(path)
    if path[:-1] in schema.variants:
        notes = _unknown_parameter(schema, path, document)
    elif len(path) == 2 and path[0] == "pipeline" and path[1] in OWN:
        notes = ["npu_plugins' pipeline engine reads it; DeepSpeed's ignores it without a word."]
        fault = faults(document["pipeline"]).get(path[1])
        notes += [f"npu_plugins' engine refuses it: {fault.reason}; {fault.mend}."] if fault else []
    else:
        what = "refuses it" if refused else "ignores it without a word"
        notes = [f"DeepSpeed {schema.version} knows no such key and {what}."]
        likely = likely_keys(schema, name)[:MOST_LIKELY]
        if likely:
            notes.append(f"Like it: {', '.join(likely)}.")
    return Explanation(name, schema.version, known=False, notes=tuple(notes))


def _unknown_parameter(schema: Schema, path: KeyPath, document: Mapping[str, Json]) -> list[str]:
    kind = _kind(schema, document, path)
    if kind is None:
        return [f"DeepSpeed hands it on as it is to the class that {path[0]}.type names."]
    known = ", ".join(name for name, key in schema.children(path[:-1], kind).items() if not key.removed)
    takers = [one for one, names in schema.variants[path[:-1]].items() if path[-1] in names]
    also = f" {' and '.join(takers)} {'has' if len(takers) == 1 else 'have'} it." if takers else ""
    end = "it is ignored without a word" if kind.lower() in PICKED else "it fails when the engine is built"
    return [f"{kind} has no such parameter: {end}.{also}", f"{kind} takes {known}."]


def _about_value(schema: Schema, key: Key, value: Json, refused: str) -> list[str]:
    notes: list[str] = []
    if key.removed:
        return notes
    if value == "auto" and not key.fits(value):
        alone = "takes it as text"
        if refused:
            alone = "refuses it"
        elif schema.is_strict(key.path[:-1]):
            alone = "drops the key and takes the default"
        notes.append(f'"auto" is for Hugging Face\'s Trainer to fill; DeepSpeed by itself {alone}.')
    elif refused:
        notes.append(f"Refused: it {refused}.")
    elif not key.fits(value):
        notes.append(f"The parser takes {shown(value)}, but the key is meant to hold {kind_of(key)}.")
    return notes


def _decided(notes: Iterable[str], path: KeyPath, document: Mapping[str, Json]) -> list[str]:
    """The notes without the conditions that the file meets; its stage is said where it does not."""
    zero = document.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    kept = []
    for note in notes:
        condition = STAGE_CONDITION.fullmatch(note)
        need = NEED.fullmatch(note)
        if need and document[path[0]].get(need[1]) is not None:
            continue
        if condition is None:
            kept.append(note)
        elif str(stage) not in condition.groups():
            kept.append(f"Ignored: the file has stage {shown(stage)}. {note}")
    return kept


def _kind(schema: Schema, document: Mapping[str, Json], path: KeyPath) -> str | None:
    """The optimizer's or scheduler's type that ``path`` is a parameter of, None where it is not known."""
    known = schema.variants.get(path[:-1], {})
    section = document.get(path[0])
    wanted = section.get("type") if known and isinstance(section, dict) else None
    return next((kind for kind in known if isinstance(wanted, str) and kind.lower() == wanted.lower()), None)
