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
    """The limiters of what strangers can cause; docs/access.md says why there are these.

    - A person has one open request, a channel has `per_channel`; each expires after `code_seconds`.
    - Two answers to a person with an open request are `pause_seconds` apart.
    - `tries` wrong codes of one person, or `per_channel` wrong invitations on a channel, lock the codes for
      `pause_seconds`, counted from the last wrong code. Approvals count as one person.
    """

    code_seconds: float = 3600.0
    pause_seconds: float = 900.0
    per_channel: int = 60
    tries: int = 5


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
    """There is an open request already; its code is not known any more. With `may_tell` the person may be
    reminded now. The next order before `quiet_until` has no effect."""

    may_tell: bool
    quiet_until: float


class Crowded(msgspec.Struct, frozen=True):
    """The channel has too many open requests: strangers get no answer before `until`."""

    until: float


Asked = Opened | Waiting | Crowded


class WrongCode(msgspec.Struct, frozen=True):
    """No open request or invitation has this code: mistyped, used, or expired. It was counted."""

    tries_left: int


class Locked(msgspec.Struct, frozen=True):
    """Too many wrong codes: none is looked at before `until`, not even a right one."""

    until: float


Admission = Paired | WrongCode | Locked
