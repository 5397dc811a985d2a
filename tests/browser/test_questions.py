"""Questions on the page: the whole text on a card, three buttons, and what the gateway did afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from browser.visitor import Visit, Visitor
from support.gateway import running_gateway

WRITE = '[[call write_file {"path":"a.txt","content":"a\\u202eb"}]][[reply Written.]]'


@pytest_asyncio.fixture(loop_scope="session")
async def careful(visit: Visit) -> AsyncIterator[Visitor]:
    """A visitor of a gateway that asks about every call that does not only read."""
    async with running_gateway({"TOOLS__APPROVALS": "always"}) as (gateway, _):
        yield await visit(gateway)


async def test_calls_are_approved_and_denied_with_buttons(careful: Visitor) -> None:
    page = careful.page
    await careful.say(WRITE)
    card = page.locator("section.question")
    await card.wait_for()
    shown = await card.locator("pre").text_content()
    assert shown.startswith("write_file") and '"content": "a\\u202eb"' in shown and "\u202e" not in shown
    labels = await card.get_by_role("button").all_text_contents()
    assert labels == ["Deny", "Approve once", "Approve for the session"]
    await page.reload()
    await card.wait_for()
    await card.get_by_role("button", name="Approve for the session").click()
    await careful.sees("Written.", "#log .agent")
    await careful.settled()
    for _ in ("as it was decided", "from the log"):  # who and when stay
        await page.locator("#log .decided", has_text="Approved for this session. you").wait_for()
        await page.reload()
    await careful.say(WRITE + " again")
    await careful.settled()
    assert await card.get_by_role("button").count() == 0, "the session has the grant"
    await careful.say(WRITE.replace("a.txt", "b.txt"))
    card = page.locator("section.question:not([data-decided])")
    await card.wait_for()
    await card.get_by_role("button", name="Deny").click()
    await careful.settled()
    await page.locator("#log .decided", has_text="Denied. you").wait_for()
    await careful.say('[[call ask_user {"question":"Which <b>one</b>?","choices":["red","blue"]}]]')
    await card.wait_for()
    assert await card.locator("p.asked").text_content() == "Which <b>one</b>?"
    await card.get_by_role("button", name="blue").click()
    await careful.sees("Tool results: blue", "#log .agent")


async def test_a_question_that_is_closed_says_so_on_its_card(visitor: Visitor) -> None:
    await visitor.say('[[call ask_user {"question":"Which?","choices":["red"]}]]')
    card = visitor.page.locator("section.question")
    await card.wait_for()
    await visitor.page.route(
        "**/api/approvals/*",
        lambda route: route.fulfill(
            status=409,
            json={"error": {"type": "question_closed", "message": "It has expired.", "hint": "Ask."}},
        ),
    )
    await card.get_by_role("button", name="red").click()
    await card.get_by_text("It has expired. Ask.").wait_for()
    await visitor.page.unroute_all()
    assert await card.get_by_role("button", name="red").is_enabled()
    await visitor.say("green")
    await visitor.sees("Tool results: green", "#log .agent")
    await visitor.settled()
    visitor.troubles = [trouble for trouble in visitor.troubles if "409" not in trouble]


async def test_the_question_of_a_background_process_is_a_card_without_a_turn(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    name = visitor.page.url.partition("#chat=")[2]
    session = await visitor.gateway.call("GET", f"/api/sessions/{name}")
    item = {"id": "q_1", "kind": "host", "text": "a.example", "choices": [], "session_id": session["id"]}
    sent: list[str] = []

    async def answer(route: Any) -> None:
        if route.request.method == "POST":
            sent.append(route.request.post_data)
            await route.fulfill(json={})
        else:
            items = [item, {**item, "id": "q_2", "session_id": "ses_other"}] if not sent else []
            await route.fulfill(json={"questions": items, "turns": [], "replies": [], "jobs": []})

    await visitor.page.route(re.compile("/api/(approvals|inbox)"), answer)
    await visitor.page.reload()
    card = visitor.page.locator("section.question")
    await card.wait_for()
    assert await card.count() == 1, "that of another session is not shown"
    assert await card.locator("pre").text_content() == "a.example"
    await card.get_by_role("button", name="Approve for the session").click()
    await card.wait_for(state="detached")
    assert sent == ['{"decision":"approve","for":"session"}']
    await visitor.page.unroute_all()


async def test_a_delegate_s_call_is_denied_in_the_chat_of_its_root(careful: Visitor) -> None:
    await careful.say(f"[[call delegate {json.dumps({'task': WRITE})}]][[reply It was refused.]]")
    card = careful.page.locator("section.question")
    await card.wait_for()
    await careful.page.locator("#chats").get_by_text("Needs you").first.wait_for()
    await card.get_by_role("button", name="Deny").click()
    await careful.sees("It was refused.", "#log .agent")
