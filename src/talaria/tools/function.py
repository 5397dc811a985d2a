"""Tools made of functions: parameters as a JSON schema, and the check of a call's arguments against it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from talaria.core.errors import ToolError
from talaria.core.json_shape import has_more_values
from talaria.core.messages import Content
from talaria.core.tools import ToolSpec
from talaria.tools.tool import Tool, ToolContext

Arguments = dict[str, Any]
Handler = Callable[[Arguments, ToolContext], Awaitable[Content]]
MAX_VALUES = 20_000
SHORT_ARGUMENTS = 16 << 10
"""Arguments up to so many characters are parsed in a moment, whatever they hold."""
_MAX_PROBLEMS = 5
_SHOWN_CHARS = 100
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}


@dataclass(frozen=True, slots=True)
class FunctionTool(Tool):
    """A tool made of a spec and a function, which gets arguments that were checked against the spec. `reads`
    tells of which arguments a call changes nothing, although the spec is not `read_only`."""

    spec: ToolSpec
    handler: Handler
    reads: Callable[[Arguments], bool] = lambda arguments: False

    async def run(self, arguments: Arguments, context: ToolContext) -> Content:
        return await self.handler(arguments, context)

    def only_reads(self, arguments: Arguments) -> bool:
        return self.reads(arguments)


def in_thread(function: Callable[[Arguments, ToolContext], Content]) -> Handler:
    """Return a handler that runs a blocking function in a thread for tools.

    When the call is cancelled, the function goes on until it returns: keep it short, and its effect atomic.
    """

    async def handler(arguments: Arguments, context: ToolContext) -> Content:
        return await context.resources.in_thread(function, arguments, context)

    return handler


# -- parameters ---------------------------------------------------------------------------------------------


def text(description: str) -> dict[str, Any]:
    """Return the schema of a string."""
    return {"type": "string", "description": description}


def counted(description: str) -> dict[str, Any]:
    """Return the schema of an integer from 1 on."""
    return {"type": "integer", "minimum": 1, "description": description}


def flag(description: str) -> dict[str, Any]:
    """Return the schema of a boolean that is false unless it is given."""
    return {"type": "boolean", "description": description}


def parameters(properties: dict[str, dict[str, Any]], required: Iterable[str] = ()) -> str:
    """Return an object schema as canonical JSON text: sorted keys, no spaces, no unknown parameters."""
    schema = {
        "additionalProperties": False,
        "properties": properties,
        "required": sorted(required),
        "type": "object",
    }
    return msgspec.json.encode(schema, order="sorted").decode()


# -- arguments ----------------------------------------------------------------------------------------------


def parse_arguments(tool: Tool, text: str) -> Arguments:
    """Return the arguments that a model wrote, checked against the tool's parameters.

    An empty text means no arguments, as some models write it. Raises `ToolError` that says what is wrong.
    Takes a while for a long text: see `SHORT_ARGUMENTS`.
    """
    if has_more_values(text.encode(errors="replace"), MAX_VALUES):
        raise ToolError(
            f"The arguments of {tool.spec.name} have more than {MAX_VALUES} values.", "Send fewer."
        )
    try:
        value = msgspec.json.decode(text if text.strip() else "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ToolError(f"The arguments of {tool.spec.name} are not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ToolError(f"The arguments of {tool.spec.name} must be a JSON object.")
    schema = msgspec.json.decode(tool.spec.parameters)
    arguments = without_nulls(value, schema)
    wrong = problems(arguments, schema)
    if wrong:
        raise ToolError(f"The arguments of {tool.spec.name} are wrong: {' '.join(wrong)}")
    return arguments


def without_nulls(arguments: Arguments, schema: dict[str, Any]) -> Arguments:
    """Return the arguments without each null of an optional parameter that takes no null: models write null
    for what they leave out."""
    properties: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())

    def is_left_out(name: str) -> bool:
        inner = properties.get(name)
        return name not in required and isinstance(inner, dict) and bool(problems(None, inner))

    return {name: value for name, value in arguments.items() if value is not None or not is_left_out(name)}


def problems(value: object, schema: dict[str, Any], where: str = "arguments") -> list[str]:
    """Return the first problems of `value`, in sentences for the model; an empty list if it fits.

    Known are type, required, properties, additionalProperties, enum, items, minimum, maximum, maxItems and
    maxLength. Other keywords are left to the tool itself.
    """
    return list(islice(_problems(value, schema, where), _MAX_PROBLEMS))


def _problems(value: object, schema: dict[str, Any], where: str) -> Iterator[str]:
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
    kind = _kind_of(value)
    if kinds and kind not in kinds and not ("number" in kinds and kind == "integer"):
        yield f"{where} must be {' or '.join(map(_with_article, kinds))}, not {_with_article(kind)}."
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
                return
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


def _object_problems(value: Arguments, schema: dict[str, Any], where: str) -> Iterator[str]:
    properties: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}.{name} is missing."
    for name, inner in value.items():
        if isinstance(properties.get(name), dict):
            yield from _problems(inner, properties[name], f"{where}.{name}")
        elif name not in properties and schema.get("additionalProperties") is False:
            known = ", ".join(sorted(properties)) or "none"
            yield f"{where}.{name[:_SHOWN_CHARS]} is not known; known: {known}."


def _kind_of(value: object) -> str:
    """Return the JSON type of a decoded value; a whole number is an integer, however it was written."""
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return _KINDS.get(type(value), "object")


def _with_article(kind: str) -> str:
    if kind == "null":
        return kind
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"
