"""An operation: an action that people and programs can request from a gateway, declared once.

The HTTP route with its OpenAPI entry, the command line verb and the tool of `talaria mcp serve` are derived
from it. Input fields have their help in `Meta.description`; `argument` marks fields that are positional
arguments on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, UnsetType

from talaria.access.callers import ApiCaller, RouteAccess
from talaria.core.ids import ChatKey
from talaria.core.ledger import Page

H = TypeVar("H")
I = TypeVar("I", bound=msgspec.Struct)  # noqa: E741 - of input
O = TypeVar("O")  # noqa: E741 - of output
ALL, READ, CHAT, OPERATE = RouteAccess.ALL, RouteAccess.READ, RouteAccess.CHAT, RouteAccess.OPERATE
SMALL_BODY: Final = 4096  # bytes; enough for a few short fields
ANSWER_SECONDS: Final = 60.0
_PATH_FIELD: Final = re.compile(r"{(\w+)}")
_IN_QUERY: Final = ("GET", "DELETE")


class Link(NamedTuple):
    """A value of an answer, or of the request, that is the parameter of other calls (`GET /path`)."""

    status: int
    value: str
    parameter: str
    calls: tuple[str, ...]


class OperationCall(msgspec.Struct):
    """A call of an operation. `about` is what it acts on, for the audit log; None if that is the caller's
    own. `key` is the caller's idempotency key, for operations that take one."""

    caller: ApiCaller
    about: str | None = None
    key: str | None = None

    def sees(self, chat: ChatKey) -> bool:
        """Return whether the chat exists for the caller. A chat that is not the caller's own is noted."""
        if not self.caller.owns(chat):
            self.about = chat
        return self.caller.may_see(chat)


@dataclass(frozen=True)
class Operation(Generic[H, I, O]):
    """`name` is the group and the verb, such as `jobs.add`. The handler's docstring is the help, whose first
    sentence is the short form. It gets the `Records` of a home or, if it cannot do without, its running
    `Gateway`, and the call and the input; it returns the answer.

    `route` is the method and the path. Fields of the input that the path names come from there; the others
    from the query or, if the method has a body, from the body, which has at most `max_body` bytes, or
    `http.max_body` if that is None. The answer has the `status`, or that of its type in `also`, and no cache
    keeps one that `is_secret`. `errors` are the types of errors that it may have beside those of every call.
    With `takes_key`, calls with the same `Idempotency-Key` are one. A client waits `answer_seconds` for the
    answer; None is without limit.

    With `audit`, the audit log has a line of that name for each call that operates, or that sets `about`.
    With `usage`, example command lines, there is a verb of the command line. `tool` is the name of its tool
    in `talaria mcp serve`, if it has one.
    """

    handle: Callable[[H, OperationCall, I], Awaitable[O]]
    name: str
    route: str
    access: RouteAccess
    audit: str = ""
    status: int = 200
    also: Mapping[int, Any] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    example: str = ""
    links: tuple[Link, ...] = ()
    max_body: int | None = SMALL_BODY
    is_secret: bool = False
    takes_key: bool = False
    answer_seconds: float | None = ANSWER_SECONDS
    usage: tuple[str, ...] = ()
    tool: str = ""

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.handle)

    @property
    def input(self) -> type[I]:
        kind: type[I] = self._hints["wanted"]
        return kind

    @cached_property
    def output(self) -> Any:
        answer = self._hints["return"]
        kinds = get_args(answer) if get_origin(answer) is UnionType else (answer,)
        (kind,) = (each for each in kinds if each not in self.also.values())
        return kind

    @cached_property
    def help(self) -> str:
        return " ".join((self.handle.__doc__ or "").split())

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def verb(self) -> str:
        return self.name.partition(".")[2]

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    @cached_property
    def fields(self) -> tuple[InputField, ...]:
        hints = {each.name: each for each in msgspec.structs.fields(self.input)}
        in_path = _PATH_FIELD.findall(self.path)
        place = "query" if self.method in _IN_QUERY else "body"
        return tuple(
            _field(each, "path" if each.encode_name in in_path else place) for each in hints.values()
        )

    @cached_property
    def outside_body(self) -> type[msgspec.Struct] | None:
        """The part of the input that is in the path and the query; None if nothing is."""
        return self._part("path", "query")

    @cached_property
    def body(self) -> type[msgspec.Struct] | None:
        """The part of the input that is in the body; None if there is no body."""
        return self._part("body")

    def _part(self, *places: str) -> type[msgspec.Struct] | None:
        kept = {each.name for each in self.fields if each.place in places}
        if len(kept) in (0, len(self.fields)):
            return self.input if kept else None
        fields = [each for each in msgspec.structs.fields(self.input) if each.name in kept]
        made = msgspec.defstruct(
            self.input.__name__,
            [(each.name, each.type, _default(each)) for each in fields],
            rename={each.name: each.encode_name for each in fields},
            forbid_unknown_fields=self.input.__struct_config__.forbid_unknown_fields,
            frozen=True,
            kw_only=True,
        )
        made.__doc__ = self.input.__doc__
        return made

    def status_of(self, answer: O) -> int:
        return next((status for status, kind in self.also.items() if isinstance(answer, kind)), self.status)

    def answer_type(self, status: int) -> Any:
        return self.also.get(status, self.output)


