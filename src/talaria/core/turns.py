"""Turns and steps, and the moves between their states.

A turn is one inbound message and all that follows until its reply is settled:

    accepted ──▶ running ──▶ done | failed | cancelled
        │          │  ▲
        │          ▼  │
        │         waiting          (parked for a person: the lane is kept, the store lease given back)
        └──▶ done | failed | cancelled
             (a command answered without a model; given up after three crashes; stopped in the queue)

`running ──▶ running` is a restart: another process, or the same one, begins the turn again.

A step is one model call or tool call within a turn:

    pending ──▶ started ──▶ ended

`pending ──▶ ended` settles a call that never ran (refused, cancelled). A tool step is committed as
`started` before its handler runs, so `started` found after a crash means: outcome unknown.
An illegal move raises `IllegalMove` and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from talaria.core.delegates import Descent
from talaria.core.errors import ErrorInfo, IllegalMove
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey, JobId, SessionId, TurnId
from talaria.core.messages import Part, Text, TokenUsage, ToolResult


class TurnState(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return not TURN_MOVES[self]


TURN_MOVES: dict[TurnState, frozenset[TurnState]] = {
    TurnState.ACCEPTED: frozenset({TurnState.RUNNING, TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED}),
    TurnState.RUNNING: frozenset(
        {TurnState.RUNNING, TurnState.WAITING, TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED}
    ),
    TurnState.WAITING: frozenset({TurnState.RUNNING, TurnState.FAILED, TurnState.CANCELLED}),
    TurnState.DONE: frozenset(),
    TurnState.FAILED: frozenset(),
    TurnState.CANCELLED: frozenset(),
}


class StepState(StrEnum):
    PENDING = "pending"
    STARTED = "started"
    ENDED = "ended"


STEP_MOVES: dict[StepState, frozenset[StepState]] = {
    StepState.PENDING: frozenset({StepState.STARTED, StepState.ENDED}),
    StepState.STARTED: frozenset({StepState.ENDED}),
    StepState.ENDED: frozenset(),
}


def check_turn_move(turn_id: TurnId, old: TurnState, new: TurnState) -> None:
    if new not in TURN_MOVES[old]:
        raise IllegalMove(f"turn {turn_id}", old, new)


def check_step_move(turn_id: TurnId, n: int, old: StepState, new: StepState) -> None:
    if new not in STEP_MOVES[old]:
        raise IllegalMove(f"step {turn_id}/{n}", old, new)


SIDE_STEP = " for the "
"""Stands in the name of a model step that is no answer, between the model and the purpose of the call."""


class StepKind(StrEnum):
    MODEL = "model"
    TOOL = "tool"


class Step(msgspec.Struct, frozen=True):
    """A model call or tool call; `n` counts from 1 within its turn."""

    turn_id: TurnId
    n: int
    kind: StepKind
    name: str
    state: StepState
    call_id: str = ""
    result: ToolResult | None = None
    started_at: float | None = None
    ended_at: float | None = None


class Sender(msgspec.Struct, frozen=True, omit_defaults=True):
    """The person who speaks. `id` is the platform's immutable id; `name` is only for people to read. An
    operator may decide about the calls of every chat."""

    id: str
    name: str = ""
    is_operator: bool = False


NO_REPLY = "NO_REPLY"
"""The answer of a quiet run that has nothing to report."""


class ReplyPlace(msgspec.Struct, frozen=True):
    """A chat that replies are sent to, and its address on its channel; None if people fetch them there."""

    chat_key: ChatKey
    address: str | None = None


class RunOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a turn runs that no person waits for, such as the run of a job.

    `tools` are the only ones that it may call, None for those of its session. It may cost `cap` nanodollars,
    of which earlier tries have spent `spent`; 0 is no cap. It may run for `deadline` seconds, 0 being the
    usual time limit. Its reply is sent to `reply_to`, and it is shown nowhere before. If the run is `quiet`,
    the reply `NO_REPLY` is not sent. Turns with an order give way to those without, unless they are
    `is_urgent`, as delegates of a person's turn are. Its message is `untrusted` if it came from outside.
    `agent` is the named agent that answers it, if it is not the usual one. `descent` is the place of a
    delegate in its tree.

    `asked_in` is the chat that asked for the job, which is told of failures. `job_id` and `job_name` are
    those of the job, `plan` is the digest of its plan. A run that `may_ask` puts its questions to the person
    who asked for the job; any other run is refused what needs an approval.
    """

    tools: tuple[str, ...] | None = None
    cap: int = 0
    spent: int = 0
    deadline: float = 0.0
    reply_to: ReplyPlace | None = None
    asked_in: ReplyPlace | None = None
    job_id: JobId = JobId("")
    job_name: str = ""
    plan: str = ""
    may_ask: bool = False
    untrusted: bool = False
    quiet: bool = True
    is_urgent: bool = False
    agent: str = ""
    descent: Descent | None = None


class Inbound(msgspec.Struct, frozen=True):
    """A message as a channel received it, before it is bound to a session.

    `key` is the platform's id of this message within its scope; a second inbound with the same key is the
    same turn. `model` is a wish for the model, `address` is the way back for channels that push replies. No
    person attends an unattended turn, so what would need an approval is refused there. `run` is set for a
    turn that no person waits for. `repeats_others` is set if the sender passes on what somebody else wrote.
    """

    chat_key: ChatKey
    sender: Sender
    parts: tuple[Part, ...]
    key: str | None = None
    model: str | None = None
    address: str | None = None
    is_unattended: bool | UnsetType = UNSET
    run: RunOrder | UnsetType = UNSET
    repeats_others: bool | UnsetType = UNSET

    @property
    def order(self) -> RunOrder | None:
        """How the turn runs if no person waits for it; None for the turn of a person."""
        return None if self.run is UNSET else self.run

    @property
    def untrusted(self) -> bool | UnsetType:
        """Whether the message has untrusted content; unset for most messages."""
        is_from_outside = self.run is not UNSET and self.run.untrusted
        return True if is_from_outside or self.repeats_others is True else UNSET

    @property
    def gives_way(self) -> bool:
        """Whether the turn is scheduled: at every queue, turns that people wait for go before it."""
        return self.run is not UNSET and not self.run.is_urgent

    @property
    def tools(self) -> tuple[str, ...] | None:
        """The only tools that the turn may call; None for those of its session."""
        return None if self.run is UNSET else self.run.tools

    @property
    def agent(self) -> str:
        """The named agent that answers the turn; empty for that of its chat."""
        return "" if self.run is UNSET else self.run.agent

    @property
    def text(self) -> str:
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])


class Turn(msgspec.Struct, frozen=True):
    """A row of the inbox, as last committed.

    `merged_into` is the turn that this message steers: while this one is `accepted` it waits to be taken in,
    then it runs and ends as that turn does. `shown_id` is the platform's message that shows the turn.
    `forgiven` are attempts that ended otherwise than with their process. `files` went out with the reply.
    """

    id: TurnId
    chat_key: ChatKey
    session_id: SessionId
    state: TurnState
    inbound: Inbound
    accepted_at: float
    command: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int = 0
    reply: str | None = None
    error: ErrorInfo | None = None
    usage: TokenUsage | None = None
    merged_into: TurnId | None = None
    shown_id: str | None = None
    forgiven: int = 0
    files: tuple[SentFile, ...] = ()
