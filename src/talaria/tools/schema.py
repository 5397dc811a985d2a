"""Checking a call's arguments against the part of JSON schema that tools use.

Known: type, required, properties, additionalProperties, enum, items, minimum, maximum, maxItems, maxLength.
What is not known is not checked here: the tool itself, or its MCP server, has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

_MAX_PROBLEMS = 5
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}


def problems(value: object, schema: dict[str, Any], where: str = "arguments") -> list[str]:
    """What is wrong with `value`, in sentences for the model; empty when it fits."""
    return list(islice(_problems(value, schema, where), _MAX_PROBLEMS))


def without_nulls(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Models write null for what they leave out: an optional parameter that takes no null is dropped."""
    properties: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())

    def is_left_out(name: str) -> bool:
        inner = properties.get(name)
        return name not in required and isinstance(inner, dict) and bool(problems(None, inner))

    return {name: value for name, value in arguments.items() if value is not None or not is_left_out(name)}


def _problems(value: object, schema: dict[str, Any], where: str) -> Iterator[str]:
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if kinds and not any(_is_a(kind, value) for kind in kinds):
        yield f"{where} must be {' or '.join(map(_article, kinds))}, not {_article(_kind_of(value))}."
        return
    allowed = schema.get("enum")
    if allowed is not None and value not in allowed:
        yield f"{where} must be one of {', '.join(map(repr, allowed))}."
    match value:
        case dict():
            yield from _object_problems(value, schema, where)
        case list():
            if len(value) > schema.get("maxItems", len(value)):
                yield f"{where} must have at most {schema['maxItems']} items."
            item_schema = schema.get("items")
            if isinstance(item_schema, dict):
                for index, item in enumerate(value):
                    yield from _problems(item, item_schema, f"{where}[{index}]")
        case str():
            if len(value) > schema.get("maxLength", len(value)):
                yield f"{where} must have at most {schema['maxLength']} characters."
        case int() | float() if not isinstance(value, bool):
            if value < schema.get("minimum", value):
                yield f"{where} must be at least {schema['minimum']}."
            if value > schema.get("maximum", value):
                yield f"{where} must be at most {schema['maximum']}."


def _object_problems(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    properties: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}.{name} is missing."
    for name, inner in value.items():
        if isinstance(properties.get(name), dict):
            yield from _problems(inner, properties[name], f"{where}.{name}")
        elif name not in properties and schema.get("additionalProperties") is False:
            yield f"{where}.{name} is not known; known: {', '.join(sorted(properties)) or 'none'}."


def _is_a(kind: str, value: object) -> bool:
    match kind:
        case "integer":
            return _kind_of(value) == "integer" or (isinstance(value, float) and value.is_integer())
        case "number":
            return _kind_of(value) in ("integer", "number")
        case _:
            return _kind_of(value) == kind


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value), "object")


def _article(kind: str) -> str:
    if kind == "null":
        return kind
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"
