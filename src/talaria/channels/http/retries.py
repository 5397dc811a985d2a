"""Requests to sessions that clients send again by themselves: how they are recognised, and what keeps clients
from it. OpenAI's clients number their retries; others just repeat the request."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from talaria.channels.http.request import HttpError, RawHeaders, Request
from talaria.channels.http.response import NOT_AGAIN, turn_error
from talaria.core.turns import Inbound, StepKind, Turn
from talaria.store.store import Store
from talaria.turns.histories import SentExchange
from talaria.turns.intake import is_ephemeral
from talaria.turns.live import LiveTurn
from talaria.turns.retries import ClientRequest, RecentRequests
from talaria.turns.turns import Turns

_RETRY_COUNT: Final = b"x-stainless-retry-count"
_EFFECTS: Final = "Tools have run in this turn, so look at what they did first."


async def submit_once(
    turns: Turns, request: Request, inbound: Inbound, history: Sequence[SentExchange] | None = None
) -> LiveTurn:
    """Submit the message of a request to a session. If the request is a retry, return the turn of the first
    one. A key decides alone; without a key the body was read with `hashes_body`."""
    if not request.hashes_body:
        return await turns.submit(inbound, history=history)
    scope = f"{inbound.sender.id}\n{inbound.chat_key}\n{request.path}\n".encode()
    digest = hashlib.sha256(scope + request.body_hash).hexdigest()[:32]
    count = request.headers.get(_RETRY_COUNT, b"0")
    is_retry = count.isdigit() and count.strip(b"0") != b""
    repeatable = ClientRequest(digest, request.has_left, is_retry=is_retry)
    live = await turns.submit(inbound, repeatable, history)
    request.watcher = _Watcher(turns.requests, repeatable, live)
    return live


class _Watcher:
    """Tells the turns whether the answer of a turn has reached the client. Implements `AnswerWatcher`."""

    def __init__(self, requests: RecentRequests, request: ClientRequest, live: LiveTurn) -> None:
        self._requests = requests
        self._request = request
        self._live: LiveTurn | None = live

    def written(self) -> None:
        # A client may also have been told that its turn goes on.
        if self._live is not None and self._live.turn.state.is_final:
            self._requests.answered(self._request)

    def ended(self) -> None:
        self._live = None  # the connection may keep this watcher for a while
        self._requests.broken(self._request)

    def unread(self) -> None:
        self._requests.unread(self._request)


async def failure_of(store: Store, turn: Turn, headers: RawHeaders) -> HttpError | None:
    """Return the reason why a turn has no answer, or None if it has one.

    If tools have run, the status is `NOT_AGAIN`.
    """
    error = turn_error(turn, headers)
    if error is None or is_ephemeral(turn) or not turn.state.is_final:
        return error
    record = await store.turn_record(turn.merged_into or turn.id)
    steps = record.steps if record is not None else ()
    if any(step.kind is StepKind.TOOL and step.started_at is not None for step in steps):
        info = error.info()
        info = msgspec.structs.replace(info, hint=f"{_EFFECTS} {info.hint}".strip())
        error = HttpError.told(info, error.headers)
        error.status = NOT_AGAIN
    return error
