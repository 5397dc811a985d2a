"""Calls of a real gateway that end in every way: a cap holds, by the ledger of the model server.

Chats and stateless callers send messages whose answers end well, are cut, stall, are stopped, are left by
their client, are refused or fall back, while the gateway is killed and shut down again and again.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import aiohttp

from talaria.access.callers import HOME_CALLER
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.core.spending import SpendingQuery, from_usd, to_usd
from talaria.models.known import Prices, PriceSettings
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.gateway_process import GatewayProcess, running_gateway
from talaria.testing.model_server import ModelServer
from trial.report import Check, Figure, Progress

WORKERS = 24
MESSAGES = 24  # to one session, whose cap has room for about half of them
SESSION_USD = 0.03
CALL_USD = 0.002  # about what a call costs
CALLS_PER_LIFE = 250
_SETTINGS = {
    "SHUTDOWN__RESTART_PAUSE": "1ms",
    "SHUTDOWN__DEADLINE": "200ms",
    "PROVIDERS__SCRIPTED__FIRST_TOKEN": "300ms",
    "PROVIDERS__SCRIPTED__SILENCE": "300ms",
    "PROVIDERS__SCRIPTED__MAX_RETRIES": "1",
    "LOG__LEVEL": "error",
}
_CONFIG = """\
[model]
fallback = [{ provider = "spare", name = "thinker" }]

[models."scripted/scripted"]
reasoning = false

[prices."*/*"]
input = 1.0
output = 10.0
max_output = 400

