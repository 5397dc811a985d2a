"""A held event loop: leases go on, the process leaves when it is wedged, and only the guilty turn pays."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

import talaria
from talaria.core.clock import SystemClock
from talaria.core.ids import TurnId
from talaria.core.turns import Turn
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.model_server import ModelServer

WEDGED_STATUS = 70

TOKEN = "a-token-for-tests"
SCRIPT = Path(__file__).with_name("held_gateway.py")


class Held:
    """A running `held_gateway.py`."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, client: aiohttp.ClientSession) -> None:
        self.process = process
        self._url = url
        self._client = client

    async def call(self, method: str, path: str, **more: Any) -> Any:
        async with self._client.request(method, self._url + path, **more) as answer:
            return await answer.json()

    async def send(self, chat: str, text: str) -> str:
        ticket = await self.call("POST", f"/api/sessions/{chat}/messages", json={"text": text})
        return str(ticket["turn_id"])

    async def ended(self, turn_id: str) -> Any:
        while True:
            turn = await self.call("GET", f"/api/turns/{turn_id}")
            if turn["state"] in ("done", "failed", "cancelled"):
                return turn
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(home: Path, model: ModelServer, *, lease: float, wedged: float) -> AsyncIterator[Held]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TALARIA_")}
    environ |= {
        "PYTHONPATH": str(Path(talaria.__file__).parents[1]),
        "TALARIA_HTTP__PORT": "0",
        "TALARIA_HTTP_TOKEN": TOKEN,
        "TALARIA_MODEL__PROVIDER": "scripted",
        "TALARIA_PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
    }
    home.mkdir(mode=0o700, exist_ok=True)
    with (home / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(home), str(lease), str(wedged),
            env=environ, stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        assert url, (home / "log").read_text()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            yield Held(process, url, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_turn(home: Path, turn_id: str) -> Turn:
    async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
        record = await store.turn_record(TurnId(turn_id))
        assert record is not None
        return record.turn


async def test_leases_are_renewed_while_the_loop_is_held(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with (
        ModelServer() as model,
        running(home, model, lease=4.5, wedged=60) as gateway,
    ):
        beside = await gateway.send("beside", "[[delay 8]] hello")
        await model.until(lambda: model.answering == 1)
        holder = await gateway.send("holder", '[[call hold {"seconds":5}]][[reply ok]]')
        assert (await gateway.ended(holder))["state"] == "done"
        assert (await gateway.ended(beside))["state"] == "done"
        loop = (await gateway.call("GET", "/api/status"))["loop"]
    assert "lost the lease" not in (home / "log").read_text()
    assert [(await read_turn(home, turn)).attempts for turn in (holder, beside)] == [1, 1]
    assert loop["turn_id"] == holder
    assert "held_gateway.py" in loop["held_by"]
    assert loop["last_seconds"] > 4.5


async def test_a_wedged_process_leaves_and_only_the_turn_that_held_it_pays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with ModelServer() as model:
        async with running(home, model, lease=30, wedged=1.5) as gateway:
            beside = await gateway.send("beside", "[[first 1 hang]] hello")
            await model.until(lambda: model.answering == 1)
            holder = await gateway.send("holder", '[[call hold {"seconds":3600}]][[reply ok]]')
            assert await gateway.process.wait() == WEDGED_STATUS
        held, innocent = await read_turn(home, holder), await read_turn(home, beside)
        assert (held.attempts, held.forgiven) == (1, 0)
        assert (innocent.attempts, innocent.forgiven) == (1, 1)
        assert "leaves with status 70" in (home / "log").read_text()
        async with running(home, model, lease=30, wedged=60) as gateway:
            assert (await gateway.ended(holder))["state"] == "done"
            assert (await gateway.ended(beside))["state"] == "done"
    held, innocent = await read_turn(home, holder), await read_turn(home, beside)
    assert (held.attempts, held.forgiven) == (2, 0)
    assert (innocent.attempts, innocent.forgiven) == (2, 1)


WITH_THE_LOG_HELD = """
import logging, threading
from talaria.core.ids import OwnerId
from talaria.observe.logs import configure
from talaria.observe.logs import LogSettings
from talaria.core.redaction import Redactor
from talaria.turns.crashes import leave_wedged
import sys

configure(LogSettings(), Redactor([]), sys.stderr)
for handler in logging.getLogger().handlers:
    handler.acquire()  # as the loop does while it reads source files for a traceback
leave = lambda: leave_wedged(None, OwnerId("own_1"), 60.0, None, last_words=0.05)
threading.Thread(target=leave).start()
threading.Event().wait(20)
"""


async def test_a_process_leaves_although_its_loop_is_held_inside_the_log() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WITH_THE_LOG_HELD)
    assert await process.wait() == WEDGED_STATUS