def operation(
    name: str, route: str, access: RouteAccess, **more: Any
) -> Callable[[Callable[[H, OperationCall, I], Awaitable[O]]], Operation[H, I, O]]:
    """Make an operation of the handler below. `more` are fields of `Operation`."""
    return lambda handle: Operation(handle, name, route, access, **more)


class InputField(NamedTuple):
    """A field of an input. `kind` is its type, without what stands for a missing value. `place` is where it
    is in a request: `path`, `query` or `body`. `argument` is its name in the help if the command line has it
    without an option."""

    name: str
    key: str
    kind: Any
    text: str
    place: str
    is_required: bool
    default: Any
    argument: str

    @property
    def takes_words(self) -> bool:
        """Whether the rest of the command line is its value, word by word."""
        return self.argument.endswith("…")


class Nothing(msgspec.Struct, frozen=True):
    """An input without fields."""


class PageQuery(msgspec.Struct, frozen=True):
    """The query of an operation that returns a list in pages."""

    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number of items to return.")] = 50
    after: Annotated[
        str, Meta(max_length=200, description="Cursor: the `next` value of the previous page.")
    ] = ""

    @property
    def page(self) -> Page:
        return Page(self.limit, self.after or None)


def argument(text: str, name: str, **limits: Any) -> Meta:
    """Describe a field that stands on the command line without an option; `name` is how the help calls it."""
    return Meta(description=text, extra={"argument": name}, **limits)


def in_query(text: str, **limits: Any) -> Meta:
    """Describe a field that is in the query although the others are in the body."""
    return Meta(description=text, extra={"place": "query"}, **limits)


def _field(found: msgspec.structs.FieldInfo, place: str) -> InputField:
    kind = _given(found.type)
    meta = kind.__metadata__[0] if get_origin(kind) is Annotated else Meta()
    default = _default(found)
    return InputField(
        found.name,
        found.encode_name,
        kind,
        meta.description or "",
        place if place == "path" else (meta.extra or {}).get("place", place),
        default is NODEFAULT,
        default,
        (meta.extra or {}).get("argument", ""),
    )


def _given(kind: Any) -> Any:
    """Return a type without `UNSET` and `None`, which stand for a value that is not given."""
    if get_origin(kind) is Annotated:
        return Annotated[_given(get_args(kind)[0]), *kind.__metadata__]
    if get_origin(kind) not in (Union, UnionType):
        return kind
    kinds = [each for each in get_args(kind) if each not in (UnsetType, NoneType)]
    return kinds[0] if len(kinds) == 1 else kind


def _default(found: msgspec.structs.FieldInfo) -> Any:
    if found.default is NODEFAULT and found.default_factory is not NODEFAULT:
        return found.default_factory()
    return found.default


def given_fields(wanted: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of an input that differ from their defaults, as JSON has them."""
    return {
        each.encode_name: msgspec.to_builtins(value)
        for each in msgspec.structs.fields(wanted)
        if (value := getattr(wanted, each.name)) is not UNSET and value != _default(each)
    }
