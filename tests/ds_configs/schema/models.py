"""Reads DeepSpeed's pydantic models into the fields of schema keys."""

from __future__ import annotations

import enum
import pathlib
import types as python_types
import typing
from typing import Any

import annotated_types
import pydantic
from pydantic.fields import FieldInfo

JSON_TYPES = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    tuple: "list",
    dict: "object",
    type(None): "null",
    pathlib.Path: "str",
}
LIMITS = {
    annotated_types.Ge: ("minimum", "ge", False),
    annotated_types.Gt: ("minimum", "gt", True),
    annotated_types.Le: ("maximum", "le", False),
    annotated_types.Lt: ("maximum", "lt", True),
}
Fields = dict[str, Any]


def keys_of(model: type[pydantic.BaseModel], above: str) -> dict[str, Fields]:
    """Return the keys of ``model`` and of the models in it, by dotted path; ``above`` is the model's path."""
    found: dict[str, Fields] = {}
    for name, info in model.model_fields.items():
        path = f"{above}.{info.alias or name}"
        fields = _fields(info)
        found[path] = fields
        if info.alias and model.model_config.get("populate_by_name"):
            found[f"{above}.{name}"] = {**fields, "alias_of": path}
        nested = _model_in(info.annotation)
        if nested is not None:
            inner = keys_of(nested, path)
            found.update(inner)
            if info.alias:
                found.update(
                    {
                        f"{above}.{name}{key[len(path) :]}": {**one, "alias_of": key}
                        for key, one in inner.items()
                    }
                )
    return found


def validators_of(model: type[pydantic.BaseModel]) -> list[str]:
    """Return the names of the validators of ``model`` and of the models in it."""
    decorators = model.__pydantic_decorators__
    names = [*decorators.field_validators, *decorators.model_validators]
    for info in model.model_fields.values():
        nested = _model_in(info.annotation)
        if nested is not None:
            names += validators_of(nested)
    return names


def is_strict(model: type[pydantic.BaseModel]) -> bool:
    """Whether the model refuses keys it does not know."""
    return model.model_config.get("extra") == "forbid"


def _fields(info: FieldInfo) -> Fields:
    fields: Fields = {"types": _types(info.annotation), "check": "pydantic", **_default(info)}
    choices = _choices(info.annotation)
    if choices:
        fields["choices"] = choices
    if "list" in fields["types"]:
        fields.update(_items(info.annotation))
    if "int" in fields["types"]:
        fields["integral_float"] = True  # pydantic's lax mode, which the models use
    nested = _model_in(info.annotation)
    if nested is not None and is_strict(nested):
        fields["strict"] = True
    for limit in info.metadata:
        if type(limit) in LIMITS:
            name, attribute, is_open = LIMITS[type(limit)]
            fields[name] = getattr(limit, attribute)
            if is_open:
                fields[f"open_{name}"] = True
    return {**fields, **_deprecation(info)}


def _deprecation(info: FieldInfo) -> Fields:
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or not extra.get("deprecated"):
        return {}
    new = str(extra.get("new_param", ""))
    fields: Fields = {"deprecated": str(extra.get("deprecated_msg", "")) or f"use {new} instead"}
    if new and extra.get("set_new_param", True):
        fields["new_path"] = new
    return fields


def _default(info: FieldInfo) -> Fields:
    if info.is_required():
        return {"required": True}
    return {"default": plain(info.get_default(call_default_factory=True))}


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, pydantic.BaseModel):
        return {}
    if isinstance(value, bool) or value is None or isinstance(value, float | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def _parts(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation itself."""
    if typing.get_origin(annotation) in (typing.Union, python_types.UnionType):
        return [part for member in typing.get_args(annotation) for part in _parts(member)]
    return [annotation]


def _types(annotation: Any) -> list[str]:
    found: list[str] = []
    for part in _parts(annotation):
        for name in _types_of_one(part):
            if name not in found:
                found.append(name)
    return found


def _types_of_one(part: Any) -> list[str]:
    origin = typing.get_origin(part)
    if origin is typing.Literal:
        return [JSON_TYPES[type(choice)] for choice in typing.get_args(part)]
    kind = origin or part
    if kind in JSON_TYPES:
        return [JSON_TYPES[kind]]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [JSON_TYPES[type(plain(member))] for member in kind]
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return ["object"]
    if kind in (object, Any):
        return ["bool", "int", "float", "str", "list", "object", "null"]
    return []  # such as torch.dtype: no JSON value is one


def _choices(annotation: Any) -> list[Any]:
    for part in _parts(annotation):
        if typing.get_origin(part) is typing.Literal:
            return list(typing.get_args(part))
        if isinstance(part, type) and issubclass(part, enum.Enum):
            return list(dict.fromkeys(plain(member) for member in part))
    return []


def _items(annotation: Any) -> Fields:
    for part in _parts(annotation):
        inner = typing.get_args(part)
        if typing.get_origin(part) is list and inner:
            fields: Fields = {"items": _types(inner[0])}
            if _choices(inner[0]):
                fields["item_choices"] = _choices(inner[0])
            return fields
    return {}


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    for part in _parts(annotation):
        if isinstance(part, type) and issubclass(part, pydantic.BaseModel):
            return part
    return None
