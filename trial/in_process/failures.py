"""Failing messages of every kind, a thousand each: calls as the rule says, nothing built, breakers that heal.

Real endpoints over real sockets; only waiting is virtual. Before each message the endpoint's own reading
tells what the rule allows: no call while it rests, one when it is to be probed, and otherwise as many as the
kind of failure may cost, up to the one that opens the breaker.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random

import aiohttp

from support.rig import Rig, start
from talaria.core.turns import TurnState
from talaria.models.limiter import BreakerSettings
from talaria.models.providers import Providers
from talaria.models.settings import ModelSettings, ProviderSettings
from talaria.observe.health import read_rss
from talaria.observe.metrics import EndpointReading
from talaria.pool.policy import PoolLimits
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import HastyClock
from talaria.testing.model_server import ModelServer
from trial.measure import slope
from trial.report import Check, Figure, Progress

SESSIONS = 8
TIMES = 2  # times that an endpoint fails and recovers
RETRIES = 3
LIMITS = PoolLimits(max_agents=SESSIONS, idle_ttl=10**9, max_bytes=64 << 20)
RSS_LIMIT = 2.0  # MB per 10,000 messages
LONG = 5_000  # messages; below that, noise of the allocator is larger than the limit for RSS
_PAUSES = (0.0, 1.0, 30.0, 130.0)  # between two messages, so that some find an open breaker
_BREAKER = BreakerSettings()
_FIRST_TOKEN = timedelta(milliseconds=50)  # a real wait, for a server that hangs


@dataclass(frozen=True, slots=True)
class Kind:
    """`calls` is the most that one message may cost; with `is_sick`, failures count for the breaker."""

    name: str
    text: str
    calls: int = 1 + RETRIES
    is_sick: bool = True

    def allows(self, reading: EndpointReading) -> int:
        if reading.state != "closed":
            return 0 if reading.retry_seconds > 0 else 1
        return min(self.calls, _BREAKER.threshold - reading.failures) if self.is_sick else self.calls


REFUSED = Kind("refused", "hello")
KINDS = (
    Kind("400", "[[status 400]]", 1, is_sick=False),
    Kind("401", "[[status 401]]", 1, is_sick=False),
    Kind("404", "[[status 404]]", 1, is_sick=False),
    Kind("429", "[[status 429]]", is_sick=False),
    Kind("429 with Retry-After", "[[status 429]][[retry-after 7]]", is_sick=False),
    Kind("429 with a long Retry-After", "[[status 429]][[retry-after 600]]", 1, is_sick=False),
    Kind("500", "[[status 500]]"),
    Kind("503", "[[status 503]]"),
    REFUSED,
    Kind("hang", "[[hang]]"),
    Kind("cut before a word", "[[cut 0]]"),
    Kind("cut in the text", "[[chunks 4]][[words 20]][[cut 2]]", 1),
    Kind("malformed", "[[malformed]]"),
    Kind("half a tool call", "[[half-call]][[call todo {}]]"),
)


class Failures:
    """Runs `messages` of each kind, one after the other, in sessions that stay warm."""

    def __init__(self, messages: int, progress: Progress) -> None:
        self._messages = messages
        self._progress = progress
        self._random = Random(1)
        self._clock = HastyClock()
        self._done = 0
        self._rss: list[tuple[float, float]] = []
        self.calls: dict[str, int] = {}
        self.unexpected: list[str] = []  # messages with a wrong number of calls, or without a failure
        self.not_recovered: list[str] = []
        self.endpoints = self.clients = self.contexts = self.rebuilds = 0

    async def run(self) -> list[Figure]:
        with (
            tempfile.TemporaryDirectory(prefix="talaria-soak-") as name,
            counting(aiohttp.ClientSession) as clients,
            counting(ssl.SSLContext) as contexts,
        ):
            async with await SqliteStore.open(Path(name) / "talaria.db", self._clock) as store:
                for kind in KINDS:
                    await self._run_kind(kind, store, Path(name))
            self.clients, self.contexts = len(clients), len(contexts)
        for line in (*self.unexpected[:10], *self.not_recovered):
            print(line)
        return self.figures()

    async def _run_kind(self, kind: Kind, store: SqliteStore, folder: Path) -> None:
        async with AsyncExitStack() as scopes:
            lives = await scopes.enter_async_context(AsyncExitStack())
            server = await lives.enter_async_context(ModelServer(record=False))
            settings = ProviderSettings(server.base_url, max_retries=RETRIES)
            if kind.name == "hang":
                settings = ProviderSettings(server.base_url, first_token=_FIRST_TOKEN, max_retries=RETRIES)
            providers = await scopes.enter_async_context(
                Providers({"acme": settings}, {}, self._clock, self._random.random)
            )
            rig = await scopes.enter_async_context(
                start(
                    store,
                    folder,
                    clock=self._clock,
                    settings=ModelSettings("acme", "m"),
                    models=providers,
                    limits=LIMITS,
                    draw=self._random.random,
                )
            )
            port = int(server.base_url.rpartition(":")[2].partition("/")[0])
            for _ in range(TIMES):
                if kind is REFUSED:
                    await lives.aclose()
                has_opened = await self._fail(kind, rig, providers, server, self._messages // TIMES)
                if kind is REFUSED:
                    server = await lives.enter_async_context(ModelServer(port=port, record=False))
                if has_opened is not kind.is_sick:
                    self.not_recovered.append(f"{kind.name}: opened: {has_opened}")
                await self._recover(kind, rig, providers)
            self.endpoints += providers.built
            self.rebuilds += rig.pool.counters.rebuilds + rig.pool.counters.builds - SESSIONS

    async def _fail(
        self, kind: Kind, rig: Rig, providers: Providers, server: ModelServer, count: int
    ) -> bool:
        has_opened = False
        endpoint = providers.get("acme")
        for number in range(count):
            self._clock.slept.clear()
            self._clock.advance(self._random.choice(_PAUSES))
            allowed, before = kind.allows(endpoint.reading()), _made(rig)
            heard = server.requests
            turn = await rig.say(kind.text, f"{kind.name}-{number % SESSIONS}")
            calls = _made(rig) - before
            if kind is not REFUSED and server.requests - heard != calls:
                self.unexpected.append(f"{kind.name}: {server.requests - heard} requests for {calls} calls")
            if calls != allowed or turn.state is not TurnState.FAILED:
                self.unexpected.append(
                    f"{kind.name} {number}: {calls} calls, {allowed} allowed, {turn.state}"
                )
            self.calls[kind.name] = self.calls.get(kind.name, 0) + calls
            has_opened |= endpoint.reading().state == "open"
            self._done += 1
            if self._done % 50 == 0:
                self._rss.append((self._done, read_rss()))
            self._progress.tell("failing messages", self._done, self._messages * len(KINDS))
        return has_opened

    async def _recover(self, kind: Kind, rig: Rig, providers: Providers) -> None:
        """Check that the endpoint answers the first message after the breaker's pause."""
        self._clock.advance(_BREAKER.rests.longest)
        turn = await rig.say("hello", f"{kind.name}-0")
        state = providers.get("acme").reading().state
        if turn.reply != "You said: hello" or state != "closed":
            self.not_recovered.append(f"{kind.name}: {state}, {turn.reply}")

    def figures(self) -> list[Figure]:
        late = self._rss[len(self._rss) // 2 :]
        rss = slope(late) * 10_000 / 1e6
        is_long = self._done >= LONG
        return [
            Figure(f"{self._done:,} failing messages of {len(KINDS)} kinds: with a wrong number of calls",
                   len(self.unexpected), "", 0),
            Figure("… endpoints built beyond one for each kind", self.endpoints - len(KINDS), "", 0),
            Figure("… HTTP clients built beyond one for each kind", self.clients - len(KINDS), "", 0),
            Figure("… TLS contexts built", self.contexts, "", 0),
            Figure("… agents rebuilt", self.rebuilds, "", 0),
            Figure("… breakers that did not open and close as they should", len(self.not_recovered), "", 0),
            Figure("… RSS slope", rss, "MB per 10,000 messages", RSS_LIMIT if is_long else None,
                   Check.MEMORY),
            Figure("… model calls in all", sum(self.calls.values())),
        ]  # fmt: skip


def _made(rig: Rig) -> int:
    """Return the number of model calls so far."""
    lines = rig.metrics.render().decode().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(_CALLS))


_CALLS = "talaria_model_calls_total{"


@contextmanager
def counting(kind: type) -> Iterator[list[None]]:
    """Give a list that grows by one for each new instance of a library's class."""
    made: list[None] = []
    original = kind.__init__  # type: ignore[misc]

    def counted(self: object, *args: object, **more: object) -> None:
        made.append(None)
        if original is not object.__init__:  # it takes no arguments
            original(self, *args, **more)

    kind.__init__ = counted  # type: ignore[misc]
    try:
        yield made
    finally:
        kind.__init__ = original  # type: ignore[misc]
