"""Memory on the page: it is read and edited in a dialog, and what somebody else wrote is not overwritten."""

from __future__ import annotations

import asyncio
from typing import Any

from browser.visitor import Visitor


async def test_memory_is_read_edited_and_never_overwritten_unseen(visitor: Visitor) -> None:
    await visitor.say("/memory add Has a cat.")
    await visitor.sees("MEMORY.md was changed:")
    await visitor.settled()
    page = visitor.page
    await page.get_by_role("button", name="Memory").click()
    dialog = page.get_by_role("dialog", name="Memory")
    field = dialog.get_by_label("MEMORY.md")
    has_cat = "() => document.getElementById('memory-MEMORY.md')?.value.includes('Has a cat.')"
    await page.wait_for_function(has_cat)
    await field.fill("- Has a dog.")
    await dialog.get_by_role("button", name="Save").click()
    await dialog.wait_for(state="hidden")
    path = visitor.gateway.home / "memory" / "main" / "MEMORY.md"
    assert path.read_text().startswith("- Has a dog.\n")

    await page.get_by_role("button", name="Memory").click()
    has_dog = "() => document.getElementById('memory-MEMORY.md')?.value === '- Has a dog.'"
    await page.wait_for_function(has_dog)
    path.write_text("- By hand.\n")
    await field.fill("- Has a fish.")
    await dialog.get_by_role("button", name="Save").click()
    await visitor.sees("MEMORY.md was changed meanwhile.", "#memory")
    assert path.read_text() == "- By hand.\n"
    assert await field.input_value() == "- Has a fish."
    await page.keyboard.press("Escape")
    await dialog.get_by_text("Your changes are not saved.").wait_for()
    await page.keyboard.press("Escape")
    await dialog.wait_for(state="hidden")


async def test_a_late_answer_does_not_replace_what_was_typed_since(visitor: Visitor) -> None:
    page, first, tries = visitor.page, asyncio.Event(), 0

    async def hold_the_first(route: Any) -> None:
        nonlocal tries
        tries += 1
        answer = await route.fetch()
        if tries == 1:
            await first.wait()
        await route.fulfill(response=answer)

    await page.route("**/api/memory", hold_the_first)
    await page.get_by_role("button", name="Memory").click()
    await page.get_by_role("button", name="Close").click()
    await page.get_by_role("button", name="Memory").click()
    field = page.get_by_role("dialog", name="Memory").locator("textarea").first
    await field.fill("typed by now")
    async with page.expect_event("requestfinished"):
        first.set()
    await visitor.at_rest()
    assert await field.input_value() == "typed by now"
    await page.get_by_role("button", name="Close").click()
    await page.get_by_role("button", name="Close").click()
    await page.locator("#memory").wait_for(state="hidden")
    assert await page.locator("#memory textarea").count() == 0, "old fields would be edited at the next visit"
