"""`PairingDesk`: what the operator does about pairing. The command line and the HTTP API both come here."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import assert_never

import msgspec

from talaria.access.codes import Code, hash_code, new_code, read_code
from talaria.access.settings import PAIRABLE
from talaria.core.access import Approve, Invite, Locked, Paired, PairingLimits, PairingList, WrongCode
from talaria.core.errors import BadRequest, NotFound, TooManyTries
from talaria.core.ports import Pairings

_log = logging.getLogger("talaria.access")


class Invitation(msgspec.Struct, frozen=True):
    """`code` is shown once, here; whoever presents it first is paired."""

    channel: str
    code: Code
    expires_at: float


class PairingDesk:
    def __init__(self, pairings: Pairings, limits: PairingLimits | None = None) -> None:
        self._pairings = pairings
        self._limits = limits or PairingLimits()

    async def listing(self) -> PairingList:
        return await self._pairings.listing()

    async def approve(self, text: str) -> Paired:
        """Let in whoever holds this code.

        Raises `BadRequest` for what cannot be a code (which guesses nothing, so it is not counted),
        `NotFound` for a code that nobody waits with, and `TooManyTries` after five of those.
        """
        code = read_code(text)
        if code is None:
            raise BadRequest(
                "This is no pairing code.",
                "A code looks like K7QD-93MX-4TZA; the stranger who wants in has seen theirs in the chat.",
            )
        admission = await self._pairings.approve(Approve(hash_code(code), self._limits))
        match admission:
            case Paired(person=person):
                _log.info("%s user %s was paired", person.channel, person.user_id)
                return admission
            case WrongCode(tries_left=left):
                raise NotFound(f"Nobody waits with the code {code}. {_tries(left)}", _WRONG)
            case Locked(until=until):
                at = datetime.fromtimestamp(until).astimezone()
                raise TooManyTries(
                    "Too many wrong codes: no code is looked at for now.",
                    f"Try again after {at:%H:%M}, or name the person's id under `allowed` in config.toml.",
                )
            case _:
                assert_never(admission)

    async def revoke(self, channel: str, user_id: str) -> Paired:
        """Counts from their next message on; a turn that runs already goes on. Raises `NotFound`."""
        paired = await self._pairings.revoke(channel, user_id)
        if paired is None:
            raise NotFound(
                f"Nobody is paired as {user_id} on {channel}.",
                "`talaria pair list` shows who is; those in an `allowed` list are taken out in config.toml.",
            )
        _log.info("%s user %s is not paired any more", channel, user_id)
        return paired

    async def invite(self, channel: str) -> Invitation:
        """A code for one person to present with `/start CODE`. An earlier one of the channel ends.

        Raises `BadRequest` for a channel that knows no people.
        """
        if channel not in PAIRABLE:
            raise BadRequest(
                f"There is no channel {channel!r} to invite someone to.",
                f"Channels that people come in by: {', '.join(PAIRABLE)}.",
            )
        code = new_code()
        expires_at = await self._pairings.invite(Invite(channel, hash_code(code), self._limits))
        return Invitation(channel, code, expires_at)


_WRONG = "It may be mistyped, used, or expired; `talaria pair list` shows who waits."


def _tries(left: int) -> str:
    match left:
        case 0:
            return "That was the last try for a while."
        case 1:
            return "One more try."
        case _:
            return f"{left} more tries."
