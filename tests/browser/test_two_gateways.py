"""Two gateways behind one address: one of them is killed in the middle of an answer on the page."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from browser.visitor import Visitor
from gateways import Balancer, Gateways, running_gateways
from postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures

SLOW = "[[chunks 20]][[chunk-delay 0.05]][[words 80]]"


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
        async with running_gateways(postgres_database, shared, shared, token=token) as world:
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
    dead = next(each for each in world.each if (each.home / "place").read_text().split()[0] == place)
    await dead.kill()
    await guest.sees("word79 word80")
    await guest.settled()
    said = " ".join(await guest.conversation())
    assert (said.count("word1 "), said.count("word80"), await most()) == (1, 1, 1)
    assert world.ask("SELECT state, attempts FROM turns") == [("done", 2)]
