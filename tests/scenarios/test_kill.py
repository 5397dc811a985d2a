"""`kill -9` in the middle of turns: the next start answers what was accepted, in order, each once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from talaria.testing.model_server import ModelServer

CHATS, MESSAGES = 6, 3


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def call(self, method: str, path: str, **more: Any) -> Any:
        async with self._session.request(method, self._url + path, **more) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def settled(self, turn_id: str) -> Any:
        """Follow the turn's events to their end, then read it."""
        async with self._session.get(f"{self._url}/api/turns/{turn_id}/events") as stream:
            async for _ in stream.content:
                pass
        return await self.call("GET", f"/api/turns/{turn_id}")


@asynccontextmanager
async def gateway(home: Path, model_url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Client]]:
    """A real process; whatever happens it is gone afterwards."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TALARIA_")},
        "TALARIA_HOME": str(home),
        "TALARIA_HTTP__PORT": "0",
        "TALARIA_MODEL__PROVIDER": "scripted",
        "TALARIA_PROVIDERS__SCRIPTED__BASE_URL": model_url,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "talaria", "serve", env=environ,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        first = await process.stdout.readline()
        url = first.decode().split()[-1]
        token = (home / "http.token").read_text().strip()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
            yield process, Client(session, url)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_what_was_accepted_before_a_kill_is_answered_after_it(tmp_path: Path) -> None:
    async with ModelServer() as server:
        async with gateway(tmp_path, server.base_url) as (process, client):
            tickets = {}
            for number in range(MESSAGES):
                for chat in range(CHATS):
                    fault = "[[first 1 hang]]" if number == 0 else ""
                    call = f'[[call write_file {{"path":"{number}","content":"x"}}]]'
                    text = f"{call}{fault} {chat} {number}"
                    path = f"/api/sessions/chat-{chat}/messages"
                    tickets[chat, number] = await client.call("POST", path, json={"text": text})
            await server.until(lambda: server.answering == CHATS)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with gateway(tmp_path, server.base_url) as (process, client):
            for (chat, _), ticket in tickets.items():
                turn = await client.settled(ticket["turn_id"])
                assert turn["state"] == "done", turn
                assert turn["session_id"] == tickets[chat, 0]["session_id"]
            for chat in range(CHATS):
                entries = (await client.call("GET", f"/api/sessions/chat-{chat}/entries"))["entries"]
                said = [entry for entry in entries if entry["body"]["type"] == "user"]
                assert [entry["body"]["parts"][0]["text"][-1] for entry in said] == ["0", "1", "2"]
                assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
            status = await client.call("GET", "/api/status")
            assert status["owed"]["turns"] == 0
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