[budgets]
per_session_usd = %s
per_day_usd = %s
"""
_SPARE = """
[providers.spare]
base_url = "%s"
max_retries = 0
first_token = "300ms"
"""
PRICE = Prices({"*/*": PriceSettings(input=1, output=10, max_output=400)}).find("scripted", "scripted")
ENDINGS = (
    ("hello", 20),
    ("[[words 90]][[chunks 30]][[chunk-delay 0.003]]", 10),
    ("[[words 90]][[chunks 30]][[chunk-delay 0.003]][[cut 20]]", 2),
    ("[[think hm]][[words 60]][[chunks 9]][[chunk-delay 0.01]][[cut 4]]", 1),
    ("[[first 1 cut 0]] hello", 2),
    ("[[first 2 cut 0]] hello", 1),
    ("[[first 1 hang]] hello", 1),
    ("[[words 60]][[chunks 4]][[chunk-delay 0.5]]", 1),
    ("[[first 1 malformed]] hello", 1),
    ("[[error-in-stream]]", 1),
    ("[[first 1 status 503]] hello", 1),
    ("[[status 400]]", 1),
    ("[[call list_files {}]][[chunks 9]][[chunk-delay 0.01]][[words 40]]", 3),
)


class CutCalls:
    """Makes `calls` model calls, then lowers the cap of the day to what is left of it and makes some more."""

    def __init__(self, calls: int, progress: Progress, *, seed: int = 1) -> None:
        self._calls = calls
        self._progress = progress
        self._random = Random(seed)
        self._numbers = count()
        self._capped: list[str] = []  # the sessions that had a cap of their own
        self._up = asyncio.Event()
        self.ends = Counter[str]()
        self.lives = Counter[str]()
        self.refused_by_day = 0

    async def run(self) -> list[Figure]:
        async with running_gateway(_SETTINGS, _CONFIG % (SESSION_USD, 1000.0)) as (gateway, model):
            config = gateway.home / "config.toml"
            spare = _SPARE % model.base_url
            config.write_text(config.read_text() + spare)
            await self._play(gateway, model, self._calls)
            spent = float((await self._status(gateway))["today_usd"])
            day_usd = round(spent + 0.04 + self._calls * CALL_USD / 40, 2)
            config.write_text(_CONFIG % (0, day_usd) + spare)
            refused = self.ends["over_budget"]
            # A tenth more calls; the cap has room for fewer.
            await self._play(gateway, model, model.requests + self._calls // 10, is_last=True)
            self.refused_by_day = self.ends["over_budget"] - refused
            path = gateway.home / "talaria.db"
            await gateway.kill()
            return await self._judge(path, model, from_usd(day_usd))

    async def _play(
        self, gateway: GatewayProcess, model: ModelServer, until: int, *, is_last: bool = False
    ) -> None:
        await self._restart(gateway, signal.SIGKILL)
        refused = self.ends["over_budget"]
        enough = self._calls // 20

        def is_done() -> bool:
            return model.requests >= until or (is_last and self.ends["over_budget"] - refused >= enough)

        async def work() -> None:
            while not is_done():
                if self._random.random() < 0.85:
                    await self._call_stateless(gateway)
                else:
                    name = f"chat-{next(self._numbers)}"
                    if not is_last:
                        self._capped.append(name)
                    await self._chat(gateway, name, is_done)

        workers = [asyncio.create_task(work()) for _ in range(WORKERS)]
        next_end = model.requests + CALLS_PER_LIFE
        while not all(worker.done() for worker in workers):
            await asyncio.wait(workers, timeout=0.1, return_when=asyncio.ALL_COMPLETED)
            self._progress.tell("calls", model.requests, self._calls, f", {self.ends['over_budget']} refused")
            if model.requests >= next_end or self._random.random() < 0.003:
                next_end = model.requests + CALLS_PER_LIFE
                await self._restart(gateway, self._random.choice((signal.SIGKILL, signal.SIGTERM)))
        await asyncio.gather(*workers)

    async def _restart(self, gateway: GatewayProcess, number: signal.Signals) -> None:
        self._up.clear()
        await gateway.kill(number)
        self.lives[number.name] += 1
        await gateway.start()
        self._up.set()

    async def _chat(self, gateway: GatewayProcess, name: str, is_done: Callable[[], bool]) -> None:
        for _ in range(MESSAGES):
            if is_done():
                return
            with suppress(aiohttp.ClientError, OSError):
                await self._up.wait()
                body = {"text": f"{self._ending()} #{name}"}
                ticket = await gateway.call("POST", f"/api/sessions/{name}/messages", json=body)
                if self._random.random() < 0.35:
                    await asyncio.sleep(self._random.random() * 0.1)
                    await gateway.call("POST", f"/api/turns/{ticket['turn_id']}/cancel")
                turn = await gateway.ended_turn(ticket["turn_id"])
                end = turn["error"]["type"] if turn["error"] else turn["state"]
                self.ends[end] += 1
                if end == "model_resting":
                    await asyncio.sleep(1.0)

    async def _call_stateless(self, gateway: GatewayProcess) -> None:
        """Make a streamed call, and often leave it in the middle."""
        message = {"role": "user", "content": f"{self._ending()} #stateless-{next(self._numbers)}"}
        body = {"model": "main", "messages": [message], "stream": True}
        patience = self._random.random() * 0.1 if self._random.random() < 0.6 else 60.0
        try:
            await self._up.wait()
            async with asyncio.timeout(patience):
                await gateway.call("POST", "/v1/chat/completions", json=body)
        except TimeoutError:
            self.ends["left"] += 1
        except aiohttp.ContentTypeError:
            self.ends["streamed"] += 1  # read to its end
        except aiohttp.ClientResponseError as error:
            self.ends["over_budget" if error.status == 402 else f"HTTP {error.status}"] += 1
        except (aiohttp.ClientError, OSError):
            self.ends["disconnected"] += 1

    def _ending(self) -> str:
        weights = [weight for _, weight in ENDINGS]
        return self._random.choices(ENDINGS, weights)[0][0]

    async def _status(self, gateway: GatewayProcess) -> dict[str, str]:
        """Wait until no turn is owed, and return what is spent."""
        while True:
            status = await gateway.call("GET", "/api/status")
            if not status["owed"]["turns"]:
                spending: dict[str, str] = status["spending"]
                return spending
            await asyncio.sleep(0.1)

    async def _judge(self, path: Path, model: ModelServer, day_cap: int) -> list[Figure]:
        assert PRICE is not None
        cap, bills = from_usd(SESSION_USD), model.bills.by_payer
        billed = {name: bill.cost(PRICE) for name, bill in bills.items()}
        beyond = max(0, sum(billed.values()) - day_cap)
        short = unrecorded = 0
        async with await SqliteStore.open(path, SystemClock()) as store:
            spending = await store.spending(SpendingQuery(SessionId(""), "", 0.0))
            for name in filter(bills.__contains__, self._capped):
                session = await store.current_session(HOME_CALLER.chat_key("main", name))
                assert session is not None
                spent = (await store.spending(SpendingQuery(session.id, "", 0.0))).session
                beyond += max(0, billed[name] - cap)
                short += max(0, billed[name] - spent.cost)
                unrecorded += max(0, bills[name].calls - spent.calls)
        charged = spending.everyone
        lives = ", ".join(f"{number} {name}" for name, number in sorted(self.lives.items()))
        calls = sum(bill.calls for bill in bills.values())
        unrecorded += max(0, calls - charged.calls)
        short += max(0, sum(billed.values()) - charged.cost)
        return [
            Figure(f"{calls:,} billed calls over {lives}: beyond a cap", beyond, "nano$", 0, Check.MONEY),
            Figure("… billed and not charged", short, "nano$", 0, Check.MONEY),
            Figure("… billed and not recorded", unrecorded, "calls", 0, Check.MONEY),
            Figure("… still reserved", spending.reserved, "nano$", 0, Check.MONEY),
            Figure("… charged beyond the day's cap", max(0, charged.cost - day_cap), "nano$", 0, Check.MONEY),
            Figure("… charged as an estimate", charged.estimated, "calls"),
            Figure("… refused over a cap", self.ends["over_budget"], "messages"),
            Figure("… of these over the day's cap", self.refused_by_day, "messages"),
            Figure(f"… billed of {to_usd(charged.cost)} $ charged", sum(billed.values()) / 1e9, "$"),
        ]
