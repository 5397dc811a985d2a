"""Messages and files on their way: whatever the gateway says, in however many tabs, they are not lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from browser.visitor import Visit, Visitor

NOTE = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"hello"}
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"


def refusing(status: int, kind: str, message: str) -> Any:
    async def refuse(route: Any) -> None:
        error = {"type": kind, "message": message, "hint": "Make room."}
        await route.fulfill(status=status, json={"error": error})

    return refuse


class Held:
    """Calls that wait until they are let go."""

    def __init__(self, then: Any = None) -> None:
        self.tries = 0
        self._open = asyncio.Event()
        self._then = then

    async def __call__(self, route: Any) -> None:
        self.tries += 1
        await self._open.wait()
        await (self._then(route) if self._then else route.continue_())

    def let_go(self) -> None:
        self._open.set()


async def second_tab(visitor: Visitor) -> Visitor:
    other = await Visitor.of(visitor.page.context, visitor.gateway)
    await other.page.goto(visitor.url)
    await other.page.locator("#app").wait_for()
    return other


async def test_a_message_sent_before_the_gateway_has_answered_anything_is_sent_once(visitor: Visitor) -> None:
    held = Held()
    await visitor.page.route("**/api/**", held)
    await visitor.page.reload()
    await visitor.say("early")
    await visitor.page.locator("#waiting").get_by_text("early").wait_for()
    held.let_go()
    await visitor.sees("You said: early")
    await visitor.settled()
    assert [body["type"] for body in await visitor.entries()].count("user") == 1


async def test_a_message_typed_while_the_page_learns_that_its_login_ended_is_kept(visit: Visit) -> None:
    visitor, held = await visit(), Held()
    await visitor.page.context.clear_cookies()
    await visitor.page.route("**/api/**", held)
    await visitor.page.reload()
    await visitor.say("typed too late")
    held.let_go()
    await visitor.sees("Your message is kept", "#login")
    await visitor.follow_link(await visitor.new_link())
    row = visitor.page.locator("#chats a", has_text="typed too late")
    await row.first.click()
    await visitor.sees("You said: typed too late")


@pytest.mark.parametrize("kind", ["store", "internal"])
async def test_what_cannot_be_taken_now_goes_out_later(visitor: Visitor, kind: str) -> None:
    status = 503 if kind == "store" else 500
    await visitor.page.route("**/messages", refusing(status, kind, "The disk is full."))
    for text in ("one", "two", "three"):
        await visitor.say(text)
    await visitor.sees("The disk is full. Make room. Messages are kept", "#line")
    assert await visitor.page.locator("#waiting").get_by_text("waits for the gateway").count() == 3
    await visitor.page.unroute_all()
    for text in ("one", "two", "three"):
        await visitor.sees(f"You said: {text}")
    await visitor.settled()
    assert [body["type"] for body in await visitor.entries()].count("user") == 3
    assert await visitor.page.locator("#text").input_value() == ""


async def test_refused_messages_come_back_into_the_field_with_their_files(visitor: Visitor) -> None:
    held = Held(refusing(413, "too_large", "It is too long."))
    await visitor.page.route("**/messages", held)
    await visitor.page.locator("#file").set_input_files([NOTE])
    await visitor.say("first")
    await visitor.say("second")
    await visitor.page.locator("#text").fill("written since")
    held.let_go()
    await visitor.has_written("written since\n\nfirst\n\nsecond")
    assert await visitor.page.locator("#log").get_by_text("It is too long.").count() == 2
    await visitor.page.unroute_all()
    await visitor.page.keyboard.press("Enter")
    await visitor.sees("note.txt (5 B)", "#log .person")
    await visitor.settled()


async def test_a_message_waits_for_its_file_whatever_chat_is_open(visitor: Visitor) -> None:
    upload = Held()
    await visitor.page.route("**/api/files?*", upload)
    await visitor.page.locator("#file").set_input_files([NOTE])
    await visitor.say("look")
    await visitor.page.locator("#waiting").get_by_text("note.txt (5 B)").wait_for()
    await visitor.page.get_by_role("button", name="New chat").click()
    upload.let_go()
    await visitor.page.go_back()
    await visitor.sees("note.txt (5 B)", "#log .person")
    await visitor.settled()
    user = next(body for body in await visitor.entries() if body["type"] == "user")
    assert [part["type"] for part in user["parts"]] == ["text", "file"]


async def test_a_file_that_cannot_be_read_is_named(visitor: Visitor, tmp_path: Path) -> None:
    path = tmp_path / "gone.txt"
    path.write_text("soon deleted")
    held = Held(lambda route: route.abort())
    await visitor.page.route("**/api/files?*", held)
    await visitor.page.locator("#file").set_input_files(path)
    path.unlink()
    held.let_go()
    await visitor.sees("gone.txt cannot be read.")
    assert await visitor.page.locator("#files li").count() == 0
    await visitor.page.locator("#line:empty").wait_for(state="attached")


async def test_a_file_that_is_removed_is_not_uploaded_on(visitor: Visitor) -> None:
    await visitor.page.route("**/api/files?*", Held())
    await visitor.page.locator("#file").set_input_files([NOTE])
    async with visitor.page.expect_event("requestfailed") as failed:
        await visitor.page.get_by_role("button", name="Remove note.txt").click()
    assert "/api/files" in (await failed.value).url


async def test_a_message_of_another_tab_is_followed_here_too(visitor: Visitor) -> None:
    other = await second_tab(visitor)
    held = Held()
    await visitor.page.route("**/messages", held)
    await other.page.route("**/messages", lambda route: route.abort())
    await visitor.say("from the first tab")
    await visitor.page.locator("#waiting .person").wait_for()
    await other.page.evaluate(f"location.hash = '#chat={await visitor.name()}'")
    await other.page.locator("#waiting").get_by_text("from the first tab").wait_for()
    held.let_go()
    for tab in (visitor, other):
        await tab.sees("You said: from the first tab")
        await tab.settled()
    assert await other.page.locator("#waiting .person").count() == 0
    assert await other.conversation() == await visitor.conversation()
    await other.page.close()
    assert other.troubles == []


async def test_a_tab_that_is_closed_leaves_its_message_to_the_others(visitor: Visitor) -> None:
    other = await second_tab(visitor)
    await other.page.route("**/messages", lambda route: route.abort())
    await other.page.evaluate(f"location.hash = '#chat={await visitor.name()}'")
    await other.say("left behind")
    # Where it stands depends on whether this tab has found it already.
    await other.page.locator("main").get_by_text("left behind", exact=True).first.wait_for()
    await other.page.close()
    await visitor.page.evaluate(LOOK)
    await visitor.sees("You said: left behind")
    await visitor.settled()


async def test_the_first_words_of_somebody_else_appear_in_an_open_chat(visitor: Visitor) -> None:
    path = f"/api/sessions/{await visitor.name()}/messages?wait=10"
    await visitor.gateway.call("POST", path, json={"text": "theirs"})
    await visitor.page.evaluate(LOOK)
    await visitor.sees("You said: theirs")


async def test_a_picture_has_its_name_from_the_beginning(visitor: Visitor, visit: Visit) -> None:
    held = Held()
    await visitor.page.route("**/messages", held)
    picture = {"name": "dot.png", "mimeType": "image/png", "buffer": b"no picture"}
    await visitor.page.locator("#file").set_input_files([picture])
    await visitor.say("look")
    await visitor.page.locator("#waiting .bubble img").wait_for(state="attached")
    await visitor.sees("dot.png (10 B)", "#waiting")
    held.let_go()
    await visitor.settled()
