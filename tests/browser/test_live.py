"""Changes that happen elsewhere are seen at once: in the list, the inbox, the title and the open chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from browser.visitor import Visit, Visitor
from support.gateway import running_gateway
from talaria.testing.gateway_process import GatewayProcess

ASK = '[[call ask_user {"question":"Which colour?","choices":["red","blue"]}]][[reply Fine.]]'


@pytest_asyncio.fixture(loop_scope="session")
async def quiet(visit: Visit) -> AsyncIterator[Visitor]:
    """A visitor of a separate gateway with nothing waiting, and with its lists read: what follows is news."""
    async with running_gateway() as (gateway, _):
        visitor = await visit(gateway)
        await visitor.page.locator("#chats[aria-busy=false]").wait_for(state="attached")
        await visitor.at_rest()
        yield visitor


async def post(gateway: GatewayProcess, name: str, text: str) -> str:
    answer = await gateway.call("POST", f"/api/sessions/{name}/messages", json={"text": text})
    return str(answer["turn_id"])


def row(visitor: Visitor, text: str) -> Any:
    return visitor.page.locator("#chats a", has_text=text)


async def test_a_chat_that_asks_is_marked_and_decided_in_the_inbox(quiet: Visitor) -> None:
    """Fault 1 of the trial: such a chat was invisible unless it was open."""
    page = quiet.page
    await post(quiet.gateway, "paint", f"paint the shed {ASK}")
    await row(quiet, "paint the shed").get_by_text("Needs you").wait_for()
    await page.wait_for_function("document.title.startsWith('(1) ')")
    assert (await page.locator("#favicon").get_attribute("href")).startswith("data:image/svg+xml")
    await page.get_by_role("link", name="Inbox").click()
    item = page.locator("#inbox article")
    await item.get_by_text("Which colour?").wait_for()
    assert "expires in 24 h" in await item.inner_text()
    assert await page.title() == "(1) Inbox · Talaria"
    await item.get_by_role("button", name="blue").click()
    await page.get_by_text("Nothing is waiting.").wait_for()
    await page.wait_for_function("!document.title.startsWith('(')")
    await row(quiet, "paint the shed").click()
    await page.locator("#log .decided", has_text="Answered: blue you").wait_for()


async def test_a_decision_made_elsewhere_closes_the_card_in_every_view(quiet: Visitor, visit: Visit) -> None:
    """Fault 10: nothing told what was decided, by whom and when."""
    other = await visit(quiet.gateway)
    await quiet.say(ASK)
    await other.page.goto(f"{other.url}/#chat={await quiet.name()}")
    for one in (quiet, other):
        await one.page.locator("#main section.question").get_by_role("button", name="red").wait_for()
    await other.page.locator("#main section.question").get_by_role("button", name="red").click()
    for one in (quiet, other):
        await one.page.locator("#log .decided", has_text="Answered: red you").wait_for()
        await one.settled()
        assert await one.page.locator("#main").get_by_role("button", name="red").count() == 0


async def test_a_message_from_elsewhere_appears_without_being_asked_for(quiet: Visitor) -> None:
    """Fault 3: it took up to 11 seconds. The clock of the page stands still here."""
    page = quiet.page
    await quiet.say("mine")
    await quiet.sees("You said: mine")
    await quiet.settled()
    await page.clock.install()
    await post(quiet.gateway, await quiet.name(), "[[chunks 20]][[chunk-delay 0.05]][[words 40]] theirs")
    await page.locator("#live").get_by_text("word1 word2").wait_for()
    await page.locator("#log .person", has_text="theirs").wait_for()


async def test_a_turn_that_runs_counts_from_when_it_was_accepted(quiet: Visitor) -> None:
    """Fault 2: it counted from when the page was opened."""
    turn = await post(quiet.gateway, "long", "[[delay 30]] a long one")
    await row(quiet, "a long one").get_by_text("Running").wait_for()
    accepted = (await quiet.gateway.call("GET", f"/api/turns/{turn}"))["accepted_at"]
    await quiet.page.clock.install(time=accepted + 70)
    await row(quiet, "a long one").click()
    await quiet.page.locator("#live .state[data-passed='1 min']").wait_for(state="attached")
    await quiet.gateway.call("POST", f"/api/turns/{turn}/cancel")
    await quiet.settled()


async def test_a_failed_turn_of_another_chat_is_marked_until_it_is_read(quiet: Visitor) -> None:
    await post(quiet.gateway, "broken", "[[status 400]] will fail")
    await row(quiet, "will fail").get_by_text("Failed").wait_for()
    await row(quiet, "will fail").click()
    await quiet.page.locator("#log .error").wait_for()
    await row(quiet, "will fail").get_by_text("Failed").wait_for(state="detached")


async def test_a_new_title_is_told_to_every_page(quiet: Visitor, visit: Visit) -> None:
    other = await visit(quiet.gateway)
    await quiet.say("hello")
    await quiet.sees("You said: hello")
    await quiet.settled()
    await quiet.page.get_by_role("button", name="Rename this chat").click()
    await quiet.page.get_by_role("textbox", name="Title").fill("Trip to Lisbon")
    await quiet.page.keyboard.press("Enter")
    for one in (quiet, other):
        await row(one, "Trip to Lisbon").wait_for()
    assert await quiet.page.locator("#title").inner_text() == "Trip to Lisbon"


async def test_a_chat_that_is_deleted_elsewhere_leaves_the_page(quiet: Visitor) -> None:
    await quiet.say("soon gone")
    await quiet.sees("You said: soon gone")
    await quiet.settled()
    name = await quiet.name()
    await quiet.gateway.call("DELETE", f"/api/sessions/{name}")
    await row(quiet, "soon gone").wait_for(state="detached")
    assert await quiet.name() != name


async def test_one_tab_listens_for_all_tabs_and_another_takes_over(quiet: Visitor) -> None:
    """A browser opens six connections to a host, so tabs that each listen would stop all requests."""
    tabs = [quiet]
    await quiet.gateway.say("older", "an older chat")
    for _ in range(7):
        tab = await Visitor.of(quiet.page.context, quiet.gateway)
        await tab.page.goto(quiet.url)
        await tab.page.locator("#app").wait_for()
        tabs.append(tab)
    assert sum(request.endswith("/api/events") for tab in tabs for request in tab.requests) == 1
    await post(quiet.gateway, "all", "to all tabs")
    for tab in tabs:
        await row(tab, "an older chat").wait_for()
        await row(tab, "to all tabs").wait_for()
    await quiet.page.close()
    await post(quiet.gateway, "rest", "to the rest")
    for tab in tabs[1:]:
        await row(tab, "to the rest").wait_for()
        await tab.page.close()


async def test_a_long_chat_opens_at_its_end_and_is_read_backwards(quiet: Visitor) -> None:
    for number in range(60):
        await quiet.gateway.say("long", f"message {number}")
    quiet.requests.clear()
    await row(quiet, "message").first.click()
    await quiet.sees("You said: message 59")
    assert not await quiet.page.locator("#log").get_by_text("You said: message 3", exact=True).count()
    read = [request for request in quiet.requests if "/entries" in request]
    assert len(read) == 1 and "limit=100" in read[0]
    await quiet.page.get_by_role("button", name="Earlier messages").click()
    await quiet.page.locator("#log").get_by_text("You said: message 3", exact=True).wait_for()
    said = await quiet.page.locator("#log .agent .words").all_text_contents()
    assert said == [f"You said: message {number}" for number in range(60)]
    assert await quiet.page.get_by_role("button", name="Earlier messages").count() == 0


async def test_a_log_that_is_being_read_is_not_read_twice(quiet: Visitor) -> None:
    page, held = quiet.page, asyncio.Event()
    await quiet.gateway.say("one", "hello")
    await row(quiet, "hello").wait_for()
    await quiet.at_rest()

    async def hold(route: Any) -> None:
        answer = await route.fetch()
        await held.wait()
        await route.fulfill(response=answer)

    await page.route("**/entries?*", hold)
    quiet.requests.clear()
    await row(quiet, "hello").click()
    async with page.expect_response("**/api/sessions/ses_*/entries?*"):
        await quiet.gateway.call("PATCH", "/api/sessions/one", json={"title": "Told meanwhile"})
        await row(quiet, "Told meanwhile").wait_for()
        held.set()
    await quiet.sees("You said: hello", "#log .agent")
    await quiet.at_rest()
    assert sum("/entries" in request for request in quiet.requests) == 1


async def test_the_story_of_a_turn_has_its_steps_tokens_and_times(quiet: Visitor) -> None:
    call = json.dumps({"path": "a.txt", "content": "hi"})
    await quiet.say(f'[[call write_file {call}]][[call read_file {{"path":"a.txt"}}]][[reply Done.]]')
    await quiet.sees("Done.", "#log .agent")
    await quiet.settled()
    steps = quiet.page.locator("#log .steps > summary")
    assert (await steps.inner_text()).startswith("2 steps · ")
    await quiet.page.locator("#log .sum").get_by_role("button", name="Details").click()
    story = quiet.page.get_by_role("complementary", name="What happened")
    await story.get_by_text("Done: “Done.”").wait_for()
    names = await story.locator(".bars .name").all_inner_texts()
    assert names == ["scripted", "write_file", "scripted", "read_file", "scripted"]
    assert await story.locator("tbody tr").count() == 3
    await quiet.page.keyboard.press("Escape")
    await story.wait_for(state="detached")


async def test_the_inbox_lists_replies_that_failed_and_resumes_paused_jobs(quiet: Visitor) -> None:
    page = quiet.page
    job = {"text": "What changed?", "when": "every weekday at 9", "name": "news"}
    saved = await quiet.gateway.call("POST", "/api/jobs", json=job)
    await quiet.gateway.call("PATCH", f"/api/jobs/{saved['id']}", json={"state": "paused"})
    reply = {
        "id": 7, "channel": "telegram", "state": "failed", "written_at": 1.0, "attempts": 3,
        "text": "Lunch is ready.", "error": "The chat was not found.", "turn_id": "turn_1",
    }  # fmt: skip

    async def add_a_reply(route: Any) -> None:
        answer = await route.fetch()
        await route.fulfill(json=await answer.json() | {"replies": [reply]})

    await page.route("**/api/inbox?*", add_a_reply)
    await page.get_by_role("link", name="Inbox").click()
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    failed = page.locator("#inbox article", has_text="Lunch is ready.")
    await failed.get_by_text("The chat was not found.").wait_for()
    assert "Delivery failed" in await failed.inner_text() and "3 attempts" in await failed.inner_text()
    paused = page.locator("#inbox article", has_text="news")
    await paused.get_by_text("Paused", exact=True).wait_for()
    await paused.get_by_role("button", name="Resume").click()
    await paused.wait_for(state="detached")
    assert (await quiet.gateway.call("GET", f"/api/jobs/{saved['id']}"))["state"] == "active"
    await page.unroute_all()


async def test_a_chat_is_saved_as_markdown_and_as_json(quiet: Visitor) -> None:
    page = quiet.page
    await quiet.say("hello")
    await quiet.sees("You said: hello")
    await quiet.settled()
    saved = {}
    for kind in ("Markdown", "JSON"):
        await page.get_by_role("button", name="Export this chat").click()
        async with page.expect_download() as got:
            await page.get_by_role("dialog").get_by_role("button", name=kind).click()
        file = await got.value
        saved[file.suggested_filename] = Path(await file.path()).read_text()
    assert "**Assistant**" in saved["hello.md"]
    assert "You said: hello" in saved["hello.md"]
    kinds = [entry["body"]["type"] for entry in json.loads(saved["hello.json"])["entries"]]
    assert kinds == ["spec", "user", "assistant"]


async def test_another_model_is_chosen_from_a_list(quiet: Visitor) -> None:
    page = quiet.page
    await quiet.say("hello")
    await quiet.sees("You said: hello")
    await quiet.settled()
    await page.get_by_role("button", name="Choose the model").click()
    dialog = page.get_by_role("dialog", name="Model of this chat")
    await dialog.get_by_role("button", name="scripted/scripted").wait_for()
    await dialog.get_by_role("searchbox").fill("nothing like this")
    await dialog.get_by_text("No model has this name.").wait_for()
    await dialog.get_by_role("searchbox").fill("scripted")
    async with page.expect_request("**/messages") as sent:
        await page.keyboard.press("Enter")
    assert (await sent.value).post_data_json["text"] == "/model scripted/scripted"
    await quiet.settled()
