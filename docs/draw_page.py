"""Draws the pictures of docs/web.md: the page in Chromium with a gateway and a scripted model.

`./dev pictures` runs it after the pictures of the terminal.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser.visitor import Visitor
from support.gateway import running_gateway
from support.programs import find_program

FOLDER = Path(__file__).parent / "pictures"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
ANSWER = """The import fails at an empty line: `parse()` does not expect one. I changed one function.

1. `reader.py` skips empty lines
2. a test covers it

```python
def parse(line: str) -> Row | None:
    if not line.strip():
        return None
    return Row(*line.split(","))
```
"""
OLD = "def parse(line):\n    return Row(*line.split(','))"
NEW = "def parse(line):\n    if not line.strip():\n        return None\n    return Row(*line.split(','))"


def call(name: str, **arguments: str) -> str:
    return f"[[call {name} {json.dumps(arguments)}]]"


SCRIPT = (
    call("write_file", path="reader.py", content=OLD)
    + call("edit_file", path="reader.py", old=OLD, new=NEW)
    + call("terminal", command="echo 14 passed")
    + f"[[reply {ANSWER}]]"
)
CHATS = {
    "trip": ("Plan a trip to Lisbon", "Three days in May, by train."),
    "travel": ("Travel costs of this year", "How much did I spend on travel?"),
}
WAITING = {
    "garden": (
        "The garden",
        call("ask_user", question="Which bed shall I plant the tomatoes in?"),
    ),
    "digest": ("Weekly digest", "[[delay 60]] Write the digest of this week."),
}


PLAIN = """() => {  // without the focus, and without the words that direct the scripted model
  document.activeElement.blur();
  for (const node of document.querySelectorAll("#chats .last, #inbox .text")) {
    node.textContent = node.textContent.replace(/^\\[\\[.*\\]\\] ?|^\\[\\[.*/, "");
  }
}"""


async def rename(gateway: Any, name: str, title: str) -> None:
    await gateway.call("PATCH", f"/api/sessions/{name}", json={"title": title})


async def draw() -> None:
    async with running_gateway() as (gateway, _), async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_program("chromium"))
        context = await browser.new_context(viewport=WIDE)
        visitor = await Visitor.of(context, gateway)
        page = visitor.page
        await visitor.follow_link(await visitor.new_link())
        for name, (title, text) in CHATS.items():
            await gateway.say(name, text)
            await rename(gateway, name, title)
        for name, (title, text) in WAITING.items():
            await gateway.call("POST", f"/api/sessions/{name}/messages", json={"text": text})
            await rename(gateway, name, title)
        await gateway.call(
            "POST", "/api/jobs", json={"text": "What changed?", "when": "every weekday at 9", "name": "news"}
        )
        await gateway.call("PATCH", "/api/jobs/news", json={"state": "paused"})
        await gateway.say("import", SCRIPT)
        await rename(gateway, "import", "Why does the import of sales.csv fail?")
        await page.evaluate("location.hash = '#chat=import'")
        await page.locator("#log .sum").wait_for()
        await page.locator("#log .person").first.evaluate(
            "(node, said) => { node.querySelector('.bubble p').textContent = said; }",
            "Why does the import of sales.csv fail?",
        )
        await page.locator("#log .steps > summary").click()
        await page.locator("#log .call summary").nth(1).click()
        await page.locator("#chats").get_by_text("Needs you").first.wait_for()

        async def picture(name: str) -> None:
            await page.evaluate(PLAIN)
            await page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")

        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            await picture(f"web-{scheme}")
            await page.set_viewport_size(NARROW)
            await picture(f"web-phone-{scheme}")
            await page.set_viewport_size(WIDE)
        await page.emulate_media(color_scheme="light")
        await page.locator("#log .sum").get_by_role("button", name="Details").click()
        await page.locator("#inspector .story li").first.wait_for()
        await picture("web-inspector")
        await page.goto(f"{visitor.url}/#inbox")
        await page.locator("#inbox article").first.wait_for()
        await picture("web-inbox")
        await browser.close()


if __name__ == "__main__":
    asyncio.run(draw())
