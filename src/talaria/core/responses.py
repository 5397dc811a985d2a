"""Stored responses: the answers of `/v1/responses` that a caller can fetch, continue and delete.

A response is a turn of a *chain*: a session of the caller's that has no tools of the gateway. Its input is
the entries of the log from `first_seq` to `last_seq`, its output is the entry behind them. A response that
continues the last one of a chain is appended to it. Every other one gets a chain of its own, a branch, which
begins with a copy of the log up to the response that it continues.
"""

from __future__ import annotations

import msgspec

from talaria.core.entries import Entry
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import AssistantMessage
from talaria.core.turns import Turn


class ChainPlace(msgspec.Struct, frozen=True):
    """A place in a chain: behind the entry `seq`, the last one of the response `turn_id`."""

    turn_id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    seq: int
    is_head: bool


class NewResponse(msgspec.Struct, frozen=True):
    """A response to store with its turn. `request` is JSON: what the answer repeats of the request."""

    request: str
    previous: TurnId | None = None


class StoredResponse(msgspec.Struct, frozen=True):
    """A stored response. `output` is None while there is no answer. `head` is the last entry of its chain."""

    turn: Turn
    request: str
    previous: TurnId | None
    first_seq: int
    last_seq: int
    head: int
    output: Entry | None = None

    @property
    def answer(self) -> AssistantMessage | None:
        body = self.output.body if self.output is not None else None
        return body if isinstance(body, AssistantMessage) else None

    @property
    def place(self) -> ChainPlace:
        """The place behind this response."""
        end = self.last_seq if self.output is None else self.output.seq
        return ChainPlace(self.turn.id, self.turn.session_id, self.turn.chat_key, end, end == self.head)
