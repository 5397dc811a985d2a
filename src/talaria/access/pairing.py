"""Pairing: codes, what strangers are told, and `PairingAdmin`, with which the operator lets people in."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, NewType, assert_never

import msgspec

from talaria.core.access import (
    ApprovePairing,
    CodeHash,
    CodesLocked,
    CreateInvitation,
    Paired,
    PairingLimits,
    PairingList,
    WrongCode,
)
from talaria.core.errors import BadRequest, NotFound, TooManyTries
from talaria.core.program import program_name

if TYPE_CHECKING:
    from talaria.store.store import Pairings

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
                "This is no pairing code.",
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
