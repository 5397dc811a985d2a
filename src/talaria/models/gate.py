"""The gate of one endpoint: its breaker and its permits, and what they say of themselves."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import EndpointResting, ModelError
from talaria.models.breaker import Breaker, BreakerSettings
from talaria.models.faults import Faults
from talaria.models.permits import Permits
from talaria.models.rules import is_sick
from talaria.observe.metrics import EndpointReading


class Gate:
    """Every call of an endpoint passes it, and what came of the call decides who passes next."""

    def __init__(
        self,
        max_concurrency: int = 256,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
        breaker: BreakerSettings | None = None,
    ) -> None:
        self._breaker = Breaker(clock or SystemClock(), draw, breaker)
        self._permits = Permits(max_concurrency)

    @property
    def is_resting(self) -> bool:
        return self._breaker.is_resting

    @asynccontextmanager
    async def passing(self, session: str, faults: Faults) -> AsyncIterator[Callable[[], None]]:
        """A permit for the time of one call, made within; it yields what to call when the answer has begun.

        Raises `EndpointResting` while the breaker is open, without waiting for a permit, and also when it has
        opened in the meantime.
        """
        if self.is_resting:
            raise self._refusal(faults)
        await self._permits.take(session)
        try:
            ticket = self._breaker.admit()
            if ticket is None:
                raise self._refusal(faults)

            def began() -> None:
                nonlocal ticket
                assert ticket is not None
                ticket = self._breaker.began(ticket)

            try:
                yield began
            except ModelError as error:
                if is_sick(error):
                    self._breaker.failed(ticket)
                else:
                    self._breaker.heard(ticket)
                raise
            except BaseException:
                self._breaker.left(ticket)
                raise
            self._breaker.heard(ticket)
        finally:
            self._permits.give_back()

    def reading(self) -> EndpointReading:
        breaker = self._breaker
        return EndpointReading(
            state=breaker.state,
            failures=breaker.failures,
            retry_seconds=round(breaker.rests_for, 3),
            busy=self._permits.busy,
            waiting=self._permits.waiting,
        )

    def _refusal(self, faults: Faults) -> EndpointResting:
        return faults.resting(self._breaker.failures, self._breaker.rests_for)
