"""Rows as the core's types, and back. Column lists stand beside the functions that read them, in the order
of the type's fields.

What is stored as JSON is bound as text: the driver looks for an adapter for every `bytes` and every `None`
that it is given, which costs more than the statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from talaria.core.entries import MARK_TYPES, Entry, EntryBody, Revision
from talaria.core.errors import ErrorInfo
from talaria.core.messages import MESSAGE_TYPES, TokenUsage, ToolResult
from talaria.core.sessions import Session
from talaria.core.specs import AgentSpec
from talaria.core.turns import Inbound, Step, StepKind, StepState, Turn, TurnState
from talaria.store import rules

_encode = msgspec.json.Encoder().encode
_body: Callable[[str], EntryBody] = msgspec.json.Decoder(EntryBody).decode
_inbound = msgspec.json.Decoder(Inbound).decode
_error = msgspec.json.Decoder(ErrorInfo).decode
_usage = msgspec.json.Decoder(TokenUsage).decode
_result = msgspec.json.Decoder(ToolResult).decode
decode_spec = msgspec.json.Decoder(AgentSpec).decode

ENTRY_KINDS: dict[type, str] = {
    kind: str(kind.__struct_config__.tag) for kind in (*MESSAGE_TYPES, *MARK_TYPES)
}

# States, as conditions of statements name them.
UNSETTLED = ", ".join(f"'{state}'" for state in rules.UNSETTLED)
UNSENT = "(state = 'pending' OR state = 'sending')"

SESSION_COLUMNS = "id, chat_key, created_at, updated_at, epoch, seq, spec_id, title, ephemeral, ended_at"


def session_from(row: Any) -> Session:
    key, chat_key, created_at, updated_at, epoch, seq, spec_id, title, ephemeral, ended_at = row
    head = Revision(epoch, seq)
    return Session(key, chat_key, created_at, updated_at, head, spec_id, title, bool(ephemeral), ended_at)


ENTRY_COLUMNS = "session_id, seq, epoch, at, turn_id, body"


def entry_from(row: Any) -> Entry:
    session_id, seq, epoch, at, turn_id, body = row
    return Entry(session_id, seq, epoch, at, turn_id, _body(body))


TURN_COLUMNS = (
    "id, chat_key, session_id, state, inbound, accepted_at, command, started_at, ended_at, attempts, reply, "
    "error, usage, merged_into, shown_id, forgiven"
)


def turn_from(row: Any) -> Turn:
    key, chat_key, session_id, state, inbound, accepted_at, command, started_at = row[:8]
    ended_at, attempts, reply, error, usage, merged_into, shown_id, forgiven = row[8:]
    return Turn(
        key,
        chat_key,
        session_id,
        TurnState(state),
        _inbound(inbound),
        accepted_at,
        command,
        started_at,
        ended_at,
        attempts,
        reply,
        None if error is None else _error(error),
        None if usage is None else _usage(usage),
        merged_into,
        shown_id,
        forgiven,
    )


STEP_COLUMNS = "turn_id, n, kind, name, state, call_id, result, started_at, ended_at"


def step_from(row: Any) -> Step:
    turn_id, n, kind, name, state, call_id, result, *times = row
    ended = None if result is None else _result(result)
    return Step(turn_id, n, StepKind(kind), name, StepState(state), call_id, ended, *times)


def prefixed(table: str, columns: str) -> str:
    """`a, b` as `t.a, t.b`."""
    return ", ".join(f"{table}.{column.strip()}" for column in columns.split(","))


def encode(value: msgspec.Struct) -> str:
    return _encode(value).decode()


def optional(value: msgspec.Struct | None) -> str:
    """Empty for None; the statement turns it into NULL."""
    return "" if value is None else _encode(value).decode()
