"""The rules of pairing that every store keeps, written once: reminders, crowds and wrong codes."""

from __future__ import annotations

from typing import NamedTuple

from talaria.core.access import Locked, PairingLimits, Waiting, WrongCode

APPROVAL = "approve"
EVERYBODY = ""


def invitation_gate(channel: str) -> str:
    return f"invite {channel}"


class Told(NamedTuple):
    """What a stranger with an open request has heard of it."""

    expires_at: float
    reminders: int
    told_at: float


def remind(told: Told, limits: PairingLimits, now: float) -> Waiting:
    """Whether they may be told once more that their request waits, and until when nothing is to be said."""
    if told.reminders >= limits.reminders:
        return Waiting(told.expires_at, may_tell=False, quiet_until=told.expires_at)
    next_at = told.told_at + limits.reminder_seconds
    if now < next_at:
        return Waiting(told.expires_at, may_tell=False, quiet_until=next_at)
    return Waiting(told.expires_at, may_tell=True, quiet_until=now + limits.reminder_seconds)


class Tries(NamedTuple):
    """Wrong codes, none further than the lock's length from the one before it."""

    wrong: int
    last_at: float


NO_TRIES = Tries(0, 0.0)


def is_forgotten(tries: Tries, limits: PairingLimits, now: float) -> bool:
    return now >= tries.last_at + limits.lock_seconds


def lock(tries: Tries, most: int, limits: PairingLimits, now: float) -> Locked | None:
    """Looked at before any code is."""
    if tries.wrong < most or is_forgotten(tries, limits, now):
        return None
    return Locked(tries.last_at + limits.lock_seconds)


def one_more(tries: Tries, limits: PairingLimits, now: float) -> Tries:
    return Tries(1 if is_forgotten(tries, limits, now) else tries.wrong + 1, now)


def wrong(tries: Tries, most: int) -> WrongCode:
    return WrongCode(max(0, most - tries.wrong))
