"""Access to the agents: one pure rule for every kind of input, and the `Authorizer` that channels ask.

match await authorizer.check(actor, Ingress.MESSAGE):
    case Authorized(sender):  hand the message to the intake as `sender`
    case Stranger():          text = await authorizer.greet(actor, said); send `text` unless it is None
    case Denied():            drop the message
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NewType, assert_never

import msgspec

from talaria.core.access import (
    EVERY_ROLE,
    ApprovePairing,
    CodeHash,
    CodesLocked,
    CreateInvitation,
    Paired,
    PairingLimits,
    PairingList,
    PairingOutcome,
    Person,
    RedeemInvitation,
    RequestOpened,
    RequestPairing,
    RequestPending,
    RequestsFull,
    Role,
    WrongCode,
)
from talaria.core.clock import Clock
from talaria.core.errors import BadRequest, NotFound, TooManyTries
from talaria.core.limits import BoundedDict
from talaria.core.program import program_name
from talaria.core.turns import Sender
from talaria.store.store import Pairings

if TYPE_CHECKING:
    from talaria.store.store import Pairings


# -- pairing: codes, what strangers are told, and `PairingAdmin`, with which the operator lets people -----


_log = logging.getLogger("talaria.access")

Code = NewType("Code", str)

# Without 0 O 1 I L, which look alike, and U, which spells words.
ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 12  # 58 bits
_GROUP = 4
_WRONG_CODE_HINT = "It may be mistyped, used, or expired; `talaria pair list` shows who waits."


# -- codes ------------------------------------------------------------------------------------------------


def new_code() -> Code:
    """Return a random code in the form in which it is shown: `K7QD-93MX-4TZA`."""
    return _group("".join(secrets.choice(ALPHABET) for _ in range(LENGTH)))


def read_code(text: str) -> Code | None:
    """Return the code that a person typed, with any spaces, dashes and case; None if it cannot be a code."""
    if len(text) > LENGTH * 3 or not text.isascii():
        return None
    letters = "".join(text.upper().replace("-", " ").split())
    if len(letters) != LENGTH or not set(letters) <= set(ALPHABET):
        return None
    return _group(letters)


def hash_code(code: Code) -> CodeHash:
    return CodeHash(hashlib.sha256(b"talaria pairing code " + code.encode()).hexdigest())


def _group(letters: str) -> Code:
    return Code("-".join(letters[start : start + _GROUP] for start in range(0, LENGTH, _GROUP)))


# -- what strangers are told ------------------------------------------------------------------------------


def code_text(code: Code, seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    valid = "one hour" if minutes == 60 else f"{minutes} minutes"
    return (
        "I do not know you yet, so I cannot answer.\n\n"
        f"Your pairing code is {code}\n\n"
        "Send it to the person who runs this gateway. They let you in with:\n"
        f"{program_name()} pair approve {code}\n\n"
        f"The code is valid for {valid}. Once you are let in, write to me again."
    )


def waiting_text() -> str:
    return (
        "Your request still waits for approval. After its code has expired, write to me again "
        "and you get a new one."
    )


def welcome_text() -> str:
    return "You are in: from now on I answer you. What can I do for you?"


# -- the operator's side ----------------------------------------------------------------------------------


class Invitation(msgspec.Struct, frozen=True):
    """The first person who presents `code` is paired. The code is not stored and cannot be shown again."""

    channel: str
    code: Code
    expires_at: float


class PairingAdmin:
    """The operator's commands for pairing; the command line and the HTTP API both use them. `channels` are
    the names of the channels whose people can be paired."""

    def __init__(
        self, pairings: Pairings, channels: Collection[str], limits: PairingLimits | None = None
    ) -> None:
        self._pairings = pairings
        self._channels = channels
        self._limits = limits or PairingLimits()

    async def listing(self) -> PairingList:
        return await self._pairings.listing()

    async def approve(self, text: str) -> Paired:
        """Pair the person who was given this code.

        Raises `BadRequest` for a text that cannot be a code; it is not counted as a guess. Raises `NotFound`
        if no open request has the code, and `TooManyTries` after several wrong codes.
        """
        code = read_code(text)
        if code is None:
            raise BadRequest(
                "This is not a pairing code.",
                "A code looks like K7QD-93MX-4TZA; the person who wants in sees theirs in the chat.",
            )
        admission = await self._pairings.approve(ApprovePairing(hash_code(code), self._limits))
        match admission:
            case Paired(person=person):
                _log.info("%s user %s was paired", person.channel, person.user_id)
                return admission
            case WrongCode(tries_left=left):
                rest = {0: "That was the last try for a while.", 1: "One more try."}
                tries = rest.get(left, f"{left} more tries.")
                raise NotFound(f"No request has the code {code}. {tries}", _WRONG_CODE_HINT)
            case CodesLocked(until=until):
                at = datetime.fromtimestamp(until).astimezone()
                raise TooManyTries(
                    "There were too many wrong codes, so no code is accepted for now.",
                    f"Try again after {at:%H:%M}, or add the person's id to `allowed` in config.toml.",
                )
            case _:
                assert_never(admission)

    async def revoke(self, channel: str, user_id: str) -> Paired:
        """End a pairing, from the person's next message on. A running turn goes on. Raises `NotFound`."""
        paired = await self._pairings.revoke(channel, user_id)
        if paired is None:
            raise NotFound(
                f"Nobody is paired as {user_id} on {channel}.",
                "`talaria pair list` shows who is; ids in an `allowed` list are removed in config.toml.",
            )
        _log.info("%s user %s is not paired any more", channel, user_id)
        return paired

    async def invite(self, channel: str) -> Invitation:
        """Create a code for one person to present with `/start CODE`. It replaces the channel's earlier one.

        Raises `BadRequest` for a channel without pairing.
        """
        if channel not in self._channels:
            raise BadRequest(
                f"There is no channel {channel!r} to invite someone to.",
                f"Channels with pairing: {', '.join(self._channels) or 'none'}.",
            )
        code = new_code()
        expires_at = await self._pairings.invite(CreateInvitation(channel, hash_code(code), self._limits))
        return Invitation(channel, code, expires_at)


