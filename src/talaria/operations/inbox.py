"""The inbox: what waits for a person or for the gateway, of all chats that the caller may see."""

from __future__ import annotations

from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta

from talaria.core.delivery import OutboxRow, OutboxState
from talaria.core.ids import ChatKey, TurnId
from talaria.core.jobs import Job, JobState
from talaria.core.ledger import Page
from talaria.core.text import clean_line
from talaria.core.views import view_of
from talaria.gateway import Gateway
from talaria.jobs.desk import JobAsker, JobDesk, JobView
from talaria.operations.approvals import ApprovalView
from talaria.operations.jobs import asker_of
from talaria.operations.operation import ALL, OperationCall, operation
from talaria.operations.turns import TurnLine

_LINE: Final = 80
_JOBS: Final = 100  # that are read at a time
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
    within = call.caller.prefix(gateway.settings.agent.name)
    histories, desk = gateway.store.histories, gateway.job_desk()
    asked = await gateway.turns.decisions.listing(Page(wanted.limit), within)
    turns = await histories.unsettled(wanted.limit, within)
    failed_since = gateway.store.clock.now() - _FAILED_SECONDS
    replies = await histories.owed_replies(failed_since, wanted.limit, within)
    paused = await _paused_jobs(desk, asker_of(gateway, call), wanted.limit)
    return InboxView(
        tuple(map(ApprovalView.of, asked.items)),
        tuple(map(TurnLine.of, turns)),
        tuple(map(OwedReply.of, replies)),
        tuple(JobView.of(job, desk) for job in paused),
    )


async def _paused_jobs(desk: JobDesk, asker: JobAsker, limit: int) -> list[Job]:
    """Return the oldest paused jobs. Most jobs are not paused, so they are looked for in all pages."""
    found: list[Job] = []
    after: str | None = None
    while len(found) < limit:
        page = await desk.listing(asker, Page(_JOBS, after), is_unfinished=True)
        found += (job for job in page.items if job.state is JobState.PAUSED)
        after = page.next
        if after is None:
            break
    return found[:limit]


INBOX_OPERATIONS: Final = (show_inbox,)
