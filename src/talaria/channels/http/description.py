"""The description of a call, as it stands beside its route. `openapi` makes a document of all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from talaria.access.callers import RouteAccess
from talaria.channels.http.response import NOT_AGAIN, PASSED_ON, STATUS
from talaria.operations.operation import Link

STORE_ERRORS: Final = ("store", "store_locked", "store_damaged", "store_gone", "stale_fence")
# Errors that the server or the guard may answer with, whatever the call is.
_ALWAYS: Final = ("bad_request", "wrong_origin", "wrong_host", "timeout", "head_too_large", "overloaded")
_GUARDED: Final = ("unauthorized", "forbidden", "not_our_page", "internal", *STORE_ERRORS)
_WITH_BODY: Final = ("too_large", "unsupported_media_type")


class Field(NamedTuple):
    """A parameter in the query, a header or the path."""

    name: str
    text: str
    kind: Any = str
    where: str = "query"
    required: bool = False


IDEMPOTENCY_KEY: Final = Field(
    "Idempotency-Key",
    "The same key with the same body is the same turn, for at least 24 hours.",
    Annotated[str, Meta(min_length=1, max_length=255)],
    "header",
)


class Call(NamedTuple):
    """The description of a call.

    `answer` is the type of its answer, or the media type of an answer that is no JSON. `status` is the status
    of that answer; `also` are others that are no errors, with the type or media type of each. `events` are
    the types of the events by their names, for a call that can be streamed. `errors` are the types of the
    errors that this call has beside those of every call; `passes_on` is set if a provider's own status, or
    the one that forbids a retry, may take the place of theirs. `told` are
    headers of its answer, with their meanings.
    """

    text: str
    answer: Any = None
    status: int = 200
    also: Mapping[int, Any] = {}
    body: Any = None
    fields: tuple[Field, ...] = ()
    events: Mapping[str, Any] = {}
    errors: tuple[str, ...] = ()
    passes_on: bool = False
    example: str = ""
    links: tuple[Link, ...] = ()
    told: Mapping[str, str] = {}


class DescribedCall(NamedTuple):
    path: str
    method: str
    access: RouteAccess
    call: Call

    def errors(self) -> dict[int, list[str]]:
        """Return the types of its errors by status."""
        kinds = [*_ALWAYS, *self.call.errors]
        if self.access is not RouteAccess.OPEN:
            kinds += _GUARDED
        if self.call.body is not None:
            kinds += _WITH_BODY
        found: defaultdict[int, list[str]] = defaultdict(list)
        for kind in dict.fromkeys(kinds):
            found[STATUS[kind]].append(kind)
        if self.call.passes_on:
            for status in (*PASSED_ON, NOT_AGAIN):
                found[status].append("model_refused")
        return dict(sorted(found.items()))

    def statuses(self) -> set[int]:
        """Return all statuses that an answer may have."""
        return {self.call.status, *self.call.also, *self.errors()}
