"""Operations on turns: list, explain and cancel them, and send a message without a turn."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talaria.access.callers import Credential
from talaria.core.errors import BadRequest, ToolError
from talaria.core.ids import TurnId
from talaria.core.messages import File
from talaria.core.sending import ChatMessage
from talaria.gateway import Gateway, Records
from talaria.operations.operation import ALL, CHAT, OPERATE, Link, OperationCall, argument, operation
from talaria.operations.turn_views import (
    ExplainedTurn,
    TurnLine,
    TurnList,
    TurnView,
    explain_turn,
    no_such_turn,
)

_UNKNOWN: Final = ("not_found",)
TurnName = Annotated[str, argument("Turn id, or the platform's id of a message or reply.", "ID")]


class TurnQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=200, description="Maximum number of turns to return.")] = 20


class TurnKey(msgspec.Struct, frozen=True):
    id: TurnName


class SendBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message for a chat."""

    chat: Annotated[str, Meta(description="Chat key, or session name or id.")]
    text: Annotated[str, Meta(description="Message text. May be empty if there are files.")] = ""
    files: Annotated[list[str], Meta(description="Ids of uploaded files.")] = []


class SentView(msgspec.Struct, frozen=True):
    id: TurnId


@operation("turns.list", "GET /api/turns", ALL)
async def list_turns(records: Records, call: OperationCall, wanted: TurnQuery) -> TurnList:
    """List recent turns, newest first."""
    within = call.caller.prefix(records.settings.agent.name)
    turns = await records.store.histories.recent(wanted.limit, within)
    return TurnList(tuple(map(TurnLine.of, turns)))


@operation("turns.show", "GET /api/turns/{id}", ALL, audit="turn.read", errors=_UNKNOWN)
async def show_turn(records: Records, call: OperationCall, wanted: TurnKey) -> ExplainedTurn:
    """Show the history of a turn: received, queued, started, each step, finished, delivered."""
    folder_of = records.folders if call.caller.credential is Credential.HOME else None
    turn = await explain_turn(records.store.histories, wanted.id, call.sees, folder_of)
    if call.caller.owner:  # the others may be of chats that it does not see
        turn = msgspec.structs.replace(turn, also=())
    return turn


@operation("turns.cancel", "POST /api/turns/{id}/cancel", CHAT, audit="turn.cancel", errors=_UNKNOWN)
async def cancel_turn(gateway: Gateway, call: OperationCall, wanted: TurnKey) -> TurnView:
    """Cancel a turn and return it."""
    live = await gateway.turns.find(TurnId(wanted.id))
    if not call.sees(live.turn.chat_key):
        raise no_such_turn(wanted.id)
    turn = await gateway.turns.cancel(live)
    record = await gateway.store.turn_record(turn.id)
    if record is None:
        raise no_such_turn(wanted.id)
    return TurnView.recorded(record)


@operation(
    "messages.send",
    "POST /api/send",
    OPERATE,
    audit="send",
    status=202,
    errors=("not_found", "idempotency_conflict", "too_large"),
    example='{"chat": "home", "text": "The backup is done."}',
    links=(Link(202, "$response.body#/id", "id", ("GET /api/turns/{id}",)),),
    max_body=None,
    takes_key=True,
)
async def send_message(gateway: Gateway, call: OperationCall, wanted: SendBody) -> SentView:
    """Send a message to a chat without running an agent. The gateway answers 202 once it has saved the
    message."""
    caller = call.caller
    call.about = chat = await gateway.sender.find_chat(wanted.chat)
    parts = await gateway.uploads.parts(chat, wanted.files, caller.uploader) if wanted.files else ()
    files = tuple(part.path for part in parts if isinstance(part, File))
    try:
        sent = await gateway.sender.send(ChatMessage(chat, wanted.text, caller.sender, files, call.key))
    except ToolError as error:  # a file that must not be sent
        raise BadRequest(error.user_text, error.hint) from error
    return SentView(sent.turn.id)


TURN_OPERATIONS: Final = (list_turns, show_turn, cancel_turn, send_message)
