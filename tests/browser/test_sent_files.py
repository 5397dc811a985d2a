"""Files that the agent sends: a card with a preview and a download, and nothing in them becomes a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from browser.visitor import Visitor
from support.pictures import png

EVIL = "<!doctype html><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"


async def send(visitor: Visitor, name: str, content: str) -> Any:
    """Let the agent write a file and send it. Returns its card."""
    write = json.dumps({"path": name, "content": content})
    sent = json.dumps({"path": name})
    await visitor.say(f"[[call write_file {write}]][[call send_file {sent}]][[reply Here is {name}.]]")
    await visitor.sees(f"Here is {name}.", "#log .agent")
    await visitor.settled()
    return visitor.page.locator("#log figure.sent", has_text=name)


async def download(visitor: Visitor, card: Any) -> tuple[str, bytes]:
    async with visitor.page.expect_download() as got:
        await card.get_by_role("button").click()
    file = await got.value
    return file.suggested_filename, Path(await file.path()).read_bytes()


async def test_a_text_is_shown_from_its_beginning_and_can_be_downloaded(visitor: Visitor) -> None:
    content = "".join(f"row {number}\n" for number in range(400))
    card = await send(visitor, "rows.csv", content)
    await card.locator("pre").wait_for()
    assert (await visitor.page.locator("#said").inner_text()).endswith("File: rows.csv")
    shown = await card.locator("pre").inner_text()
    assert shown.startswith("row 0\nrow 1\n")
    assert shown.endswith("row 11\n…")
    assert await download(visitor, card) == ("rows.csv", content.encode())
    before = await visitor.page.locator("#log > *").all_text_contents()
    await visitor.page.reload()
    await card.locator("pre").wait_for()
    assert await visitor.page.locator("#log > *").all_text_contents() == before


async def test_a_picture_is_shown(visitor: Visitor) -> None:
    await visitor.page.locator("#file").set_input_files(
        [{"name": "dot.png", "mimeType": "image/png", "buffer": png()}]
    )
    await visitor.page.get_by_role("button", name="Remove dot.png").wait_for()
    await visitor.say("keep it")
    await visitor.sees("You said: keep it")
    await visitor.settled()
    parts = next(body["parts"] for body in await visitor.entries() if body["type"] == "user")
    path = json.dumps({"path": next(part["path"] for part in parts if part["type"] == "file")})
    await visitor.say(f"[[call send_file {path}]][[reply Back.]]")
    await visitor.sees("Back.", "#log .agent")
    picture = visitor.page.get_by_role("img", name=re.compile("^Preview of .*dot.png$"))
    await picture.wait_for()
    assert await picture.evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == [1, 1]


async def test_a_page_or_script_is_a_card_without_a_preview(visitor: Visitor) -> None:
    for name in ("evil.html", "evil.svg"):
        card = await send(visitor, name, EVIL)
        assert await card.locator("pre, img, iframe").count() == 0
        assert await download(visitor, card) == (name, EVIL.encode())
    card = await send(visitor, "evil.txt", EVIL)  # shown as text
    await card.locator("pre").get_by_text("<!doctype html>").wait_for()
    assert "run" not in await visitor.page.title()


async def test_a_file_that_is_gone_says_so(visitor: Visitor) -> None:
    card = await send(visitor, "gone.bin", "x")
    error = {"type": "not_found", "message": "There is no such file.", "hint": "It was deleted."}
    await visitor.page.route("**/api/files/*", lambda route: route.fulfill(status=404, json={"error": error}))
    await card.get_by_role("button", name="Download gone.bin").click()
    await card.get_by_text("There is no such file. It was deleted.").wait_for()
