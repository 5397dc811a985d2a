"""The shape of the page: one part of it scrolls, and it never exceeds the window."""

from __future__ import annotations

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
