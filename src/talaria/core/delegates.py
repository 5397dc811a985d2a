"""Delegates: tasks that a turn hands out to child sessions, and their outcomes.

A delegate is a row that belongs to a tool call of its parent turn. It is written in the commit that parks the
parent, and its outcome in the commit that ends the child's turn. So a kill at any moment neither loses a
result nor runs a child twice: what is missing is derived again from the row.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from talaria.core.ids import ChatKey, DelegateId, SessionId, TurnId, delegates_within


class Report(IntEnum):
    """How the outcome of a delegate reaches its parent: as the result of the call that waits for it (RESULT).
    The parent of a delegate in the background gets a message instead, which is OWED until it was accepted."""

    RESULT = 0
    OWED = 1
    MADE = 2


class DelegateTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """The order for a child: the text that it reads, its only tools, the model and the named agent
    that it uses, how much it may
    cost in nanodollars (0 is no cap of its own). The text is `untrusted` if its writer had read untrusted
    content."""

    text: str
    tools: tuple[str, ...]
    model: str = ""
    title: str = ""
    agent: str = ""
    cap: int = 0
    untrusted: bool = False


class DelegateOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a child's turn ended: its final state, its reply or the error. `partial` is the last that a child
    said which did not finish. The text is `untrusted` if untrusted content entered the child's session."""

    state: str
    text: str
    turn_id: TurnId = TurnId("")
    session_id: SessionId = SessionId("")
    partial: str = ""
    untrusted: bool = False


class Delegate(msgspec.Struct, frozen=True):
    """A task that step `n` of a turn has handed out. Its parent waits until it has an outcome, or until
    `expires_at`, which is only reached if the child could not be ended in time. The parent of a delegate in
    the background does not wait: it gets a `report`."""

    id: DelegateId
    turn_id: TurnId
    n: int
    call_id: str
    task: DelegateTask
    asked_at: float
    expires_at: float
    outcome: DelegateOutcome | None = None
    ended_at: float | None = None
    report: Report = Report.RESULT

    def is_open(self, now: float) -> bool:
        """Return whether the parent has to wait for it."""
        return self.outcome is None and now < self.expires_at


class TreeCap(msgspec.Struct, frozen=True):
    """At most `limit` nanodollars for a turn and all delegates below it, of which earlier tries of the turn
    have spent `spent`. `holder` names the turn in the ids of its delegates."""

    turn_id: TurnId
    holder: TurnId | DelegateId
    limit: int
    spent: int = 0

    def within(self, chat_key: ChatKey) -> str:
        """Return how the keys of the chats below the turn begin."""
        return delegates_within(chat_key, self.holder)


class Descent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a child in its tree. `root` is the turn of a person or a job, on whose session
    (`account`) all of the tree is charged, and `parent` the turn that waits. `caps` are those of all turns
    above. Times are counted up to `until`, for the whole subtree."""

    delegate: DelegateId
    parent: TurnId
    root: TurnId
    account: SessionId
    depth: int
    until: float
    caps: tuple[TreeCap, ...] = ()


def next_id(holder: TurnId | DelegateId, n: int, index: int) -> DelegateId:
    """Return the id of the delegate `index`, counted from 1, of step `n`. It is the same after a restart."""
    return DelegateId(f"{holder}.{n}-{index}")


def delegate_path(delegate_id: DelegateId) -> list[tuple[int, int]]:
    """Return the numbers of the steps and tasks that lead from the root of its tree to the delegate."""
    parts = (part.split("-") for part in delegate_id.split(".")[1:])
    return [(int(n), int(index)) for n, index in parts]
