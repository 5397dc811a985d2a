"""The shape of the page: one part of it scrolls, and it never exceeds the window."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from browser.visitor import Visitor

SCROLLING = """() => [...document.querySelectorAll("*")]
  .filter((node) => node.scrollHeight > node.clientHeight && getComputedStyle(node).overflowY !== "visible"
    && node.clientHeight > 1 || node === document.scrollingElement && node.scrollHeight > innerHeight)
  .map((node) => node.id || node.tagName)"""


async def test_only_the_conversation_scrolls_while_messages_wait(visitor: Visitor) -> None:
    await visitor.say("[[reply " + "a line\n\n" * 30 + "the end]]")
    await visitor.sees("the end", "#log .agent")
    await visitor.settled()
    await visitor.say("[[delay 30]]")
    await visitor.page.locator("#live .person").wait_for()
    for number in range(3):
        await visitor.say(f"queued {number}")
        await visitor.page.locator("#waiting").get_by_text(f"queued {number}").wait_for()
    assert set(await visitor.page.evaluate(SCROLLING)) - {"chats"} == {
        "scroll"
    }  # the list of chats may be long
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.sees("You said: queued 2")


async def test_long_details_scroll_by_themselves(visitor: Visitor) -> None:
    """They are higher than the window; the message field stays where it is."""
    write = '[[call write_file {"path": "a.txt", "content": "a"}]]'
    await visitor.say(write * 4 + "[[reply written]]")
    await visitor.sees("written", "#log .agent")
    await visitor.settled()
    before = await visitor.page.locator("#text").bounding_box()
    await visitor.page.get_by_role("button", name="Details").last.click()
    await visitor.page.locator("#inspector .story li").nth(8).wait_for()
    assert "inspector" in await visitor.page.evaluate(SCROLLING)
    assert await visitor.page.evaluate("document.scrollingElement.scrollHeight <= innerHeight")
    after = await visitor.page.locator("#text").bounding_box()
    assert before is not None and after is not None and before["y"] == after["y"]
    await visitor.page.locator("#inspector").get_by_role("button", name="Close").click()


GROW = """async () => {
  const [scroll, log] = [document.getElementById("scroll"), document.getElementById("log")];
  const tall = document.createElement("pre");
  tall.textContent = "row\\n".repeat(40);
  log.append(tall);
  scroll.dispatchEvent(new Event("scroll"));  // of an earlier movement
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight;
}"""

UNTIL = """async ([least, most]) => {
  const scroll = document.getElementById("scroll");
  for (let left = -1; left < least || left > most; ) {
    await new Promise(requestAnimationFrame);
    left = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight;
  }
  await new Promise(requestAnimationFrame);
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def grown(visitor: Visitor) -> AsyncIterator[Visitor]:
    """The page is shared: what was put into its log is taken out again."""
    yield visitor
    await visitor.page.evaluate("document.querySelectorAll('#log > pre').forEach((tall) => tall.remove())")


async def test_the_end_stays_in_sight_unless_the_reader_scrolls_away_from_it(grown: Visitor) -> None:
    visitor = grown
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    assert await visitor.page.evaluate(GROW) < 2
    assert await visitor.page.evaluate(GROW) < 2
    await visitor.page.locator("#scroll").hover()
    await visitor.page.mouse.wheel(0, -60)
    await visitor.page.evaluate(UNTIL, [50, 70])
    assert await visitor.page.evaluate(GROW) > 500
    await visitor.page.mouse.wheel(0, 100_000)
    await visitor.page.evaluate(UNTIL, [0, 2])
    assert await visitor.page.evaluate(GROW) < 2
