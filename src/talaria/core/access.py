"""People and programs: pairing codes, pairings, roles, tokens, and who is the same person. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NewType

import msgspec

from talaria.core.ids import ChatKey

CodeHash = NewType("CodeHash", str)


class Role(StrEnum):
    """The rights of a caller.

    `READ` sees everything and changes nothing. `CHAT` has chats of its own, decides about their tool calls,
    and sees no others. `OPERATE` may do everything: pairing, other people's chats, backups, tokens.
    """

    READ = "read"
    CHAT = "chat"
    OPERATE = "operate"


EVERY_ROLE: Final = frozenset(Role)


class PairingOrigin(StrEnum):
    """How a person was paired."""

    APPROVED = "approved"
    INVITED = "invited"


class Person(msgspec.Struct, frozen=True, rename={"user_id": "user"}):
    """A person on a channel. `user_id` is the platform's immutable id; `name` is for display only."""

    channel: str
    user_id: str
    name: str = ""


class Paired(msgspec.Struct, frozen=True):
    person: Person
    paired_at: float
    origin: PairingOrigin


class PairingRequest(msgspec.Struct, frozen=True):
    """The open request of a person who was given a code."""

    person: Person
    asked_at: float
    expires_at: float


class PairingList(msgspec.Struct, frozen=True):
    """All paired people and all open requests, oldest first."""

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


class RequestPairing(msgspec.Struct, frozen=True):
    """Open a request for a person, with this code."""

    person: Person
    code: CodeHash
    limits: PairingLimits = PairingLimits()


class ApprovePairing(msgspec.Struct, frozen=True):
    """Pair the person whose request has this code."""

    code: CodeHash
    limits: PairingLimits = PairingLimits()


class CreateInvitation(msgspec.Struct, frozen=True):
    """Open the invitation of a channel; it replaces an earlier one."""

    channel: str
    code: CodeHash
    limits: PairingLimits = PairingLimits()


class CreateLinkCode(msgspec.Struct, frozen=True):
    """Open a code that joins another identity to `identity`. It replaces an earlier one."""

    identity: str
    code: CodeHash
    seconds: float


class RedeemLinkCode(msgspec.Struct, frozen=True):
    """Join `identity` to the identity that created the code."""

    identity: str
    code: CodeHash
    limits: PairingLimits


class RedeemInvitation(msgspec.Struct, frozen=True):
    """Pair a person who presents the invitation of the channel."""

    person: Person
    code: CodeHash
    limits: PairingLimits = PairingLimits()


# -- answers ----------------------------------------------------------------------------------------------


class RequestOpened(msgspec.Struct, frozen=True):
    """The request is open, and its code may be shown to the person."""

    expires_at: float


class RequestPending(msgspec.Struct, frozen=True):
    """There is an open request already; its code is not known any more. With `may_tell` the person may be
    reminded now. The next order before `quiet_until` has no effect."""

    may_tell: bool
    quiet_until: float


class RequestsFull(msgspec.Struct, frozen=True):
    """The channel has too many open requests: strangers get no answer before `until`."""

    until: float


RequestOutcome = RequestOpened | RequestPending | RequestsFull


class WrongCode(msgspec.Struct, frozen=True):
    """No open request or invitation has this code: it is mistyped, used or expired. It was counted."""

    tries_left: int


class CodesLocked(msgspec.Struct, frozen=True):
    """There were too many wrong codes: no code is accepted before `until`, not even a right one."""

    until: float


PairingOutcome = Paired | WrongCode | CodesLocked


# -- tokens with a name and a role, for programs that call the HTTP API -----------------------------------
# The store has the hash of a token only, so a copy of the database lets no caller in. All times are of the
# store's clock.


TokenHash = NewType("TokenHash", str)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")


def is_token_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


class NamedToken(msgspec.Struct, frozen=True):
    """A token without its secret. `used_at` is its last use, to the hour; None if it was never used."""

    name: str
    role: Role
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class AddToken(msgspec.Struct, frozen=True):
    """Let the token with this hash in. An expired token of the same name is replaced."""

    name: str
    role: Role
    hash: TokenHash
    seconds: float | None = None


# -- people as tools, search and jobs see them: who somebody is, and which chats may be seen --------------


PersonId = NewType("PersonId", str)
OWNER: Final = PersonId("owner")


class Reach(msgspec.Struct, frozen=True):
    """The chats that may be seen: every chat, if `roots` is None, else these and their threads."""

    roots: tuple[ChatKey, ...] | None = ()

    def includes(self, key: ChatKey) -> bool:
        return self.roots is None or any(key == root or key.startswith(f"{root}:") for root in self.roots)


EVERYTHING: Final = Reach(None)


# -- what OAuth logins gave -------------------------------------------------------------------------------


class OAuthClient(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are renewed: at which address, by which client, and for which resource."""

    token_url: str
    client_id: str
    secret: str = ""
    sends_basic: bool = False  # the secret, in a header and not in the body
    resource: str = ""


class OAuthTokens(msgspec.Struct, frozen=True):
    """`seconds` is how long `access` is valid, if that is known. Without `refresh` a person logs in again."""

    access: str
    refresh: str = ""
    seconds: float | None = None


class OAuthGrant(msgspec.Struct, frozen=True):
    """The tokens of a login. With a `problem` they cannot be renewed. `fence` is that of the last claim."""

    name: str
    client: OAuthClient
    access: str
    refresh: str
    expires_at: float | None = None
    problem: str = ""
    fence: int = 0
