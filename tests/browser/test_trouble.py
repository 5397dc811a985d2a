"""When the line breaks, the gateway dies or the page is reloaded: nothing is lost, nothing is shown twice."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from browser.visitor import Visit, Visitor
from talaria.testing.gateway_process import GatewayProcess

ENDLESS = '[[call write_file {"path":"a.txt","content":"hi"}]][[chunks 400]][[chunk-delay 0.05]][[words 800]]'
SLOW = '[[call write_file {"path":"a.txt","content":"hi"}]][[chunks 12]][[chunk-delay 0.06]][[words 24]]'


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restart_in_mid_turn_heals_and_the_answer_is_shown_once(
    visit: Visit, mortal: GatewayProcess, end: signal.Signals
) -> None:
    """A kill cuts the stream, an orderly end closes it."""
    visitor = await visit(mortal)
    most = await visitor.count_in_every_frame("word1 ")
    await visitor.say(SLOW)
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    await mortal.kill(end)
    await visitor.sees("The gateway is away. Reconnecting …", "#line")
    await visitor.say("typed while it was away")
    await mortal.start()
    await visitor.sees("You said: typed while it was away")
    await visitor.settled()
    await visitor.page.locator("#line:empty").wait_for(state="attached")
    said = " ".join(await visitor.conversation())
    assert [said.count(text) for text in ("write_file a.txt", "word24", "typed while")] == [1, 1, 2]
    assert await most() == 1
    users = [body for body in await visitor.entries() if body["type"] == "user"]
    assert len(users) == 2
    before = await visitor.conversation()
    await visitor.page.reload()
    await visitor.sees("You said: typed while it was away")
    assert await visitor.conversation() == before


async def test_a_message_whose_answer_got_lost_is_not_doubled(visitor: Visitor) -> None:
    tries = []

    async def lose_the_first(route: Any) -> None:
        tries.append(route)
        answer = await route.fetch()
        if len(tries) == 1:
            await route.abort()
        else:
            await route.fulfill(response=answer)

    await visitor.page.route("**/messages", lose_the_first)
    await visitor.say("only once")
    await visitor.sees("You said: only once")
    await visitor.settled()
    assert len(tries) == 2
    assert [body["type"] for body in await visitor.entries()].count("user") == 1


async def test_a_message_that_could_not_be_sent_outlives_the_page(visitor: Visitor) -> None:
    await visitor.page.route("**/messages", lambda route: route.abort())
    await visitor.say("kept")
    await visitor.sees("The gateway is away. Reconnecting …", "#line")
    await visitor.page.reload()
    await visitor.page.locator("#waiting").get_by_text("kept").wait_for()
    await visitor.page.unroute_all()
    await visitor.sees("You said: kept")
    await visitor.settled()


async def test_a_reload_in_mid_turn_finds_the_turn_again(visitor: Visitor) -> None:
    await visitor.say(ENDLESS)
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    await visitor.say("the next one")
    await visitor.page.reload()
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.sees("You said: the next one")
    await visitor.settled()
    said = " ".join(await visitor.conversation())
    wanted = ("write_file a.txt", "word1 ", "Stopped.", "the next one")
    assert [said.count(text) for text in wanted] == [1, 1, 1, 2]


async def test_another_browser_finds_the_running_turn_and_can_stop_it(visitor: Visitor, visit: Visit) -> None:
    other = await visit()
    await visitor.say(ENDLESS)
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    await other.page.evaluate(f"location.hash = '#chat={await visitor.name()}'")
    await other.page.locator("#live").get_by_text("word1 word2").wait_for()
    await other.page.get_by_role("button", name="Stop").click()
    for one in (visitor, other):
        await one.sees("Stopped.")
        await one.settled()
    said = await visitor.conversation()
    assert await other.conversation() == said
    assert " ".join(said).count("write_file a.txt") == 1


async def test_a_draft_and_a_login_that_ended_lose_nothing(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.page.locator("#text").fill("half a thought")
    await visitor.page.context.clear_cookies()
    await visitor.page.reload()
    await visitor.page.locator("#login").wait_for()
    await visitor.follow_link(await visitor.new_link())
    await visitor.page.locator("#chats a", has_text="hello").first.click()
    await visitor.page.wait_for_function("text.value === 'half a thought'")
