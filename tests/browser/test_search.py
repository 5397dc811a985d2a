"""Searching all conversations from the page: excerpts and dates, keys, and the jump to the place."""

from __future__ import annotations

import pytest_asyncio

from browser.visitor import Visit, Visitor
from talaria.testing.gateway_process import GatewayProcess

HARBOUR = "The harbour master said that the ferry to Hjelmvik leaves at six in the morning."


async def talk(gateway: GatewayProcess, name: str, *texts: str) -> None:
    """Say something in a chat by another client."""
    for text in texts:
        await gateway.say(name, text)


async def find(visitor: Visitor, words: str) -> None:
    await visitor.page.locator("#find").fill(words)
    await visitor.page.locator(f"#found[data-words='{words}'] li").first.wait_for()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def harbour(gateway: GatewayProcess) -> None:
    """A chat in which the harbour stands far above the end."""
    filler = [f"[[reply Line {number}.\n\nAnd more of it.]] question {number}" for number in range(12)]
    said = f"[[reply I have noted the ferry.]] {HARBOUR}"
    await talk(gateway, "harbour", filler[0], said, *filler[1:])


async def test_a_hit_leads_to_its_place_in_the_conversation(visitor: Visitor, harbour: None) -> None:
    await find(visitor, "ferry hjelmvik")
    hit = visitor.page.locator("#found li").first
    text = " ".join((await hit.text_content() or "").split())
    assert "You: " in text and "ferry to Hjelmvik leaves" in text
    assert set(await hit.locator("mark").all_text_contents()) == {"ferry", "Hjelmvik"}
    assert await hit.locator("time").get_attribute("datetime")
    assert not await visitor.page.locator("#chats").is_visible()
    await hit.locator("a").click()
    pointed = visitor.page.locator("#log .pointed")
    await pointed.get_by_text("harbour master").wait_for()
    await visitor.page.wait_for_url("**/#chat=harbour&at=*")
    assert await pointed.evaluate("node => node === document.activeElement")
    box, view = await pointed.bounding_box(), await visitor.page.locator("#scroll").bounding_box()
    assert box and view and view["y"] <= box["y"] < view["y"] + view["height"]
    below = "(it) => it.scrollHeight - it.scrollTop - it.clientHeight"
    assert await visitor.page.locator("#scroll").evaluate(below) > 100
    assert await visitor.page.locator("#find").input_value() == "ferry hjelmvik"


async def test_keys_lead_from_the_field_through_the_hits_and_back(visitor: Visitor, harbour: None) -> None:
    page = visitor.page
    await page.locator("#new").focus()
    await page.keyboard.press("/")
    assert await page.locator("#find").evaluate("node => node === document.activeElement")
    await page.keyboard.type("harbour master")
    await page.locator("#found[data-words='harbour master'] li").first.wait_for()
    await page.keyboard.press("ArrowDown")
    first = page.locator("#found a").first
    assert await first.evaluate("node => node === document.activeElement")
    await page.keyboard.press("ArrowUp")
    assert await page.locator("#find").evaluate("node => node === document.activeElement")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/#chat=harbour&at=*")
    await page.locator("#log .pointed").get_by_text("harbour master").wait_for()
    await visitor.at_rest()
    await page.locator("#find").focus()
    await page.keyboard.press("Escape")
    assert await page.locator("#find").input_value() == ""
    assert await page.locator("#chats").is_visible()


async def test_the_list_of_chats_comes_back_with_a_click(visitor: Visitor, harbour: None) -> None:
    page = visitor.page
    for button in ("Chats", "New chat"):
        await find(visitor, "harbour master")
        assert not await page.locator("#chats").is_visible()
        await page.get_by_role("button", name=button, exact=True).click()
        await page.locator("#chats").wait_for()
        assert await page.locator("#find").input_value() == ""


async def test_nothing_found_is_said_and_a_bad_query_too(visitor: Visitor) -> None:
    await visitor.page.locator("#find").fill("zyxwvut qqqq")
    await visitor.sees("Nothing was found.", "#found-note")
    await visitor.page.locator("#find").fill("?!")
    await visitor.sees("The query has no words", "#found-note")
    await visitor.page.locator("#find").fill("")
    await visitor.page.locator("#chats").wait_for()


async def test_what_was_found_cannot_run_on_the_page(visitor: Visitor) -> None:
    evil = '<img src=x onerror="document.title = 1">'
    await talk(visitor.gateway, "evil", f"{evil} marzipan <mark>x</mark> [x](javascript:1)")
    await find(visitor, "marzipan <img")
    assert not await visitor.page.locator("#found img").count()
    assert evil in (await visitor.page.locator("#found").text_content() or "")


async def test_a_result_of_a_tool_is_shown_by_its_call(visitor: Visitor) -> None:
    text = '[[call write_file {"path":"a.txt","content":"quince jelly"}]][[reply Written.]] please'
    await talk(visitor.gateway, "tool", text, '[[call read_file {"path":"a.txt"}]][[reply Read.]] again')
    await find(visitor, "quince jelly")
    hits = visitor.page.locator("#found li")
    by_tool = hits.filter(has_text="read_file:")
    await by_tool.first.locator("a").click()
    await visitor.page.locator("#log .pointed details[open] .result").wait_for()


async def test_on_a_narrow_screen_the_drawer_holds_the_search(
    visit: Visit, visitor: Visitor, harbour: None
) -> None:
    narrow = await visit(viewport={"width": 390, "height": 740})
    await narrow.page.locator("#menu").click()
    await find(narrow, "harbour master")
    await narrow.page.keyboard.press("Enter")
    await narrow.page.locator("#log .pointed").get_by_text("harbour master").wait_for()
    await narrow.page.locator("#side").wait_for(state="hidden")


async def test_more_hits_come_by_pages(visitor: Visitor) -> None:
    for number in range(25):
        await talk(visitor.gateway, f"many-{number}", f"[[reply fine]] marmalade recipe number {number}")
    await find(visitor, "marmalade")
    assert await visitor.page.locator("#found li").count() == 20
    await visitor.page.locator("#found-more").click()
    await visitor.page.locator("#found li").nth(24).wait_for()
    assert not await visitor.page.locator("#found-more").count()