# -- access to the agents ---------------------------------------------------------------------------------


LONGEST_NAME = 64
_LONGEST_ID = 64
_REMEMBERED = 1024


class ChatKind(StrEnum):
    """`BROADCAST` is a chat in which only its owners write, such as a channel of news."""

    PRIVATE = "private"
    GROUP = "group"
    BROADCAST = "broadcast"


class Ingress(StrEnum):
    """The kinds of input. A channel that receives another kind adds it here, and the truth table in the tests
    covers it."""

    MESSAGE = "message"
    COMMAND = "command"
    FILE = "file"
    EDIT = "edit"
    BUTTON = "button"
    API = "api"


# A stranger who sends one of these in a private chat is offered pairing.
_OFFERS_PAIRING = frozenset({Ingress.MESSAGE, Ingress.COMMAND, Ingress.FILE})


class Actor(msgspec.Struct, frozen=True):
    """The author of an input, as the platform vouches for it.

    `user_id` is the platform's immutable id of the *sender*, never of the chat. It is empty if the platform
    names no person. `name` is for display only and is never compared. `speaks_as_chat` is set for anonymous
    admins and for channels that post in their own name: the platform does not say which person wrote.
    """

    channel: str
    user_id: str
    chat_kind: ChatKind
    chat_id: str
    name: str = ""
    is_bot: bool = False
    speaks_as_chat: bool = False

    @property
    def person(self) -> Person:
        """Return the sender with a name that is safe to store, log and show: short and printable."""
        name = "".join(each for each in self.name[:LONGEST_NAME] if each.isprintable())
        return Person(self.channel, self.user_id, name)


class KnownBy(StrEnum):
    """How the gateway knows a person: by an `allowed` list, by pairing, by the HTTP token, or not at all."""

    LISTED = "listed"
    PAIRED = "paired"
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    UNKNOWN = "unknown"


class DenialReason(StrEnum):
    """Why an input is dropped. Logged, never told to the sender."""

    BOT = "bot"
    SPEAKS_AS_CHAT = "speaks_as_chat"
    NO_USER_ID = "no_user_id"
    NOT_PRIVATE = "not_private"
    NOT_A_MESSAGE = "not_a_message"
    ROLE = "role"


class Authorized(msgspec.Struct, frozen=True):
    """The input may become a turn of `sender`."""

    sender: Sender
    membership: KnownBy


class Stranger(msgspec.Struct, frozen=True):
    """The input gets no turn; `Authorizer.greet` returns what the sender may be told."""


class Denied(msgspec.Struct, frozen=True):
    """The input gets neither a turn nor an answer."""

    reason: DenialReason


Verdict = Authorized | Stranger | Denied


def authorize(
    actor: Actor,
    ingress: Ingress,
    membership: KnownBy,
    role: Role = Role.CHAT,
    needed: frozenset[Role] = EVERY_ROLE,
) -> Verdict:
    """Decide about one input. Pure; denies by default.

    Only the sender counts, never the chat. A listed id that appears as a bot or behind a chat's name
    is denied, because it is not the person who was listed. A known sender is denied whose `role` is not one
    of those `needed`; people on chat platforms chat.
    """
    reason = find_denial(actor)
    if reason is not None:
        return Denied(reason)
    if membership is not KnownBy.UNKNOWN:
        if role not in needed:
            return Denied(DenialReason.ROLE)
        return Authorized(Sender(actor.user_id, actor.person.name), membership)
    if actor.chat_kind is not ChatKind.PRIVATE:
        return Denied(DenialReason.NOT_PRIVATE)
    return Stranger() if ingress in _OFFERS_PAIRING else Denied(DenialReason.NOT_A_MESSAGE)


