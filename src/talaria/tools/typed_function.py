"""Tools made of functions with type hints: the hints are the parameters, the docstring is the description."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from talaria.core.errors import ConfigError, ToolError
from talaria.core.messages import Content, File, Image, Text
from talaria.core.tools import Risk, ToolSpec
from talaria.tools.function import Arguments, FunctionTool
from talaria.tools.tool import ToolContext

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
