"""The OpenAPI document of the HTTP API, made of the descriptions beside the routes and of the structs that
handlers decode and encode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from talaria.access.callers import RouteAccess
from talaria.channels.http.chat_completions import CompletionRequest
from talaria.channels.http.description import Call, DescribedCall, Field
from talaria.channels.http.embeddings_api import EmbeddingRequest
from talaria.channels.http.errors import AnthropicErrorBody, OpenAiError, is_anthropic_path, is_openai_path
from talaria.channels.http.messages_api import MessagesRequest
from talaria.channels.http.responses_input import (
    CallerTool,
    CallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ReferenceItem,
    ResponsesRequest,
    TextWish,
)
from talaria.core.errors import ErrorInfo

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_ANY: Final = "*/*"
_OCTETS: Final = "application/octet-stream"
_REF: Final = "#/components/schemas/{name}"
_PART: Final = re.compile(r"{(\w+)}")
_REASONS: Final[Mapping[int, str]] = {
    200: "Done.",
    201: "Created.",
    202: "Accepted, and on disk.",
    204: "There is nothing to say.",
    206: "A part of the file.",
    304: "The caller has the current version.",
    503: "Not ready.",
}


class ErrorAnswer(msgspec.Struct, frozen=True):
    """`type` is a stable word, `message` says what happened, `hint` what to do."""

    error: ErrorInfo


class OpenAiErrorAnswer(msgspec.Struct, frozen=True):
    """An error as OpenAI's clients read it. The hint is in the message too."""

    error: OpenAiError


# -- bodies -----------------------------------------------------------------------------------------------


def _without_raw(kind: type[msgspec.Struct], *, is_open: bool = False, **others: Any) -> Any:
    """Return the struct with other types for some fields. A field whose default is raw JSON, which no schema
    can show, may be anything. With `is_open` further members are taken."""
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(kind):
        if isinstance(field.default, msgspec.Raw):
            fields.append((field.encode_name, others.get(field.name, Any) | UnsetType, UNSET))
            continue
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        fields.append((field.encode_name, others.get(field.name, field.type), default))
    closed = kind.__struct_config__.forbid_unknown_fields and not is_open
    made = msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=closed, kw_only=True)
    made.__doc__ = kind.__doc__
    return made


def _list_of(kind: Any) -> Any:
    return list.__class_getitem__(kind)


def _tagged(kind: type[msgspec.Struct], tag: str) -> Any:
    return msgspec.defstruct(kind.__name__, [], bases=(kind,), tag_field="type", tag=tag)


def _bodies() -> dict[Any, Any]:
    """Return the types that describe bodies whose own types have raw JSON in them."""
    items = (
        _tagged(MessageItem, "message")
        | _tagged(CallItem, "function_call")
        | _tagged(OutputItem, "function_call_output")
        | _tagged(ReasoningItem, "reasoning")
        | _tagged(ReferenceItem, "item_reference")
    )
    return {
        CompletionRequest: _without_raw(CompletionRequest, is_open=True),
        MessagesRequest: _without_raw(MessagesRequest, is_open=True),
        EmbeddingRequest: _without_raw(EmbeddingRequest, input=str | list[Any], is_open=True),
        ResponsesRequest: _without_raw(
            ResponsesRequest,
            input=str | _list_of(items) | None,
            tools=_list_of(_without_raw(CallerTool)) | None,
            text=_without_raw(TextWish) | None,
        ),
    }


# -- the document -----------------------------------------------------------------------------------------


def make_openapi(calls: Iterable[DescribedCall], version: str) -> bytes:
    """Return the OpenAPI document (3.1) of these calls."""
    bodies = _bodies()
    calls = [
        each._replace(call=each.call._replace(body=bodies.get(each.call.body, each.call.body)))
        for each in calls
    ]
    kinds = [
        ErrorAnswer,
        OpenAiErrorAnswer,
        AnthropicErrorBody,
        *(kind for call in calls for kind in _types(call.call)),
    ]
    unique = list({id(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    found = {id(kind): _simplified(schema) for kind, schema in zip(unique, schemas, strict=True)}
    components = {name: _simplified(schema) for name, schema in components.items()}
    sent = [
        found[id(call.call.body)] for call in calls if call.call.body and not isinstance(call.call.body, str)
    ]
    for name in _reached(sent, components):
        _move_defaults(components[name])
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, found)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Talaria",
                "version": version,
                "description": "The HTTP API of a Talaria gateway. Every answer has the header "
                "`X-Request-Id`; HEAD works wherever GET does. docs/http-api.md explains all of it.",
            },
            "servers": [{"url": "/"}],
            "paths": paths,
            "components": {"schemas": dict(sorted(components.items())), "securitySchemes": _SECURITY_SCHEMES},
        }
    )


_ENUM_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}


def _simplified(schema: Any) -> Any:
    """Return a schema that generators of clients can read. Some know no tuples of different types, no arrays
    without a type of their items, and no enumerations without a type."""
    if isinstance(schema, list):
        return [_simplified(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _simplified(value) for name, value in schema.items()}
    if schema.get("items") is False:
        parts = [
            part for n, part in enumerate(schema["prefixItems"]) if part not in schema["prefixItems"][:n]
        ]
        del schema["prefixItems"]
        schema["items"] = parts[0] if len(parts) == 1 else {"anyOf": parts}
    elif schema.get("type") == "array":
        schema.setdefault("items", {})
    if isinstance(words := schema.get("enum"), list):
        kinds = {type(word) for word in words}
        if kinds <= _ENUM_TYPES.keys() and len(kinds) == 1:
            schema.setdefault("type", _ENUM_TYPES[kinds.pop()])
        if schema.get("type") == "boolean":
            del schema["enum"]
    return schema


def _reached(schemas: Iterable[Any], components: Mapping[str, Any]) -> set[str]:
    """Return the names of the components that the schemas refer to, directly or not."""
    reached, waiting = set[str](), list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, list):
            waiting += schema
        elif isinstance(schema, dict):
            name = str(schema.get("$ref", "")).rpartition("/")[2]
            if name and name not in reached:
                reached.add(name)
                waiting.append(components[name])
            waiting += schema.values()
    return reached


