"""Tools made of functions: parameters as a JSON schema, and the check of a call's arguments against it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from talaria.core.errors import ConfigError, ToolError
from talaria.core.limits import has_more_values
from talaria.core.messages import Content, File, Image, Text
from talaria.core.tools import Risk, ToolSpec
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


# -- tools made of functions with type hints --------------------------------------------------------------


_PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class _Signature:
    """`context` is the name of the parameter that takes the `ToolContext`; empty if there is none."""

    parameters: str
    arguments: type[msgspec.Struct]
    context: str


def typed_tool(
    function: Callable[..., Any],
    *,
    name: str = "",
    description: str = "",
    risk: Risk = Risk.NONE,
    read_only: bool = False,
    idempotent: bool = False,
    untrusted: bool = False,
    reaches_out: bool = False,
    uses_files: bool = True,
    timeout: timedelta | None = None,
) -> FunctionTool:
    """Return a tool that calls the function with the arguments of a call.

    A parameter is described by `Annotated[str, "The name of a place."]`; one with a default may be left out,
    and one of the type `ToolContext` gets the call's context. An `async` function runs on the event loop and
    must not block it; any other runs in a thread. What it returns is the result: a text, parts, or a value
    that becomes JSON. Raises `ConfigError` if the function cannot be a tool.
    """
    own = name or function.__name__
    signature = _read(own, function)
    told = description or _PARAGRAPH.split(inspect.getdoc(function) or "")[0].replace("\n", " ").strip()
    if not told:
        raise ConfigError(
            f"The tool {own} has no description.", "Give the function a docstring: a model reads it."
        )
    spec = ToolSpec(
        own,
        told,
        signature.parameters,
        risk,
        idempotent=idempotent,
        read_only=read_only,
        timeout=timeout,
        untrusted=untrusted,
        reaches_out=reaches_out,
        uses_files=uses_files,
    )
    return FunctionTool(spec, partial(_run, function, signature))


async def _run(
    function: Callable[..., Any], signature: _Signature, arguments: Arguments, context: ToolContext
) -> Content:
    try:
        given = msgspec.convert(arguments, signature.arguments)
    except msgspec.ValidationError as error:
        raise ToolError(f"The arguments are wrong: {error}.") from None
    values = {field: getattr(given, field) for field in signature.arguments.__struct_fields__}
    if signature.context:
        values[signature.context] = context
    call = partial(function, **values)
    if inspect.iscoroutinefunction(function):
        return as_content(await call())
    result = await context.resources.in_thread(call)
    return as_content(await result if inspect.isawaitable(result) else result)


def as_content(value: Any) -> Content:
    """Return what a model reads of a function's result."""
    if isinstance(value, str):
        return value
    if value is None:
        return "Done."
    if isinstance(value, Text | Image | File):
        return (value,)
    if isinstance(value, tuple) and value and all(isinstance(part, Text | Image | File) for part in value):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


def _read(name: str, function: Callable[..., Any]) -> _Signature:
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"The type hints of the tool {name} cannot be read: {error}.") from error
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    required: list[str] = []
    fields: list[tuple[Any, ...]] = []
    context = ""
    for parameter in parameters.values():
        own = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"The tool {name} takes {parameter}.", "A model passes arguments by name.")
        hint = hints.get(own)
        if hint is ToolContext:
            context = own
            continue
        if hint is None:
            raise ConfigError(f"The parameter {own} of the tool {name} has no type hint.", "Write one.")
        properties[own] = _schema(name, own, hint, definitions)
        if parameter.default is parameter.empty:
            required.append(own)
            fields.append((own, hint))
        else:
            fields.append((own, hint, parameter.default))
    schema: dict[str, Any] = {
        "additionalProperties": False,
        "properties": properties,
        "required": sorted(required),
        "type": "object",
    }
    if definitions:
        schema["$defs"] = definitions
    # Fields with a default have to stand behind those without one.
    ordered = sorted(fields, key=len)
    try:
        arguments = msgspec.defstruct(f"{name}_arguments", ordered, kw_only=True)
    except TypeError as error:
        raise ConfigError(f"A parameter of the tool {name} cannot be used: {error}.") from error
    return _Signature(msgspec.json.encode(schema, order="sorted").decode(), arguments, context)


def _schema(tool: str, name: str, hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a parameter. Schemas of structs in it are added to `definitions`."""
    description = ""
    if get_origin(hint) is Annotated:
        texts = [note for note in get_args(hint)[1:] if isinstance(note, str)]
        description = texts[0] if texts else ""
    try:
        schema = msgspec.json.schema(_without_none(hint))
    except TypeError as error:
        raise ConfigError(
            f"The parameter {name} of the tool {tool} has a type that JSON does not have: {error}.",
            "Use str, int, float, bool, list, dict, Literal, or a msgspec.Struct of these.",
        ) from error
    definitions |= schema.pop("$defs", {})
    return {**schema, "description": description} if description else schema


def _without_none(hint: Any) -> Any:
    """Return `X` for `X | None`: a model leaves out what it has nothing for."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        kept = [note for note in notes if isinstance(note, msgspec.Meta)]
        inner = _without_none(kind)
        return Annotated[inner, *kept] if kept else inner
    if get_origin(hint) in (Union, UnionType):
        rest = [choice for choice in get_args(hint) if choice is not NoneType]
        return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007 - of a list
    return hint
