"""People outside the configuration: who is paired, who asks to be, and the limits of what strangers cause.

Codes never come here in the clear. A `CodeHash` is all that the store has, so that a copy of the database
lets nobody in. Times are the store's clock's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

import msgspec

CodeHash = NewType("CodeHash", str)


class Origin(StrEnum):
    """How a person came to be paired."""

    APPROVED = "approved"
    INVITED = "invited"


class Person(msgspec.Struct, frozen=True, rename={"user_id": "user"}):
    """Someone on a channel, by the platform's immutable id; `name` is for people to read only."""

    channel: str
    user_id: str
    name: str = ""


class Paired(msgspec.Struct, frozen=True):
    person: Person
    paired_at: float
    origin: Origin


class PairingRequest(msgspec.Struct, frozen=True):
    """A stranger who was given a code and waits for its approval."""

    person: Person
    asked_at: float
    expires_at: float


class PairingList(msgspec.Struct, frozen=True):
    """Everyone who is paired and everyone who waits, each oldest first."""

    paired: tuple[Paired, ...]
    requests: tuple[PairingRequest, ...]


class PairingLimits(msgspec.Struct, frozen=True):
    """Seconds and counts. What they bound, and for whom:

    - a stranger has one open request for `code_seconds`, and is told again that it waits `reminders` times,
      `reminder_seconds` apart; after that there is silence until it expires;
    - a channel gives out `new_requests` codes in `new_seconds`, and has `open_requests` open at most: the
      oldest makes room;
    - `tries` wrong codes lock the approval for `lock_seconds`, counted from the last of them;
    - an invitation is presented wrongly `tries` times by one person and `channel_tries` times by all of them,
      then nobody is heard for `lock_seconds`.
    """

    code_seconds: float = 3600.0
    reminders: int = 3
    reminder_seconds: float = 60.0
    new_requests: int = 30
    new_seconds: float = 600.0
    open_requests: int = 100
    tries: int = 5
    channel_tries: int = 100
    lock_seconds: float = 900.0


# -- orders -----------------------------------------------------------------------------------------------


class Ask(msgspec.Struct, frozen=True):
    """A stranger wants in; `code` is that of the request, if one is opened."""

    person: Person
    code: CodeHash
    limits: PairingLimits = PairingLimits()


class Approve(msgspec.Struct, frozen=True):
    code: CodeHash
    limits: PairingLimits = PairingLimits()


class Invite(msgspec.Struct, frozen=True):
    """One open invitation for a channel; it takes the place of an earlier one."""

    channel: str
    code: CodeHash
    limits: PairingLimits = PairingLimits()


class Redeem(msgspec.Struct, frozen=True):
    """A stranger presents an invitation."""

    person: Person
    code: CodeHash
    limits: PairingLimits = PairingLimits()


# -- answers ----------------------------------------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True):
    """The request is open, and its code may be shown."""

    expires_at: float


class Waiting(msgspec.Struct, frozen=True):
    """There is a request already, whose code nobody knows any more. `may_tell`: one reminder was counted and
    may be sent; else nothing is said, and nothing changes before `quiet_until`."""

    expires_at: float
    may_tell: bool
    quiet_until: float


class Crowded(msgspec.Struct, frozen=True):
    """The channel gave out its share of codes: no stranger is answered before `until`."""

    until: float


Asked = Opened | Waiting | Crowded


class WrongCode(msgspec.Struct, frozen=True):
    """No open request or invitation has this code: mistyped, used, or expired. It was counted."""

    tries_left: int


class Locked(msgspec.Struct, frozen=True):
    """Too many wrong codes: none is looked at before `until`, not even a right one."""

    until: float


Admission = Paired | WrongCode | Locked