def _move_defaults(schema: dict[str, Any]) -> None:
    """Tell the defaults of a body's fields in words. Generators take a field with a default for one that is
    always there, and then require it in requests."""
    for field in schema.get("properties", {}).values():
        if (default := field.pop("default", None)) not in (None, [], {}, ""):
            text = f"{field.get('description', '').rstrip('.')}. " if field.get("description") else ""
            field["description"] = f"{text}Default: `{msgspec.json.encode(default).decode()}`."


_SECURITY_SCHEMES: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token in `http.token` in the home, or one that `talaria token add` made.",
    },
    "loginCookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "talaria_login_PORT",
        "description": "The cookie of a login, for the gateway's own page.",
    },
    "loginSecret": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Talaria-Login",
        "description": "The second secret of a login. A call by cookie needs both.",
    },
}


def _types(call: Call) -> Iterable[Any]:
    """Yield the types that the description has schemas of."""
    for kind in (call.answer, call.body, *call.also.values()):
        if kind is not None and not isinstance(kind, str):
            yield kind
    yield from call.events.values()
    yield str  # of the parts of paths
    for field in call.fields:
        yield field.kind


def _operation(described: DescribedCall, schemas: Mapping[int, Any]) -> dict[str, Any]:
    path, method, access, call = described
    answers: dict[str, Any] = {str(call.status): _answer(call.status, call.answer, call, schemas)}
    for status, kind in call.also.items():
        answers[str(status)] = _answer(status, kind, Call(""), schemas)
    for link in call.links:
        links = answers[str(link.status)].setdefault("links", {})
        for other in link.calls:
            name = _operation_id(other)
            links[name] = {"operationId": name, "parameters": {link.parameter: link.value}}
    for status, kinds in described.errors().items():
        words = ", ".join(f"`{kind}`" for kind in kinds)
        body: type[msgspec.Struct] = ErrorAnswer
        if is_openai_path(path):
            body = AnthropicErrorBody if is_anthropic_path(path) else OpenAiErrorAnswer
        answers.setdefault(
            str(status),
            {
                "description": f"An error of the type {words}.",
                "content": {_JSON: {"schema": schemas[id(body)]}},
            },
        )
    first, _, rest = call.text.partition(". ")
    operation: dict[str, Any] = {
        "operationId": _operation_id(f"{method} {path}"),
        "summary": first.removesuffix("."),
        "tags": [_tag(path)],
        "parameters": [_parameter(field, schemas) for field in (*_path_fields(path, call), *call.fields)],
        "responses": dict(sorted(answers.items())),
        "security": []
        if access is RouteAccess.OPEN
        else [{"token": []}, {"loginCookie": [], "loginSecret": []}],
        "x-roles": sorted(role.value for role in access.roles),
    }
    if rest:
        operation["description"] = rest
    if call.body is not None:
        media, schema = (call.body, {}) if isinstance(call.body, str) else (_JSON, schemas[id(call.body)])
        content: dict[str, Any] = {"schema": schema}
        if call.example:
            content["example"] = msgspec.Raw(call.example.encode())
        operation["requestBody"] = {"required": media == _JSON, "content": {media: content}}
    return operation


def _answer(status: int, kind: Any, call: Call, schemas: Mapping[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if isinstance(kind, str):
        is_file = kind == _ANY
        schema = {"type": "string", "format": "binary"} if is_file else {"type": "string"}
        content |= {media: {"schema": schema} for media in ((_OCTETS, kind) if is_file else (kind,))}
    elif kind is not None:
        content[_JSON] = {"schema": schemas[id(kind)]}
    if call.events:
        content[_EVENTS] = {
            "schema": {"type": "string", "description": "Server-sent events; their data is JSON."},
            "x-events": {name: schemas[id(event)] for name, event in call.events.items()},
        }
    answer: dict[str, Any] = {"description": _REASONS[status]}
    if call.told:
        schema = schemas[id(str)]
        answer["headers"] = {
            name: {"description": text, "schema": schema} for name, text in call.told.items()
        }
    if content:
        answer["content"] = content
    return answer


def _parameter(field: Field, schemas: Mapping[int, Any]) -> dict[str, Any]:
    return {
        "name": field.name,
        "in": field.where,
        "required": field.required,
        "description": field.text,
        "schema": schemas[id(field.kind)],
    }


def _path_fields(path: str, call: Call) -> Iterable[Field]:
    """Yield the parts of the path that the call does not describe itself."""
    described = {field.name for field in call.fields if field.where == "path"}
    for match in _PART.finditer(path):
        if match[1] in described:
            continue
        noun = path[: match.start()].rstrip("/").rpartition("/")[2].removesuffix("s")
        text = "Session name or id." if match[1] == "x" else f"Which {noun} it is about."
        yield Field(match[1], text, str, "path", required=True)


def _operation_id(call: str) -> str:
    """Return the name of a call, such as `get_api_turns_id` for `GET /api/turns/{id}`."""
    return re.sub(r"\W+", "_", call).strip("_").lower()


def _tag(path: str) -> str:
    """Return the heading under which the page shows a call."""
    parts = path.split("/")
    if parts[1] == "v1":
        return "OpenAI's clients"
    return parts[2] if parts[1] == "api" else "gateway"