def find_denial(actor: Actor) -> DenialReason | None:
    """Return the reason why this actor can never be authorized, or None if it can be a person."""
    if actor.is_bot:
        return DenialReason.BOT
    if actor.speaks_as_chat or actor.chat_kind is ChatKind.BROADCAST:
        return DenialReason.SPEAKS_AS_CHAT
    if not 0 < len(actor.user_id) <= _LONGEST_ID or not actor.user_id.isprintable():
        return DenialReason.NO_USER_ID
    return None


class Authorizer:
    """Decides about every input of a channel before the channel acts on it.

    `allowed` holds the configured user ids of each channel. Pairings are not cached: the check of a person
    who is not in `allowed` reads one row by key. An approval or a revocation therefore counts from the next
    message on, in every process. Both methods raise `StoreError` if the store cannot be read. The channel
    then answers nothing and does not confirm the message to the platform.
    """

    def __init__(
        self,
        pairings: Pairings,
        allowed: Mapping[str, Iterable[int | str]],
        clock: Clock,
        limits: PairingLimits | None = None,
    ) -> None:
        self._pairings = pairings
        self.change_allowed(allowed)
        self._clock = clock
        self._limits = limits or PairingLimits()
        # Strangers who get no answer before a time that the store named, so that their further messages cost
        # no write. An empty user id stands for everybody else on the channel. If the oldest entry was
        # dropped, the store decides again.
        self._silence: BoundedDict[tuple[str, str], float] = BoundedDict(_REMEMBERED)

    def change_allowed(self, allowed: Mapping[str, Iterable[int | str]]) -> None:
        """Replace the configured user ids, from the next message on."""
        self._allowed = {channel: frozenset(map(str, ids)) for channel, ids in allowed.items()}

    async def check(self, actor: Actor, ingress: Ingress) -> Verdict:
        """Return whether this input may become a turn. For an actor that is no person, nothing is read."""
        return authorize(actor, ingress, await self._membership(actor))

    async def greet(self, actor: Actor, said: str = "", *, offers: bool = True) -> str | None:
        """Return what to tell a stranger who wrote in private, or None if nothing may be said.

        `said` is the text of the message. `/start CODE` with an open invitation pairs the sender at once, and
        the returned text is a welcome. Without `offers` nothing else is answered.
        `core.access.PairingLimits` bounds the rows and answers that strangers can cause.
        """
        if not isinstance(authorize(actor, Ingress.MESSAGE, KnownBy.UNKNOWN), Stranger):
            return None
        code = _presented_code(said)
        if code is not None and isinstance(await self._redeem(actor, code), Paired):
            return welcome_text()
        if not offers:
            return None
        of_channel = self._silence.get((actor.channel, ""), 0.0)
        if self._clock.now() < self._silence.get((actor.channel, actor.user_id), of_channel):
            return None
        return await self._ask(actor)

    async def _membership(self, actor: Actor) -> KnownBy:
        if find_denial(actor) is not None:
            return KnownBy.UNKNOWN
        if actor.user_id in self._allowed.get(actor.channel, ()):
            return KnownBy.LISTED
        is_paired = await self._pairings.is_paired(actor.channel, actor.user_id)
        return KnownBy.PAIRED if is_paired else KnownBy.UNKNOWN

    async def _redeem(self, actor: Actor, code: Code) -> PairingOutcome:
        """Present an invitation. The caller treats a wrong one like no code at all, which tells a guesser
        nothing."""
        admission = await self._pairings.redeem(RedeemInvitation(actor.person, hash_code(code), self._limits))
        match admission:
            case Paired():
                self._silence.pop((actor.channel, actor.user_id), None)
                _log.info("%s user %s was paired by an invitation", actor.channel, actor.user_id)
            case WrongCode():
                _log.warning("%s user %s presented a wrong invitation", actor.channel, actor.user_id)
            case CodesLocked():  # not logged, so that a guesser cannot fill the disk
                pass
            case _:
                assert_never(admission)
        return admission

    async def _ask(self, actor: Actor) -> str | None:
        code, who = new_code(), (actor.channel, actor.user_id)
        asked = await self._pairings.ask(RequestPairing(actor.person, hash_code(code), self._limits))
        match asked:
            case RequestOpened():
                self._silence[who] = self._clock.now() + self._limits.pause_seconds
                _log.info("%s user %s asks to be paired", actor.channel, actor.user_id)
                return code_text(code, self._limits.code_seconds)
            case RequestPending(may_tell=may_tell, quiet_until=quiet_until):
                self._silence[who] = quiet_until
                return waiting_text() if may_tell else None
            case RequestsFull(until=until):
                self._silence[actor.channel, ""] = until
                _log.warning("too many unknown senders write on %s: no more codes for a while", actor.channel)
                return None
            case _:
                assert_never(asked)


def _presented_code(said: str) -> Code | None:
    """Return the code of `/start CODE`, which is also what a platform's invitation link sends."""
    word, _, rest = said[:128].strip().partition(" ")
    return read_code(rest.strip()) if word.partition("@")[0] == "/start" else None
