"""The pause after unclean ends: the gateway listens, accepts, answers probes, and leaves when asked to."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import aiohttp
import msgspec
import pytest

from support.gateway import running_gateway
from talaria.core.clock import SystemClock
from talaria.store.sqlite.store import SqliteStore

MANY = 20  # starts; the pause after them is as long as it can be


async def note_unclean_starts(home: Path) -> None:
    async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
        await store.set_cursor("restarts", msgspec.json.encode([time.time() - 5] * MANY).decode())


async def count_unclean_starts(home: Path) -> int:
    async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
        return len(msgspec.json.decode(await store.cursor("restarts") or "[]", type=list[float]))


async def test_during_the_pause_messages_are_accepted_and_a_signal_ends_it() -> None:
    async with running_gateway({"SHUTDOWN__RESTART_PAUSE": "10m"}) as (gateway, _):
        await gateway.kill()
        await note_unclean_starts(gateway.home)
        await gateway.start()
        sent = [await gateway.begin("one", "before the kill")]
        assert await gateway.call("GET", "/healthz") == {"live": True, "phase": "starting"}
        with pytest.raises(aiohttp.ClientResponseError) as refused:
            await gateway.call("GET", "/readyz")
        assert refused.value.status == 503
        status = await gateway.call("GET", "/api/status")
        assert status["reasons"][0] == "turns do not run yet"
        assert "restarts: the last 20 starts" in status["reasons"][1]
        assert status["turns"]["accepted"] == 1
        await gateway.kill()
        assert await count_unclean_starts(gateway.home) == MANY, "a kill in the pause was counted"
        await gateway.start()
        sent.append(await gateway.begin("one", "before the signal"))
        assert (await gateway.say("two", "/status"))["reply"]
        await gateway.kill(signal.SIGTERM)
        assert await gateway.wait() == 0
        await gateway.start()
        replies = [(await gateway.ended_turn(turn_id))["reply"] for turn_id in sent]
        assert replies == ["You said: before the kill", "You said: before the signal"]
