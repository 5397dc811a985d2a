"""Failpoints: labelled places where a test can kill the process, to check what the next start recovers.

A failpoint does nothing unless a test arms it: `TALARIA_FAILPOINTS="turn.begun=2"` in the environment of
`talaria serve` sends SIGKILL when the second turn begins. Each failpoint stands between a commit and the
effect that the outside world sees of it.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum

VARIABLE = "TALARIA_FAILPOINTS"


class Failpoint(StrEnum):
    RECEIVED = "received"  # a platform's update is here, and nothing is written
    ACCEPTED = "accepted"  # its turn is durable, and the platform has not been told
    ACKNOWLEDGED = "acknowledged"  # how far the channel has read is durable
    BEGUN = "turn.begun"
    ANSWERED = "model.answered"  # the model's answer is here, and not committed
    SUMMARISED = "context.summarised"  # the summary is here, and not committed
    COMPACTED = "context.compacted"  # the summary is committed, and the agent shows what was before
    STARTED = "tool.started"  # the step is committed as started, and the tool has not run
    RAN = "tool.ran"  # the tool has run, and its result is not committed
    PARKED = "turn.parked"  # the questions are committed, and nobody was told
    HANDED_OUT = "delegate.accepted"  # the turn of a delegate is durable, and nobody was told
    ENDING = "turn.ending"  # the final answer is here, and not committed
    ENDED = "turn.ended"  # the reply is in the outbox, and nobody was told
    SHOWN = "live.sent"  # the live message is out, and its id is not stored
    CLAIMED = "outbox.claimed"  # the row says `sending`, and the platform has heard nothing
    DELIVERED = "outbox.delivered"  # the platform has the reply, and the row says `sending`
    MARKED = "outbox.marked"
    DELETED = "session.deleted"  # the session is gone, and its rows and files are there
    PROCESS_RECORDED = "process.recorded"  # the record is on the disk, and the command does not run
    PROCESS_STARTED = "process.started"  # the command runs, and nobody was told
    NOTED = "process.noted"  # the log has the note of its end, and the process does not count as told
    WOKEN = "process.woken"  # the turn that its end asks for is durable, and it does not count as told
    SLOTS_WRITTEN = "slots.written"  # a job's slots are due, and its next instant is set
    CHECKED = "slot.checked"  # the check of a job has run, and its slot has no turn
    SLOT_CLAIMED = "slot.claimed"  # the slot is claimed, and has no turn
    REMEMBERING = "memory.writing"  # the new page is on the disk, and the old one in its place
    REMEMBERED = "memory.written"  # the new page is in its place, and nobody was told
    INDEXING = "index.reading"  # entries were read, and the index does not have them
    INDEXED = "index.written"  # the index has some of a session's new entries
    PURGED = "session.purged"  # its rows are gone, and its files are there


_armed: dict[str, int] = {}


def arm(plan: str) -> None:
    """Arm failpoints: `label=n`, joined by commas, kills at the n-th hit. Raise ValueError for a bad plan."""
    _armed.clear()
    for item in filter(None, plan.split(",")):
        label, _, times = item.partition("=")
        _armed[Failpoint(label)] = int(times or 1)


def hit(point: Failpoint) -> None:
    """Kill the process if a test armed this failpoint; otherwise cost one check of an empty dictionary."""
    if _armed:
        _fire(point)


def _fire(point: Failpoint) -> None:
    if point in _armed:
        _armed[point] -= 1
        if _armed[point] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
