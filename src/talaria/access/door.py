"""`Door`: what a channel asks about everything that comes in, before it does anything with it.

match await door.check(actor, Way.MESSAGE):
    case Entitled(sender):  hand it to the intake as `sender`
    case Stranger():        text = await door.greet(actor, said); send `text` unless it is None
    case Denied():          drop it
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import assert_never

from talaria.access import texts
from talaria.access.actors import Actor, Standing, Stranger, Verdict, Way
from talaria.access.codes import Code, hash_code, new_code, read_code
from talaria.access.rule import authorise, impossible
from talaria.core.access import (
    Admission,
    Ask,
    Crowded,
    Locked,
    Opened,
    Paired,
    PairingLimits,
    Redeem,
    Waiting,
    WrongCode,
)
from talaria.core.clock import Clock
from talaria.core.ports import Pairings

_log = logging.getLogger("talaria.access")
_REMEMBERED = 1024


class Door:
    """One for the process, shared by its channels. `allowed` are the configured ids of each channel.

    Nothing about who is paired is kept here: a check of someone who is not in the configuration is one look
    by key into the store, so an approval or a revocation counts from the next message on, by whichever
    process it was made. Both methods raise `StoreError` when the store cannot be asked; then nobody is let
    in, nothing is said, and the platform is not told that the message was taken.
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
        self._quiet = _Quiet()

    def change_allowed(self, allowed: Mapping[str, Iterable[int | str]]) -> None:
        """Others are let in by the configuration from the next message on."""
        self._allowed = {channel: frozenset(map(str, ids)) for channel, ids in allowed.items()}

    async def check(self, actor: Actor, way: Way) -> Verdict:
        """Whether this may become a turn. Bots and chats that speak for themselves cost no look at all."""
        return authorise(actor, way, await self._standing(actor))

    async def greet(self, actor: Actor, said: str = "") -> str | None:
        """What to tell a stranger who wrote in private, or None when nothing may be said.

        `said` is the text of their message: `/start CODE` with an open invitation pairs them here and now,
        and the answer is a welcome. Whatever a stranger does, they cause few rows and few answers: see
        `core.access.PairingLimits`.
        """
        if not isinstance(authorise(actor, Way.MESSAGE, Standing.UNKNOWN), Stranger):
            return None
        code = _presented(said)
        if code is not None and isinstance(await self._redeem(actor, code), Paired):
            return texts.welcome()
        if self._quiet.is_quiet(actor, self._clock.now()):
            return None
        return await self._ask(actor)

    async def _standing(self, actor: Actor) -> Standing:
        if impossible(actor) is not None:
            return Standing.UNKNOWN
        if actor.user_id in self._allowed.get(actor.channel, ()):
            return Standing.LISTED
        is_paired = await self._pairings.is_paired(actor.channel, actor.user_id)
        return Standing.PAIRED if is_paired else Standing.UNKNOWN

    async def _redeem(self, actor: Actor, code: Code) -> Admission:
        """A wrong invitation is answered like none at all: it tells a guesser nothing."""
        admission = await self._pairings.redeem(Redeem(actor.person, hash_code(code), self._limits))
        match admission:
            case Paired():
                self._quiet.forget(actor)
                _log.info("%s user %s was paired by an invitation", actor.channel, actor.user_id)
            case WrongCode():
                _log.warning("%s user %s presented a wrong invitation", actor.channel, actor.user_id)
            case Locked():  # not even a line in the log: those who guess on must not fill the disk
                pass
            case _:
                assert_never(admission)
        return admission

    async def _ask(self, actor: Actor) -> str | None:
        code = new_code()
        asked = await self._pairings.ask(Ask(actor.person, hash_code(code), self._limits))
        match asked:
            case Opened():
                self._quiet.until(actor, self._clock.now() + self._limits.reminder_seconds)
                _log.info("%s user %s asks to be paired", actor.channel, actor.user_id)
                return texts.code(code, self._limits.code_seconds)
            case Waiting(may_tell=may_tell, quiet_until=quiet_until):
                self._quiet.until(actor, quiet_until)
                return texts.waiting() if may_tell else None
            case Crowded(until=until):
                self._quiet.channel_until(actor.channel, until)
                _log.warning("too many strangers write on %s: no more codes for a while", actor.channel)
                return None
            case _:
                assert_never(asked)


class _Quiet:
    """Whom there is nothing to say to before a time that the store gave, so that a stranger who goes on
    writing costs no write. Forgetting is harmless: the store knows. So it is small, oldest out."""

    def __init__(self) -> None:
        self._people: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._channels: dict[str, float] = {}

    def is_quiet(self, actor: Actor, now: float) -> bool:
        until = self._people.get((actor.channel, actor.user_id), self._channels.get(actor.channel, 0.0))
        return now < until

    def until(self, actor: Actor, until: float) -> None:
        self._people[actor.channel, actor.user_id] = until
        self._people.move_to_end((actor.channel, actor.user_id))
        if len(self._people) > _REMEMBERED:
            self._people.popitem(last=False)

    def channel_until(self, channel: str, until: float) -> None:
        self._channels[channel] = until

    def forget(self, actor: Actor) -> None:
        self._people.pop((actor.channel, actor.user_id), None)


def _presented(said: str) -> Code | None:
    """The code in `/start CODE`, which is what a platform's invitation link makes of it."""
    word, _, rest = said[:128].strip().partition(" ")
    return read_code(rest.strip()) if word.partition("@")[0] == "/start" else None
