"""`ChannelLoop`: keeps a channel connected to its platform, and says how that goes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar, NoReturn

from talaria.channels.platform_api import PlatformError, PlatformRefused
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.errors import Overloaded, StoreError, TalariaError
from talaria.turns.intake import Draining

_log = logging.getLogger("talaria.channels")

_RETRIES = Backoff(first=1.0, longest=60.0)


class ChannelPhase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # after an error that may pass
    STOPPED = "stopped"  # the gateway drains, or the operator must act


class ChannelNotReady(TalariaError):
    """The channel cannot take an event yet."""

    type = "draining"


class NeedsOperator(PlatformError):
    """The platform refuses the connection until a person changes something there or in the settings."""


class ChannelLoop(ABC):
    """`run` returns when the gateway drains or the platform needs the operator; else it runs until cancelled.
    `name` is the channel's name and `title` the platform's."""

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._failures = 0
        self.phase = ChannelPhase.STARTING
        self.reason = ""

    @property
    def status(self) -> str:
        return f"{self.phase}: {self.reason}" if self.reason else str(self.phase)

    @abstractmethod
    async def serve(self) -> NoReturn:
        """Connect and receive until an error. Called again after a pause, unless the error is final."""

    def explain(self, refusal: PlatformRefused) -> str:
        return refusal.user_text

    async def run(self) -> None:
        while True:
            try:
                await self.serve()
            except Draining:
                self.enter(ChannelPhase.STOPPED, "the gateway shuts down")
                return
            except NeedsOperator as error:
                self.enter(ChannelPhase.STOPPED, error.user_text)
                _log.error("%s is stopped: %s", self.title, error)
                return
            except PlatformRefused as refusal:
                if refusal.is_about_token:
                    self.enter(ChannelPhase.STOPPED, f"{self.title} does not accept the token")
                    _log.error(
                        "%s does not accept the token; `talaria connect %s` sets another",
                        self.title,
                        self.name,
                    )
                    return
                await self._wait(self.explain(refusal), refusal.retry_after or 0.0)
            except Overloaded as error:
                await self._wait(error.user_text, error.retry_after)
            except (PlatformError, StoreError) as error:
                await self._wait(error.user_text)
            except Exception:
                _log.exception("the %s channel failed and tries again in a moment", self.title)
                await self._wait("an error, see the log")

    def enter(self, phase: ChannelPhase, reason: str = "") -> None:
        """Change the phase. When the channel is ready, `reason` is logged and not shown."""
        if phase is ChannelPhase.READY:
            self._failures = 0
            _log.info("%s is ready: %s", self.title, reason)
            reason = ""
        self.phase, self.reason = phase, reason

    async def _wait(self, reason: str, at_least: float = 0.0) -> None:
        if (self.phase, self.reason) != (ChannelPhase.WAITING, reason):
            _log.warning("%s waits: %s", self.title, reason)
        self.enter(ChannelPhase.WAITING, reason)
        self._failures += 1
        await self.clock.sleep(max(_RETRIES.pause(self._failures), at_least))
