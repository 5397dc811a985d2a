"""Rows as the core's types, and back; and pages of rows.

A column list stands beside the function that reads it, in the order of the type's fields. JSON is bound as
text: the driver looks for an adapter for every `bytes` and every `None` that it is given, which costs more
than the statement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec

from talaria.core.delivery import Button, OutboxRow, OutboxState
from talaria.core.entries import Entry, EntryBody, Revision
from talaria.core.errors import BadRequest, ErrorInfo
from talaria.core.files import SentFile
from talaria.core.ledger import Page
from talaria.core.messages import TokenUsage, ToolResult
from talaria.core.questions import Decision, Question, QuestionKind, Span
from talaria.core.sessions import Session
from talaria.core.specs import AgentSpec
from talaria.core.turns import Inbound, Step, StepKind, StepState, Turn, TurnState
from talaria.store.sql import rules
from talaria.store.sql.executor import Cursor

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
decode_body: Callable[[str], EntryBody] = msgspec.json.Decoder(EntryBody).decode
_inbound = msgspec.json.Decoder(Inbound).decode
_error = msgspec.json.Decoder(ErrorInfo).decode
_usage = msgspec.json.Decoder(TokenUsage).decode
_result = msgspec.json.Decoder(ToolResult).decode
decode_files = msgspec.json.Decoder(tuple[SentFile, ...]).decode
_buttons = msgspec.json.Decoder(tuple[Button, ...]).decode
_choices = msgspec.json.Decoder(tuple[str, ...]).decode
decode_spec = msgspec.json.Decoder(AgentSpec).decode

ENTRY_KINDS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in get_args(EntryBody)}

# States, as conditions of statements name them.
UNSETTLED = ", ".join(f"'{state}'" for state in rules.UNSETTLED)
# Unsettled turns `t` that are for a member of a cluster, as the index of those has them.
FOR_MEMBER = "t.member <> '' AND (t.state = 'accepted' OR t.state = 'running' OR t.state = 'waiting')"
UNSENT = "(state = 'pending' OR state = 'sending')"

SESSION_COLUMNS = (
    "id, chat_key, created_at, updated_at, epoch, seq, spec_id, title, ephemeral, ended_at, mark"
)


def session_from(row: Any) -> Session:
    key, chat_key, created_at, updated_at, epoch, seq, spec_id, title, ephemeral, ended_at, mark = row
    head, is_ephemeral = Revision(epoch, seq), bool(ephemeral)
    return Session(key, chat_key, created_at, updated_at, head, spec_id, title, is_ephemeral, ended_at, mark)


ENTRY_COLUMNS = "session_id, seq, epoch, at, turn_id, body"


def entry_from(row: Any) -> Entry:
    session_id, seq, epoch, at, turn_id, body = row
    return Entry(session_id, seq, epoch, at, turn_id, decode_body(body))


TURN_COLUMNS = (
    "id, chat_key, session_id, state, inbound, accepted_at, command, started_at, ended_at, attempts, reply, "
    "error, usage, merged_into, shown_id, forgiven, files"
)


def turn_from(row: Any) -> Turn:
    key, chat_key, session_id, state, inbound, accepted_at, command, started_at = row[:8]
    ended_at, attempts, reply, error, usage, merged_into, shown_id, forgiven, files = row[8:]
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
        () if files is None else decode_files(files),
    )


STEP_COLUMNS = "turn_id, n, kind, name, state, call_id, result, started_at, ended_at"


def step_from(row: Any) -> Step:
    turn_id, n, kind, name, state, call_id, result, *times = row
    ended = None if result is None else _result(result)
    return Step(turn_id, n, StepKind(kind), name, StepState(state), call_id, ended, *times)


OUTBOX_COLUMNS = (
    "id, turn_id, chat_key, channel, address, body, state, written_at, due_at, head, part, attempts, edits, "
    "buttons, file, platform_id, sent_at, error"
)
_STATE, _BUTTONS = 6, 13


def outbox_from(row: Any) -> OutboxRow:
    values = list(row)
    values[_STATE], values[_BUTTONS] = OutboxState(values[_STATE]), _buttons(values[_BUTTONS])
    return OutboxRow(*values)


QUESTION_COLUMNS = (
    "id, turn_id, n, call_id, kind, text, asked_at, expires_at, choices, name, digest, shown_id, "
    "decision, decided_by, decided_at, span"
)


def question_from(row: Any) -> Question:
    key, turn_id, n, call_id, kind, text, asked_at, expires_at, choices, *bound, decision, by, at, span = row
    decided = None if at is None else Decision(decision, by, at, Span(span))
    times, suggested = (asked_at, expires_at), _choices(choices)
    return Question(key, turn_id, n, call_id, QuestionKind(kind), text, *times, suggested, decided, *bound)


def find_one(make: Callable[[Any], T], found: Cursor) -> T | None:
    """Return what `make` makes of the first row; None if there is none."""
    row = found.fetchone()
    return None if row is None else make(row)


def prefixed(table: str, columns: str) -> str:
    """`a, b` as `t.a, t.b`."""
    return ", ".join(f"{table}.{column.strip()}" for column in columns.split(","))


_LAST_KEY = chr(0x10FFFF)


def key_bounds(within: str) -> tuple[str, str]:
    """Return the bounds of the chat keys that begin with `within`; the second is exclusive."""
    return (within, within[:-1] + chr(ord(within[-1]) + 1)) if within else ("", _LAST_KEY)


def encode(value: msgspec.Struct) -> str:
    return _encode(value).decode()


def optional(value: msgspec.Struct | None) -> str:
    """Empty for None; the statement turns it into NULL."""
    return "" if value is None else _encode(value).decode()


def encode_files(files: tuple[SentFile, ...]) -> str:
    """Empty if there are none; the statement turns it into NULL."""
    return _encode(files).decode() if files else ""


# -- pages ------------------------------------------------------------------------------------------------


def check_limit(page: Page) -> int:
    if page.limit < 1:
        raise BadRequest(f"A page cannot have {page.limit} items.", "Ask for at least one.")
    return page.limit


def session_cursor(session: Session) -> str:
    return f"{session.updated_at!r}~{session.id}"


def parse_session_cursor(after: str | None) -> tuple[float, str]:
    """Return the sort key (`updated_at`, `id`) of the last session on the page before."""
    if after is None:
        return float("inf"), ""
    stamp, mark, session_id = after.partition("~")
    try:
        if mark:
            return float(stamp), session_id
    except ValueError:
        pass
    raise _bad_cursor(after)


def parse_number_cursor(after: str | None) -> int:
    """Return the number of the last item on the page before: an entry's `seq`, a question's position."""
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise _bad_cursor(after)
    return int(after)


def _bad_cursor(after: str) -> BadRequest:
    return BadRequest(
        f"{after!r} is not a place in a list.", "Pass the `next` of the page before as `after`."
    )
