"""Two gateways behind one address: one of them is killed in the middle of an answer on the page."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from typing import Any

import aiohttp

from browser.visitor import Visitor
from support.gateways import Balancer, Gateways, cluster
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.testing.gateway_process import GatewayProcess

SLOW = "[[chunks 40]][[chunk-delay 0.05]][[words 80]]"


@dataclass
class Guest(Visitor):
    """A visitor of the address that both gateways share."""

    address: str = ""

    @property
    def url(self) -> str:
        return self.address


async def test_a_killed_gateway_s_answer_goes_on_at_the_other_and_is_shown_once(
    browser: Any,
    postgres_database: str,  # noqa: F811
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    async with Balancer(listener) as balancer:
        shared = {"HTTP__HOSTS": f"127.0.0.1:{balancer.port}"}
        token = "one-token-for-the-api-of-both-gateways"
        async with cluster(postgres_database, shared, shared, token=token) as world:
            balancer.targets = world.each
            context = await browser.new_context()
            try:
                guest = await Guest.of(context, world.each[0])
                guest.address = balancer.url
                await guest.follow_link(await guest.new_link())
                await _kill_the_one_that_answers(guest, world)
                assert guest.troubles == []
            finally:
                await context.close()


async def _kill_the_one_that_answers(guest: Guest, world: Gateways) -> None:
    most = await guest.count_in_every_frame("word1 ")
    await guest.say(SLOW)
    await guest.page.locator("#live").get_by_text("word1 word2").wait_for()
    [(place,)] = world.ask("SELECT m.place FROM turns t JOIN members m ON m.owner = t.member")
    dead, alive = sorted(world.each, key=lambda each: place not in (each.home / "place").read_text())
    answer = Completion(alive)
    await dead.say("two", "hello")
    await answer.begin()
    await dead.kill()
    assert await answer.end() == " ".join(f"word{n}" for n in range(1, 81))
    await guest.sees("word79 word80")
    await guest.settled()
    said = " ".join(await guest.conversation())
    assert (said.count("word1 "), said.count("word80"), await most()) == (1, 1, 1)
    assert sorted(world.ask("SELECT state, attempts FROM turns")) == [("done", 1), ("done", 2), ("done", 2)]


class Completion:
    """A chat completion, streamed by one gateway, of a session that another one has."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._texts: list[str] = []
        self._begun = asyncio.Event()

    async def begin(self) -> None:
        """Ask, and wait for the first words."""
        self._task = asyncio.create_task(self._read())
        await self._begun.wait()

    async def end(self) -> str:
        async with asyncio.timeout(60):
            await self._task
        return "".join(self._texts)

    async def _read(self) -> None:
        token = (self._gateway.home / "http.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "X-Talaria-Session": "two"}
        body = {"messages": [{"role": "user", "content": SLOW}], "stream": True}
        url = f"{self._gateway.url}/v1/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    assert b'"error"' not in line, line
                    for choice in json.loads(line[6:])["choices"]:
                        if text := choice["delta"].get("content"):
                            self._texts.append(text)
                            self._begun.set()
