"""The routes of operations: the input from path, query and body, the answer as JSON, the description."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta

from talaria.channels.http.description import IDEMPOTENCY_KEY, Call, Field
from talaria.channels.http.request import RawHeaders, Request, invalid_field
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.routing import ApiRoute, Handler
from talaria.gateway import Gateway
from talaria.operations.operation import InputField, Operation
from talaria.operations.table import Operations

_NO_STORE: RawHeaders = ((b"cache-control", b"no-store"),)


def operation_routes(
    operations: Operations, gateway: Gateway, max_body: int
) -> dict[str, dict[str, ApiRoute]]:
    """Return the routes by path and method. `max_body` is for operations without a limit of their own."""
    routes: dict[str, dict[str, ApiRoute]] = {}
    for operation in operations:
        handle = _handler(operation, gateway, max_body)
        route = ApiRoute(handle, operation.access, _describe(operation), operation.audit)
        routes.setdefault(operation.path, {})[operation.method] = route
    return routes


def _handler(operation: Operation[Any, Any, Any], gateway: Gateway, max_body: int) -> Handler:
    headers = _NO_STORE if operation.is_secret else ()
    most = max_body if operation.max_body is None else operation.max_body

    async def handle(request: Request) -> Response:
        if operation.takes_key:
            request.call.key = request.idempotency_key()
        answer = await operation.handle(gateway, request.call, await _read(operation, request, most))
        return json_response(answer, operation.status_of(answer), headers)

    return handle


async def _read(operation: Operation[Any, Any, Any], request: Request, max_body: int) -> msgspec.Struct:
    """Return the input of a call. Raises `BadRequest`."""
    given: dict[str, Any] = {}
    if operation.body is not None:
        body = await request.json(operation.body, max_body)
        given = {name: getattr(body, name) for name in body.__struct_fields__}
    if operation.outside_body is not None:
        outside = _convert(operation, {**request.query(), **request.params})
        given |= {name: getattr(outside, name) for name in outside.__struct_fields__}
    wanted: msgspec.Struct = operation.input(**given)
    return wanted


def _convert(operation: Operation[Any, Any, Any], texts: dict[str, str]) -> msgspec.Struct:
    """Return the fields of path and query. A field for yes or no may stand there without a value: `?all`."""
    for field in operation.fields:
        if _plain(field) is bool and texts.get(field.key) == "":
            texts[field.key] = "true"
    try:
        found: msgspec.Struct = msgspec.convert(texts, operation.outside_body, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), whole="query") from None
    return found


def _plain(field: InputField) -> Any:
    return get_args(field.kind)[0] if get_origin(field.kind) is Annotated else field.kind


def _describe(operation: Operation[Any, Any, Any]) -> Call:
    return Call(
        operation.help,
        operation.output,
        operation.status,
        also=operation.also,
        body=operation.body,
        fields=(*_fields(operation), *((IDEMPOTENCY_KEY,) if operation.takes_key else ())),
        errors=operation.errors,
        example=operation.example,
        links=operation.links,
    )


def _fields(operation: Operation[Any, Any, Any]) -> Iterable[Field]:
    """Yield the fields that are not in the body, those of the path first."""
    for field in sorted(operation.fields, key=lambda field: field.place != "path"):
        if field.place != "body":
            is_told = not field.is_required and field.default not in ("", False)
            default = f" Default: {field.default}." if is_told else ""
            text = f"{field.text}{default}"
            yield Field(field.key, text, _bounds(field), field.place, required=field.is_required)


def _bounds(field: InputField) -> Any:
    """Return the type of a field with its limits and without its help, which stands beside it."""
    if get_origin(field.kind) is not Annotated:
        return field.kind
    meta: Meta = field.kind.__metadata__[0]
    limits = {name: getattr(meta, name) for name in ("ge", "le", "min_length", "max_length", "pattern")}
    return Annotated[_plain(field), Meta(**limits)]
