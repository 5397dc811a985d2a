"""What people know from other chats: completion, editing, pins, a palette, files, and formatted text."""

from __future__ import annotations

from pathlib import Path

from browser.visitor import Visitor


async def said(visitor: Visitor, *texts: str) -> None:
    for text in texts:
        await visitor.say(text)
        await visitor.sees(f"You said: {text}", "#log .agent")
        await visitor.settled()


async def test_commands_complete_by_keys(visitor: Visitor) -> None:
    page, rows = visitor.page, visitor.page.locator("#completions [role=option]")
    await page.locator("#text").focus()
    await page.keyboard.type("/re")
    await rows.first.wait_for()
    names = await rows.locator("code").all_inner_texts()
    assert {"/resume", "/reasoning", "/retry"} <= set(names)
    await page.keyboard.press("ArrowDown")
    chosen = await page.locator("#text").get_attribute("aria-activedescendant")
    assert await page.locator(f"#{chosen}[aria-selected=true] code").inner_text() == names[0]
    await page.keyboard.press("Enter")
    await visitor.has_written(f"{names[0]} ")
    await page.locator("#text").fill("")
    await page.keyboard.type("/wh")
    await rows.first.wait_for()
    await page.keyboard.press("Escape")
    await page.locator("#completions").wait_for(state="hidden")
    await visitor.has_written("/wh")
    await page.locator("#text").fill("")


async def test_the_arrows_bring_earlier_messages_back(visitor: Visitor) -> None:
    page = visitor.page
    await said(visitor, "first", "second")
    await page.locator("#text").focus()
    for key, text in (
        ("ArrowUp", "second"),
        ("ArrowUp", "first"),
        ("ArrowUp", "first"),
        ("ArrowDown", "second"),
        ("ArrowDown", ""),
    ):
        await page.keyboard.press(key)
        await visitor.has_written(text)
    await page.keyboard.type("own words")
    await page.keyboard.press("ArrowUp")
    await visitor.has_written("own words")
    await page.locator("#text").fill("")


async def test_an_edited_message_goes_to_a_copy_and_the_first_one_stays(visitor: Visitor) -> None:
    page = visitor.page
    await said(visitor, "one", "two")
    first = (await visitor.gateway.call("GET", f"/api/sessions/{await visitor.name()}"))["id"]
    await page.locator("#text").fill("a draft")
    await page.locator("#log .person", has_text="two").hover()
    edit = page.locator("#log .person", has_text="two").get_by_role("button", name="Edit")
    await edit.click()
    await visitor.has_written("two")
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await visitor.has_written("a draft")
    await edit.click()
    await visitor.say("two, but better")
    await visitor.sees("You said: two, but better", "#log .agent")
    await visitor.settled()
    assert await page.locator("#editing").is_hidden()
    for _ in ("as it was said", "from the log"):
        await visitor.sees("This is a copy. The first conversation is in the list of chats.", "#log")
        assert not await page.locator("#log").get_by_text("/branch").count()
        await page.reload()
    kept = [body["text"] for body in await visitor.entries() if body["type"] == "assistant"]
    assert kept == ["You said: one", "You said: two, but better"]
    log = await visitor.gateway.call("GET", f"/api/sessions/{first}/entries?limit=500")
    answers = [entry["body"]["text"] for entry in log["entries"] if entry["body"]["type"] == "assistant"]
    assert answers == ["You said: one", "You said: two"]


async def test_a_chat_is_pinned_and_archived(visitor: Visitor) -> None:
    page = visitor.page
    await said(visitor, "keep me at the top")
    section = page.locator("#chats .section", has=page.locator("a", has_text="keep me at the top"))
    await page.get_by_role("button", name="Pin this chat", exact=True).click()
    await section.locator("h2", has_text="Pinned").wait_for()
    await page.get_by_role("button", name="Unpin this chat").wait_for()
    await page.get_by_role("button", name="Archive this chat", exact=True).click()
    await section.locator("summary", has_text="Archived").wait_for(state="attached")
    await page.get_by_role("button", name="Unarchive this chat").click()
    await section.locator("h2", has_text="Today").wait_for()


