"""Small screens and keyboards: everything can be reached, and nothing sticks out."""

from __future__ import annotations

from browser.visitor import Visit, Visitor

NARROW = {"width": 390, "height": 844}


async def focused(visitor: Visitor) -> str:
    found: str = await visitor.page.evaluate("document.activeElement.id || document.activeElement.tagName")
    return found


async def test_on_a_narrow_screen_the_list_is_a_drawer(visit: Visit) -> None:
    visitor = await visit(viewport=NARROW)
    assert "Ctrl" not in await visitor.page.locator("#empty").inner_text()
    await visitor.say("a chat with " + "averylongword" * 12)
    await visitor.sees("You said: a chat with")
    assert await visitor.page.evaluate("document.scrollingElement.scrollWidth") == 390
    assert not await visitor.page.locator("#side").is_visible()
    await visitor.page.get_by_role("button", name="Chats").click()
    await visitor.page.locator("#side").wait_for()
    assert await focused(visitor) == "new"
    await visitor.page.keyboard.press("Escape")
    await visitor.page.locator("#side").wait_for(state="hidden")
    assert await focused(visitor) == "menu"
    await visitor.page.keyboard.press("Enter")
    await visitor.page.locator("#chats a", has_text="a chat with").click()
    await visitor.page.locator("#side").wait_for(state="hidden")


async def test_on_a_narrow_screen_no_dialog_sticks_out(visit: Visit) -> None:
    visitor = await visit(viewport=NARROW)
    wider = await visitor.page.evaluate("""() => [...document.querySelectorAll("dialog")].filter((dialog) => {
      dialog.showModal();
      const { right } = dialog.getBoundingClientRect();
      const isWider = dialog.scrollWidth > dialog.clientWidth || right > innerWidth;
      dialog.close();
      return isWider;
    }).map(({ id }) => id)""")
    assert wider == []


async def test_the_keyboard_alone_is_enough(visitor: Visitor) -> None:
    assert await focused(visitor) == "text"
    await visitor.page.keyboard.type("one")
    await visitor.page.keyboard.press("Shift+Enter")
    await visitor.page.keyboard.type('two [[call write_file {"path":"a","content":"b"}]]')
    await visitor.page.keyboard.press("Enter")
    await visitor.settled()
    await visitor.sees("Tool results: Wrote 1 byte")
    assert (await visitor.conversation())[0].startswith("one two")
    order = []
    for _ in range(90):
        await visitor.page.keyboard.press("Tab")
        order.append(await focused(visitor))
        if order[-1] == "SUMMARY":
            await visitor.page.keyboard.press("Enter")
            await visitor.page.locator("details[open] .result").wait_for()
        if order[-1] == "text":
            break
    assert [stop for stop in order if stop in ("send", "skip", "new", "logout", "SUMMARY", "attach")] == [
        "send", "skip", "new", "logout", "SUMMARY", "attach",
    ]  # fmt: skip
    await visitor.page.keyboard.press("Shift+Tab")
    assert await focused(visitor) == "attach"


async def test_everything_has_a_name_for_who_cannot_see_it(visitor: Visitor) -> None:
    nameless = await visitor.page.evaluate("""() => [...document.querySelectorAll("button, textarea, input")]
      .filter((node) => !(node.ariaLabel || node.textContent.trim() || node.labels?.length || node.hidden))
      .map((node) => node.outerHTML)""")
    assert nameless == []
    assert await visitor.page.locator("#said").get_attribute("aria-live") == "polite"
