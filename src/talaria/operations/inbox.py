"""The inbox: what waits for a person or for the gateway, of all chats that the caller may see."""

from __future__ import annotations

from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta

from talaria.core.delivery import OutboxRow, OutboxState
from talaria.core.ids import ChatKey, TurnId
from talaria.core.jobs import JobState
from talaria.core.ledger import Page
from talaria.core.text import clean_line
from talaria.core.views import view_of
from talaria.gateway import Gateway
from talaria.jobs.desk import JobView
from talaria.operations.approvals import ApprovalView
from talaria.operations.jobs import asker_of
from talaria.operations.operation import ALL, OperationCall, operation
from talaria.operations.turns import TurnLine

_LINE: Final = 80
_FAILED_SECONDS: Final = 7 * 86_400.0  # how long a failed delivery is listed


class InboxQuery(msgspec.Struct, frozen=True):
    limit: Annotated[
        int, Meta(ge=1, le=500, description="Maximum number of items to return of each kind.")
    ] = 100


class OwedReply(msgspec.Struct, frozen=True):
    """A message of a reply that is not sent, or was given up (`failed`). `text` is its beginning; `error` is
    the error of the last attempt."""

    id: int
    turn_id: TurnId
    chat_key: ChatKey
    channel: str
    state: OutboxState
    written_at: float
    due_at: float
    attempts: int
    text: str
    error: str

    @classmethod
    def of(cls, row: OutboxRow) -> Self:
        return view_of(cls, row, text=clean_line(row.body or row.file or "", _LINE))


class InboxView(msgspec.Struct, frozen=True):
    """Open items, oldest first. `questions` can be decided. `turns` are not over, including those that wait
    for a decision. `replies` are not sent, or failed in the last seven days. `jobs` are paused."""

    questions: tuple[ApprovalView, ...]
    turns: tuple[TurnLine, ...]
    replies: tuple[OwedReply, ...]
    jobs: tuple[JobView, ...]


@operation("inbox.show", "GET /api/inbox", ALL)
async def show_inbox(gateway: Gateway, call: OperationCall, wanted: InboxQuery) -> InboxView:
    """List what is open: requests and questions, unfinished turns, unsent and failed replies, paused jobs."""
    within, page = call.caller.prefix(gateway.settings.agent.name), Page(wanted.limit)
    histories, desk = gateway.store.histories, gateway.job_desk()
    asked = await gateway.turns.decisions.listing(page, within)
    turns = await histories.unsettled(wanted.limit, within)
    failed_since = gateway.store.clock.now() - _FAILED_SECONDS
    replies = await histories.owed_replies(failed_since, wanted.limit, within)
    jobs = await desk.listing(asker_of(gateway, call), page, is_unfinished=True)
    paused = (job for job in jobs.items if job.state is JobState.PAUSED)
    return InboxView(
        tuple(map(ApprovalView.of, asked.items)),
        tuple(map(TurnLine.of, turns)),
        tuple(map(OwedReply.of, replies)),
        tuple(JobView.of(job, desk) for job in paused),
    )


INBOX_OPERATIONS: Final = (show_inbox,)