async def test_the_palette_finds_actions_chats_and_words(visitor: Visitor) -> None:
    page = visitor.page
    await said(visitor, "about quinces")
    name = await visitor.name()
    await page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Actions and chats")
    await palette.get_by_role("option", name="Rename this chat").wait_for()
    await page.keyboard.type("new ch")
    await page.keyboard.press("Enter")
    await palette.wait_for(state="hidden")
    await page.wait_for_function("(name) => !location.hash.endsWith(name)", arg=name)
    await page.keyboard.press("Control+k")
    await page.keyboard.type("quinces")
    await palette.get_by_role("option", name="about quinces Chat").click()
    await page.wait_for_function("(name) => location.hash.endsWith(name)", arg=name)
    await page.keyboard.press("Control+k")
    await page.keyboard.type("quinces")
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Enter")
    await page.locator("#found[data-words=quinces]").wait_for(state="attached")
    await page.keyboard.press("Escape")


async def test_reasoning_is_chosen_and_the_window_is_measured(visitor: Visitor) -> None:
    page = visitor.page
    await said(visitor, "hello")
    meter = page.get_by_role("meter", name="Context window")
    await meter.wait_for()
    assert "tokens" in str(await meter.get_attribute("title"))
    await page.get_by_role("button", name="Choose the model").click()
    await page.get_by_label("Reasoning").select_option("high")
    await visitor.sees("Reasoning is high for this session")
    await visitor.settled()
    await page.get_by_role("button", name="Choose the model").click()
    await page.get_by_role("dialog").wait_for()  # its content is there before it is opened again
    assert await page.get_by_label("Reasoning").input_value() == "high"
    await page.keyboard.press("Escape")


async def test_a_chat_is_saved_as_a_page_that_runs_nothing(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.say("[[reply <img src=x onerror=alert(1)> **hello**]]")
    await visitor.sees("<img src=x", "#log .agent")
    await visitor.settled()
    await page.get_by_role("button", name="Export this chat").click()
    async with page.expect_download() as got:
        await page.get_by_role("dialog").get_by_role("button", name="HTML").click()
    text = Path(await (await got.value).path()).read_text()
    assert "&lt;img src=x" in text
    assert "<img" not in text
    assert "<button" not in text
    assert "<strong>hello</strong>" in text
    assert "default-src 'none'" in text


async def test_sent_files_are_listed_in_one_place(visitor: Visitor) -> None:
    page = visitor.page
    write = '[[call write_file {"path":"a.txt","content":"hi"}]]'
    await visitor.say(f'{write}[[call send_file {{"path":"a.txt"}}]][[reply Sent.]]')
    await visitor.sees("Sent.", "#log .agent")
    await visitor.settled()
    await page.get_by_role("button", name="Files of this chat").click()
    await page.locator("#sent").get_by_role("button", name="Download a.txt").wait_for()
    await page.keyboard.press("Escape")


async def test_tables_are_aligned_tasks_are_marked_and_closed_code_has_colours(visitor: Visitor) -> None:
    text = (
        "| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |\n\n- [x] done\n- [ ] open\n\n"
        "مرحبا بالعالم\n\n```py\ndef f():  # why\n    return 'x' + str(1)\n```"
    )
    await visitor.say(f"[[reply {text}]]")
    words = visitor.page.locator("#log .words")
    await words.locator(".code-comment").wait_for()
    shown = await words.evaluate(
        """(node) => [[...node.querySelectorAll("tbody td")].map((cell) => getComputedStyle(cell).textAlign),
          [...node.querySelectorAll("li.task")].map((item) => item.innerText.trim()),
          getComputedStyle([...node.children].find((each) => each.tagName === "P")).direction,
          [...node.querySelectorAll("pre [class]")].map((each) => each.textContent),
          node.querySelector("pre").textContent]"""
    )
    assert shown[0][1:] == ["center", "right"]
    assert shown[1:] == [
        ["☑ done", "☐ open"],
        "rtl",
        ["def", "# why", "return", "'x'", "1"],
        "def f():  # why\n    return 'x' + str(1)",
    ]
