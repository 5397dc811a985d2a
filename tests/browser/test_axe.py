"""axe-core looks at every state of the page: wide and narrow, light and dark. It finds no serious fault."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from browser.visitor import Visit, Visitor

FOUND = find_spec("axe_playwright_python")
AXE = Path(FOUND.origin or "").parent / "axe.min.js" if FOUND else None
pytestmark = pytest.mark.skipif(AXE is None, reason="axe-playwright-python is not installed")
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
CHECK = """async (rules) => {
  const found = await axe.run(document, {
    resultTypes: ["violations"], runOnly: rules ? { type: "rule", values: rules } : undefined,
  });
  return found.violations.flatMap(({ id, impact, nodes }) =>
    nodes.map((node) => `${impact} ${id}: ${node.target} ${node.html.slice(0, 120)}`));
}"""
RICH = (
    "# Head\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n- [x] done\n- [ ] open\n\n> said `code` [link](https://example.org)"
    "\n\n```py\ndef f(x):  # why\n    return 'text' + str(1)\n```"
)
STEPS = (
    '[[think first]][[call write_file {"path":"a.txt","content":"one"}]]'
    '[[call edit_file {"path":"a.txt","old":"one","new":"two"}]]'
    '[[call send_file {"path":"a.txt"}]][[call read_file {"path":"none"}]]'
)


class Checked:
    """Runs axe in each state; with `colours` also in the dark and on a narrow screen."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor, self.page = visitor, visitor.page
        self.faults: dict[str, list[str]] = {}

    async def look(self, state: str, *, colours: bool = False) -> None:
        await self.visitor.at_rest()
        await self._run(state, None)
        if not colours:
            return
        await self.page.emulate_media(color_scheme="dark")
        await self._run(f"{state}, dark", ["color-contrast"])
        await self.page.set_viewport_size(NARROW)
        await self._run(f"{state}, dark, narrow", ["color-contrast", "scrollable-region-focusable"])
        await self.page.emulate_media(color_scheme="light")
        await self.page.set_viewport_size(WIDE)

    async def _run(self, state: str, rules: list[str] | None) -> None:
        if not await self.page.evaluate("'axe' in window"):
            assert AXE is not None
            await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate(CHECK, rules)
        serious = [each for each in found if each.startswith(("serious", "critical"))]
        if serious:
            self.faults[state] = serious

    async def close_dialog(self) -> None:
        await self.page.keyboard.press("Escape")
        await self.page.locator("dialog[open]").wait_for(state="hidden")


async def test_no_state_has_a_serious_fault(visit: Visit) -> None:
    visitor = await visit(logged_in=False)
    page, checked = visitor.page, Checked(visitor)
    await visitor.follow_link(visitor.url)
    await checked.look("login", colours=True)
    await visitor.follow_link(await visitor.new_link())
    await page.locator("#chats[aria-busy=false]").wait_for(state="attached")
    await checked.look("a new chat")
    await visitor.say(f"{STEPS}[[reply {RICH}]]")
    await page.locator("#log .sum").wait_for()
    await visitor.settled()
    await page.locator("#log .steps > summary").click()
    for summary in await page.locator("#log .steps details > summary").all():
        await summary.click()
    await checked.look("a conversation", colours=True)
    await page.locator("#log .sum").get_by_role("button", name="Details").click()
    await page.locator("#inspector .story li").first.wait_for()
    await checked.look("the inspector", colours=True)
    await page.keyboard.press("Escape")
    await _dialogs(checked)
    await page.locator("#text").fill("/re")
    await page.locator("#completions li").first.wait_for()
    await page.keyboard.press("ArrowDown")
    await checked.look("completion", colours=True)
    await page.locator("#text").fill("")
    await _turns(checked)
    await page.evaluate("location.hash = '#chat=ses_nothing'")
    await visitor.sees("There is no such chat.", "#elsewhere")
    await checked.look("no such chat")
    await page.goto(f"{visitor.url}/assets/calls.html")
    await page.locator("#calls details").first.wait_for()
    await page.locator("#calls details summary").first.click()
    await checked.look("calls")
    assert checked.faults == {}, json.dumps(checked.faults, indent=1)


async def _dialogs(checked: Checked) -> None:
    page = checked.page
    job: dict[str, Any] = {"text": "What changed?", "when": "every weekday at 9", "name": "axe"}
    await checked.visitor.gateway.call("POST", "/api/jobs", json=job)
    for name, ready in (
        ("Jobs", "#jobs .job"),
        ("Memory", "#memory textarea"),
        ("Choose the model", "#models-list button"),
        ("Files of this chat", "#sent figure"),
        ("Export this chat", "#exporting[open]"),
        ("Rename this chat", "#renaming[open]"),
        ("Delete this chat", "#deletion[open]"),
    ):
        await page.get_by_role("button", name=name, exact=True).click()
        await page.locator(ready).first.wait_for()
        await checked.look(name, colours=name == "Jobs")
        await checked.close_dialog()
    await page.keyboard.press("Control+k")
    await page.locator("#palette[open]").wait_for()
    await checked.look("the palette")
    await checked.close_dialog()
    await checked.visitor.gateway.call("DELETE", "/api/jobs/axe")


async def _turns(checked: Checked) -> None:
    page, visitor = checked.page, checked.visitor
    await visitor.say("[[status 400]]")
    await page.locator("#log .error").wait_for()
    await visitor.settled()
    await checked.look("a failure")
    await visitor.say('[[call ask_user {"question":"Which?","choices":["red","blue"]}]]')
    await page.locator("section.question button").first.wait_for()
    await visitor.say("/queue a message that waits")
    await page.locator("#waiting .person").wait_for()
    await checked.look("a question and a waiting message", colours=True)
    await page.get_by_role("link", name="Inbox").click()
    await page.locator("#inbox article").first.wait_for()
    await checked.look("the inbox", colours=True)
    await page.go_back()
    await page.get_by_role("button", name="red").click()
    await visitor.settled()
