"""When the line breaks, the gateway dies or the page is reloaded: nothing is lost, nothing is shown twice."""

from __future__ import annotations

import asyncio
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
    await visitor.sees("The gateway does not answer.", "#line")
    await visitor.say("typed while it was away")
    await visitor.sees("waits for the gateway", "#waiting")
    assert not await visitor.page.locator("#stop, .state").filter(visible=True).count()
    line, header = [await visitor.page.locator(it).bounding_box() for it in ("#line", "#main > header")]
    assert line["y"] + line["height"] <= header["y"]
    assert await visitor.page.evaluate("document.elementFromPoint(20, 5).closest('#line') !== null")
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


async def test_a_part_that_cannot_be_loaded_does_not_hide_that_the_gateway_is_away(visit: Visit) -> None:
    """The palette is loaded ahead, so its failure is not reported. Ctrl+K loads it again."""
    visitor = await visit(logged_in=False)
    page = visitor.page
    await page.route("**/palette.js", lambda route: route.abort())
    async with page.expect_event("requestfailed", lambda request: request.url.endswith("/palette.js")):
        await visitor.follow_link(await visitor.new_link())
    await visitor.at_rest()
    assert await page.locator("#line").text_content() == ""
    await page.unroute_all()
    await page.keyboard.press("Control+k")
    await page.locator("#palette[open]").wait_for()
    await page.keyboard.press("Escape")
    await page.route("**/jobs.js", lambda route: route.abort())
    await page.locator("#jobs-open").click()
    await visitor.sees("A part of this page could not be loaded.", "#line")
    await page.route("**/messages", lambda route: route.abort())
    await visitor.say("kept")
    await visitor.sees("The gateway does not answer.", "#line")
    async with page.expect_event("requestfailed", lambda request: request.url.endswith("/memory.js")):
        await page.route("**/memory.js", lambda route: route.abort())
        await page.locator("#memory-open").click()
    await page.evaluate("new Promise(requestAnimationFrame)")
    await visitor.sees("The gateway does not answer.", "#line")
    await page.unroute_all()
    await visitor.sees("You said: kept")


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
    await visitor.sees("The gateway does not answer. Messages are kept and sent when it is", "#line")
    await visitor.page.reload()
    await visitor.page.locator("#waiting").get_by_text("kept").wait_for()
    await visitor.page.unroute_all()
    await visitor.sees("You said: kept")
    await visitor.settled()


@pytest.mark.parametrize("path", ["**/events", "**/api/sessions/web-*"])
async def test_an_answer_that_fails_once_is_asked_for_again(visitor: Visitor, path: str) -> None:
    failing = [500]

    async def fail_once(route: Any) -> None:
        if failing and route.request.method == "GET":
            await route.fulfill(status=failing.pop(), body="broken")
        else:
            await route.fallback()

    await visitor.page.route(path, fail_once)
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    assert not failing


async def test_a_turn_that_cannot_be_followed_stops_nobody(visitor: Visitor) -> None:
    asked: list[str] = []

    async def refuse_the_first(route: Any) -> None:
        asked.append(route.request.url)
        if asked[-1] == asked[0]:
            await route.fulfill(status=403, body="no")
        else:
            await route.continue_()

    await visitor.page.route("**/events", refuse_the_first)
    await visitor.say("first")
    await visitor.sees("The gateway answered with status 403.")
    await visitor.say("second")
    await visitor.sees("You said: second")
    await visitor.sees("You said: first")
    await visitor.settled()


async def test_a_log_that_is_read_during_a_turn_shows_nothing_twice(visitor: Visitor) -> None:
    """The page reads what another client said, and a turn of its own begins before the log arrives."""
    held: asyncio.Queue[Any] = asyncio.Queue()
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    await visitor.at_rest()
    await visitor.page.route("**/entries?*", held.put)
    path = f"/api/sessions/{await visitor.name()}/messages"
    await visitor.gateway.call("POST", path, json={"text": "theirs"})
    reading = await held.get()
    await visitor.say(ENDLESS)
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    await reading.continue_()
    await visitor.sees("You said: theirs")
    assert " ".join(await visitor.conversation()).count("write_file a.txt") == 1
    await visitor.page.unroute_all()
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.settled()
    assert " ".join(await visitor.conversation()).count("write_file a.txt") == 1


async def test_a_session_that_goes_while_it_is_read_is_no_fault(visitor: Visitor) -> None:
    await visitor.page.route("**/entries?*", lambda route: route.fulfill(status=404, body="pruned"))
    await visitor.say("[[reply undefined is what it is]]")
    await visitor.page.locator("#said").get_by_text("undefined is what it is").wait_for()
    await visitor.settled()


async def test_a_fault_of_the_page_does_not_end_its_listening(visit: Visit) -> None:
    visitor = await visit()
    await visitor.at_rest()
    await visitor.page.route("**/api/sessions?*", lambda route: route.fulfill(json={}))
    async with visitor.page.expect_event("pageerror"):
        await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await visitor.page.unroute_all()
    visitor.troubles.clear()
    name = await visitor.name()
    await visitor.gateway.call("POST", f"/api/sessions/{name}/messages?wait=10", json={"text": "theirs"})
    await visitor.sees("You said: theirs")


async def test_waiting_leaves_nothing_behind_and_titles_are_asked_for_once(visitor: Visitor) -> None:
    left = await visitor.page.evaluate("""async () => {
      const { pause } = await import("/assets/api.js");
      const { titles } = await import("/assets/storage.js");
      const listeners = new Set();
      const signal = {
        addEventListener: (kind, listener) => listeners.add(listener),
        removeEventListener: (kind, listener) => listeners.delete(listener),
      };
      await pause(1, signal);
      for (let count = 0; count < 310; count += 1) titles.learn(`ses_made_up_${count}`, []);
      return [listeners.size, titles.of("ses_made_up_0")];
    }""")
    assert left == [0, ""]


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
    await visitor.has_written("half a thought")


async def test_commands_are_named_as_they_are_typed_in_a_clone(visitor: Visitor) -> None:
    await visitor.page.evaluate("document.documentElement.dataset.program = './dev'")
    error = {"type": "bad_request", "message": "No model.", "hint": "Run `talaria setup`."}
    await visitor.page.route("**/messages", lambda route: route.fulfill(status=400, json={"error": error}))
    await visitor.say("hello")
    await visitor.sees("Run ./dev setup.", "#log .error")
    await visitor.page.reload()
