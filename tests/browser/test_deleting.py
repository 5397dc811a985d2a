"""Deleting a chat on the page: it asks first, and says why when the gateway refuses."""

from __future__ import annotations

from browser.test_hands import focused
from browser.visitor import Visitor


async def test_a_chat_is_deleted_after_a_question(visitor: Visitor) -> None:
    delete = visitor.page.get_by_role("button", name="Delete this chat")
    assert not await delete.is_visible()  # nothing is there yet
    await visitor.say("a chat that goes away")
    await visitor.sees("You said: a chat that goes away")
    await visitor.settled()
    name = await visitor.name()
    await delete.focus()
    await visitor.page.keyboard.press("Enter")
    dialog = visitor.page.get_by_role("dialog", name="Delete this chat?")
    await visitor.sees("a chat that goes away", "#deletion")
    assert await focused(visitor) == "deletion-keep"
    await visitor.page.keyboard.press("Escape")
    await dialog.wait_for(state="hidden")
    assert await focused(visitor) == "delete"
    await delete.click()
    await dialog.get_by_role("button", name="Keep it").click()
    assert await visitor.name() == name
    await delete.click()
    await dialog.get_by_role("button", name="Delete").click()
    await dialog.wait_for(state="hidden")
    await visitor.page.locator("#chats a", has_text="a chat that goes away").wait_for(state="detached")
    assert await visitor.name() != name
    assert await visitor.conversation() == []
    items = (await visitor.gateway.call("GET", "/api/sessions?limit=200"))["items"]
    assert name not in [session["name"] for session in items]


async def test_before_the_first_answer_the_button_says_when_a_chat_can_be_deleted(visitor: Visitor) -> None:
    await visitor.say("[[delay 30]]")
    await visitor.page.get_by_role("button", name="Stop").wait_for()
    delete = visitor.page.locator("#delete")
    await delete.wait_for()
    assert await delete.is_disabled()
    assert "after its first answer" in (await delete.get_attribute("title") or "")
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.sees("Stopped.")
    await visitor.page.locator("#delete:enabled[title='Delete this chat']").wait_for()


async def test_a_chat_whose_turn_runs_is_not_deleted_and_the_page_says_why(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    await visitor.say("[[delay 30]]")
    await visitor.page.locator("#live .person").wait_for()
    await visitor.page.get_by_role("button", name="Stop").wait_for()
    name = await visitor.name()
    await visitor.page.get_by_role("button", name="Delete this chat").click()
    dialog = visitor.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Delete").click()
    told = dialog.get_by_role("alert").locator(".error")
    await told.wait_for()
    assert "turn" in await told.inner_text()
    await dialog.get_by_role("button", name="Keep it").click()
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.sees("Stopped.")
    await visitor.settled()
    assert await visitor.name() == name
    await visitor.page.get_by_role("button", name="Delete this chat").click()
    await dialog.get_by_role("button", name="Delete").click()
    await dialog.wait_for(state="hidden")
    assert await visitor.name() != name
