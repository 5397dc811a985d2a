"""Operations on turns: listing and cancelling them, and telling the story of one."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talaria.access.callers import Credential
from talaria.core.ids import TurnId
from talaria.gateway import Gateway, Records
from talaria.operations.operation import ALL, CHAT, OperationCall, argument, operation
from talaria.operations.turn_views import (
    ExplainedTurn,
    TurnLine,
    TurnList,
    TurnView,
    explain_turn,
    no_such_turn,
)

_UNKNOWN: Final = ("not_found",)
TurnName = Annotated[str, argument("The id of a turn, or the platform's id of a message or a reply.", "ID")]


class TurnQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=200, description="How many at most.")] = 20


class TurnKey(msgspec.Struct, frozen=True):
    id: TurnName


@operation("turns.list", "GET /api/turns", ALL)
async def list_turns(records: Records, call: OperationCall, wanted: TurnQuery) -> TurnList:
    """List the last turns, newest first."""
    within = call.caller.prefix(records.settings.agent.name)
    turns = await records.store.histories.recent(wanted.limit, within)
    return TurnList(tuple(map(TurnLine.of, turns)))


@operation("turns.show", "GET /api/turns/{id}", ALL, audit="turn.read", errors=_UNKNOWN)
async def show_turn(records: Records, call: OperationCall, wanted: TurnKey) -> ExplainedTurn:
    """Tell the whole story of a turn: received, queued, begun, each step, settled, delivered."""
    folder_of = records.folders if call.caller.credential is Credential.HOME else None
    turn = await explain_turn(records.store.histories, wanted.id, call.sees, folder_of)
    if call.caller.owner:  # the others may be of chats that it does not see
        turn = msgspec.structs.replace(turn, also=())
    return turn


@operation("turns.cancel", "POST /api/turns/{id}/cancel", CHAT, audit="turn.cancel", errors=_UNKNOWN)
async def cancel_turn(gateway: Gateway, call: OperationCall, wanted: TurnKey) -> TurnView:
    """Cancel a turn. The answer is the turn."""
    live = await gateway.turns.find(TurnId(wanted.id))
    if not call.sees(live.turn.chat_key):
        raise no_such_turn(wanted.id)
    turn = await gateway.turns.cancel(live)
    record = await gateway.store.turn_record(turn.id)
    if record is None:
        raise no_such_turn(wanted.id)
    return TurnView.recorded(record)


TURN_OPERATIONS: Final = (list_turns, show_turn, cancel_turn)
