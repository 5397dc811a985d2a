"""The browser of a session, in a whole gateway with a real Chromium and a site on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from support.browsed_site import BrowsedSite, browsed_site
from support.gateway import Api, in_process, real_process
from support.programs import needs
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.workspace.browser.browsers import Browser, SessionBrowsers

pytestmark = [needs("chromium"), needs("bwrap"), pytest.mark.asyncio(loop_scope="module")]
LONG = [pytest.mark.long, pytest.mark.timeout(3000)]
TOOLS = {"enabled": ["files", "browser"], "search_above": 1 << 20}


@dataclass
class Browsing:
    """An agent that browses: each call is a message of its own."""

    api: Api
    site: BrowsedSite
    session: str = "web"
    shown: str = ""

    async def call(self, tool: str, **arguments: Any) -> str:
        """Return the result of one call, whatever it is."""
        call = f"[[call browser_{tool} {json.dumps(arguments)}]][[reply ok]]"
        turn = await self.api.say(self.session, call)
        assert turn["state"] == "done", turn
        return await self.last()

    async def last(self) -> str:
        """Return the last result in the log."""
        path = f"/api/sessions/{self.session}/entries?before=999999&limit=5"
        entries = [entry["body"] for entry in (await self.api.get(path))["entries"]]
        results = [body["results"] for body in entries if body["type"] == "tool_results"]
        self.shown = results[-1][-1]["text"]
        return self.shown

    async def last_of(self, arguments: str, tool: str = "type") -> str:
        """Return the result of a call with these arguments, as they stand."""
        turn = await self.api.say(self.session, f"[[call browser_{tool} {arguments}]][[reply ok]]")
        assert turn["state"] == "done", turn
        return await self.last()

    @property
    def browsers(self) -> SessionBrowsers:
        browsers = self.api.gateway.workspaces.browsers
        assert browsers is not None
        return browsers

    @property
    def browser(self) -> Browser:
        return next(slot.browser for slot in self.browsers._slots.values() if slot.browser is not None)

    async def open(self, path: str) -> str:
        return await self.call("open", url=self.site.url + path)

    def element(self, label: str) -> str:
        """Return the name of an element in the last result, by its role and text."""
        return named(self.shown, label)

    async def click(self, label: str, **more: Any) -> str:
        return await self.call("click", element=self.element(label), **more)

    async def type(self, label: str, text: str, **more: Any) -> str:
        return await self.call("type", element=self.element(label), text=text, **more)


def named(shown: str, label: str) -> str:
    found = re.search(rf"{re.escape(label)}.*? (@\d+\.\d+)|(@\d+\.\d+): .*{re.escape(label)}", shown)
    assert found, (label, shown)
    return found[1] or found[2]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browsing]:
    home = tmp_path_factory.mktemp("browsing")
    async with ModelServer(record=False) as model, browsed_site() as site:
        tables = {
            "tools": TOOLS,
            "network": {"allow_private": [f"127.0.0.1:{site.port}"]},
            "browser": {"evaluate": True},
        }
        async with in_process(home, model, tables=tables) as api:
            yield Browsing(api, site)


async def test_a_page_is_shown_as_an_outline(web: Browsing) -> None:
    shown = await web.open("/")
    assert shown.startswith(f"Start\n{web.site.url}/\n")
    assert 'heading "Start" (level 1)' in shown and 'link "Form" @' in shown and "Welcome" not in shown
    assert "Welcome to the shop." in await web.call("read", all=True)
    assert "Welcome" in await web.call("find", text="welcome")


async def test_a_form_is_filled_in_and_sent(web: Browsing) -> None:
    await web.open("/form")
    form = web.shown
    for label, text in (("Name", "Ada Lovelace"), ("Email", "ada@example.org"), ("Note", "No bells")):
        web.shown = form
        await web.type(f'textbox "{label}"', text)
    web.shown = form
    await web.call("select", element=web.element('combobox "Size'), options=["Medium"])
    for label in ('checkbox "Gift', 'radio "Pick up"'):
        web.shown = form
        await web.click(label)
    web.shown = form
    await web.type('date field "Day"', "2026-12-24")
    web.shown = form
    assert "Thank you, Ada Lovelace" in await web.click('button "Order now"')
    assert web.site.orders[-1] == {
        "name": "Ada Lovelace", "email": "ada@example.org", "size": "Medium", "gift": "on", "ship": "pickup",
        "day": "2026-12-24", "note": "No bells",
    }  # fmt: skip


async def test_enter_sends_a_search(web: Browsing) -> None:
    await web.open("/search")
    assert "Results for red shoes" in await web.type("searchbox", "red shoes", submit=True)


async def test_options_sliders_colours_and_texts_are_set(web: Browsing) -> None:
    await web.open("/form")
    size = web.element('combobox "Size')
    assert "Small | Medium | Large" in await web.call("select", element=size, options=["Huge"])
    rich = await web.open("/rich")
    assert 'textbox "Text"' in rich
    assert '= "Some words"' in await web.type('textbox "Text"', "Some words")
    web.shown = rich
    assert '= "7"' in await web.type('slider "Volume"', "7")
    web.shown = rich
    assert "#ff0000" in await web.type('color field "Colour"', "#ff0000")


async def test_tables_are_read_page_by_page(web: Browsing) -> None:
    await web.open("/table")
    for page in range(2, 6):
        assert f'heading "Page {page}"' in await web.click('link "Next page"')
    whole = await web.call("read", all=True)
    assert "Item 50" in whole and "150 €" in whole and "Next page" not in whole
    assert 'heading "Page 4"' in await web.call("back")


@pytest.mark.parametrize(("accept", "text"), [(True, "deleted"), (False, "kept")])
async def test_a_dialog_stops_the_page_until_it_is_answered(web: Browsing, accept: bool, text: str) -> None:
    await web.open("/dialogs")
    asked = await web.click('button "Delete"')
    assert "dialog (confirm)" in asked and "Delete it?" in asked
    assert "browser_dialog" in await web.call("read")
    await web.call("dialog", accept=accept)
    assert text in await web.call("read", all=True)


async def test_prompts_and_alerts_are_answered(web: Browsing) -> None:
    dialogs = await web.open("/dialogs")
    await web.click('button "Ask"')
    await web.call("dialog", accept=True, text="Ada")
    assert "Ada" in await web.call("read", all=True)
    web.shown = dialogs
    assert "Saved" in await web.click('button "Save"')
    await web.call("dialog", accept=True)
    assert "There is no dialog" in await web.call("dialog")


async def test_menus_details_and_tabs_of_a_page_open(web: Browsing) -> None:
    await web.open("/menu")
    assert 'menuitem "Export"' in await web.click('button "More"')
    assert 'status "exported"' in await web.click('menuitem "Export"')
    assert "(expanded)" in await web.open("/menu") + await web.click('button "Shipping"')
    await web.open("/tabs")
    assert "(selected)" in await web.click('tab "Two"')
    assert "Second" in await web.call("read", all=True)


async def test_frames_and_shadow_roots_are_part_of_the_page(web: Browsing) -> None:
    await web.open("/frames")
    assert 'frame "Inner page"' in web.shown
    assert 'button "Pressed"' in await web.click('button "Press"')
    await web.open("/frames")
    assert '= "1234"' in await web.type('textbox "Code"', "1234")
    shadow = await web.open("/shadow")
    await web.type('textbox "Nickname"', "Countess")
    web.shown = shadow
    assert 'button "Kept"' in await web.click('button "Keep"')
    assert "Kept Countess" in await web.call("read", all=True)


async def test_a_page_that_grows_is_scrolled(web: Browsing) -> None:
    assert "Entry 21" not in await web.open("/endless")
    shown = ""
    for _ in range(8):
        shown = await web.call("scroll", direction="bottom")
        if "Entry 60" in shown:
            break
    assert "Entry 60" in shown and "unchanged lines" in shown
    assert "Entry 55" in await web.call("find", text="Entry 55")
    assert 'heading "Item 55"' in await web.click("Entry 55")


async def test_a_slow_page_is_waited_for_without_an_outline(web: Browsing) -> None:
    await web.open("/slow")
    shown = await web.call("wait", text="Ready", seconds=20)
    assert shown.startswith("The page shows 'Ready'.") and "@" not in shown
    late = await web.call("wait", text="Never", seconds=1)
    assert late.startswith("After 1 seconds the page does not show 'Never'.")
    assert (await web.open("/late")).startswith("Not found")


async def test_a_stale_element_is_refused_with_the_page_as_it_is(web: Browsing) -> None:
    first = await web.open("/app")
    add = web.element('button "Add"')
    assert "Count 1" in await web.click('button "Add"')
    refused = await web.call("click", element=add)
    assert "not there any more" in refused and 'status "Count 1"' in refused and 'button "Add"' in refused
    assert "Count 2" in await web.click('button "Add"')
    await web.open("/app")
    web.shown = first
    assert "not there any more" in await web.click('button "Add"'), "the name is of an earlier document"
    assert "does not name an element" in await web.call("click", element="the button")


async def test_windows_become_tabs_and_too_many_are_closed(web: Browsing) -> None:
    popup = await web.open("/popup")
    assert "(tab 2 of 2)" in await web.click('link "Open a window"')
    assert "→ 2." in await web.call("tabs")
    assert "→ 1." in await web.call("tabs", show=1)
    web.shown = popup
    await web.click('button "Open many"')
    tabs = (await web.call("tabs")).splitlines()
    assert len(tabs) <= 10
    for _ in tabs[1:]:
        await web.call("tabs", close=2)
    assert "There is no tab 5" in await web.call("tabs", show=5)


async def test_files_go_up_and_come_down(web: Browsing) -> None:
    await web.api.say(
        web.session, '[[call write_file {"path": "cv.txt", "content": "I am Ada"}]][[reply ok]]'
    )
    await web.open("/upload")
    await web.call("upload", element=web.element('file field "File"'), path="cv.txt")
    assert '= "cv.txt"' in web.shown
    files = await web.open("/files")
    assert "Downloaded downloads/report.pdf (15 B)." in await web.click('link "Report"')
    web.shown = files
    assert "Downloaded downloads/report-2.pdf" in await web.click('link "Report"')
    web.shown = files
    refused = await web.click('link "Large"')
    assert "large.bin was not downloaded: it is larger than 100" in refused
    assert "is outside" in await web.call("upload", element="@1.1", path="../../secrets")


async def test_what_covers_or_disables_an_element_is_named(web: Browsing) -> None:
    await web.open("/covered")
    shown = web.shown
    covered = await web.click('button "Buy"')
    assert 'covered by dialog "Cookies?' in covered
    web.shown = shown
    after = await web.click('button "Accept"')
    assert "Cookies" not in after
    web.shown = shown
    assert 'button "Bought"' in await web.click('button "Buy"')
    shown = await web.open("/disabled")
    assert "is disabled" in await web.click('button "Pay"')
    web.shown = shown
    assert 'button "Pay"' in await web.click('checkbox "Agree"')


async def test_pictures_and_pdfs_are_saved_for_the_person(web: Browsing) -> None:
    await web.open("/")
    assert "Saved as start.png" in await web.call("screenshot", save="start.png")
    assert "Saved as start.pdf" in await web.call("screenshot", save="start.pdf")
    folder = next((web.api.gateway.home.path / "files").glob("*/"))
    assert (folder / "start.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "start.pdf").read_bytes().startswith(b"%PDF")


async def test_passwords_and_codes_never_appear(web: Browsing) -> None:
    for shown in (
        await web.open("/code"),
        await web.call("read", all=True),
        await web.call("find", text="code"),
    ):
        assert "493817" not in shown and "hunter2" not in shown and "••••" in shown


async def test_a_script_runs_only_where_it_is_allowed(web: Browsing) -> None:
    await web.open("/")
    assert await web.call("evaluate", script="document.title.length") == "5"
    assert "The script failed: ReferenceError" in await web.call("evaluate", script="nothing.here")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "chrome://settings", "javascript:alert(1)", "data:text/html,x", "about:blank"],
)
async def test_other_kinds_of_addresses_are_refused(web: Browsing, url: str) -> None:
    shown = await web.call("open", url=url)
    assert "http" in shown and "passwd" not in (await web.call("tabs"))


async def test_internal_addresses_are_refused_with_the_reason(web: Browsing) -> None:
    for host in ("169.254.169.254", "10.0.0.1", "127.0.0.1:18080", "[::1]"):
        shown = await web.call("open", url=f"http://{host}/")
        assert "could not be opened" in shown and "only public addresses" in shown, shown


# -- approvals ----------------------------------------------------------------------------------------------


def unsaid(**arguments: str) -> str:
    """Return arguments as JSON in which no word stands as it is, so that the person has not written them."""
    escaped = {key: "".join(f"\\u{ord(each):04x}" for each in value) for key, value in arguments.items()}
    return "{" + ", ".join(f'"{key}": "{value}"' for key, value in escaped.items()) + "}"


async def ask(web: Browsing, tool: str, arguments: str) -> tuple[str, dict[str, Any]]:
    """Begin a call that needs an approval. Return the turn and the question."""
    turn = await web.api.begin(web.session, f"[[call browser_{tool} {arguments}]][[reply ok]]")
    async with asyncio.timeout(30):
        while not (asked := (await web.api.get("/api/approvals"))["items"]):
            await asyncio.sleep(0.02)
    question: dict[str, Any] = asked[0]
    assert question["turn_id"] == turn
    return turn, question


async def decide(web: Browsing, turn: str, question: dict[str, Any], decision: str) -> str:
    await web.api.post(f"/api/approvals/{question['id']}", {"decision": decision})
    async with asyncio.timeout(30):
        while (await web.api.get(f"/api/turns/{turn}"))["state"] != "done":
            await asyncio.sleep(0.02)
    return await web.last()


async def test_a_password_is_sent_only_after_a_person_has_agreed(web: Browsing) -> None:
    form = await web.open("/login")
    await web.type('textbox "User"', "ada")
    web.shown = form
    await web.type('password field "Password"', "open sesame")
    assert '= "••••"' in web.shown
    web.shown = form
    click = json.dumps({"element": web.element('button "Log in"')})
    sent = len(web.site.orders)
    turn, question = await ask(web, "click", click)
    assert (
        f"127.0.0.1:{web.site.port}" in question["text"] and "User: ada; Password: ••••" in question["text"]
    )
    assert "open sesame" not in question["text"]
    assert "Refused by a person" in await decide(web, turn, question, "deny")
    assert len(web.site.orders) == sent
    turn, question = await ask(web, "click", click)
    assert 'heading "Logged in"' in await decide(web, turn, question, "approve")
    assert 'heading "Hello ada"' in await web.open("/account")


async def test_enter_in_a_form_with_a_password_needs_the_same_approval(web: Browsing) -> None:
    await web.open("/login")
    fields = {"element": web.element('password field "Password"'), "text": "wrong", "submit": True}
    turn, question = await ask(web, "type", json.dumps(fields))
    assert "Wrong password" in await decide(web, turn, question, "approve")


async def test_a_text_that_the_person_has_not_written_is_asked_about(web: Browsing) -> None:
    await web.open("/form")
    name = web.element('textbox "Name"')
    turn, question = await ask(web, "type", unsaid(element=name, text="secret of the chat"))
    assert "you have not written this text" in question["text"] and "secret of the chat" in question["text"]
    assert "Refused by a person" in await decide(web, turn, question, "deny")
    assert "secret" not in await web.call("read")
    assert '= "A"' in await web.last_of(unsaid(element=name, text="A")), "a character tells nothing"


async def test_an_address_that_nobody_has_shown_is_asked_about(web: Browsing) -> None:
    await web.open("/")
    turn, question = await ask(web, "open", unsaid(url=f"{web.site.url}/item/stolen"))
    await decide(web, turn, question, "deny")
    assert "/item/stolen" not in web.site.paths
    shown = await web.last_of(unsaid(url=f"{web.site.url}/table"), "open")
    assert 'heading "Page 1"' in shown, "the page has offered this link"


# -- the life of a browser ----------------------------------------------------------------------------------


async def test_an_unused_browser_is_closed_and_opened_as_it_was(web: Browsing) -> None:
    await web.open("/endless")
    await web.call("scroll", direction="down")
    await web.call(
        "evaluate", script="document.cookie = 'kept=1'; sessionStorage.a = 'b'; localStorage.c = 'd'"
    )
    await web.call("open", url=f"{web.site.url}/form", new_tab=True)
    before = await web.call("tabs")
    told = await web.api.say(web.session, "/browser")
    assert before in told["reply"]
    (picture,) = told["files"]
    assert picture["name"] == "browser.png"
    async with web.api.client.get(f"{web.api.url}/api/files/{picture['id']}") as response:
        assert (await response.read()).startswith(b"\x89PNG")
    assert "opens again as it was" in (await web.api.say(web.session, "/browser close"))["reply"]
    assert "No browser is open." in (await web.api.say(web.session, "/browser"))["reply"]
    assert await web.call("tabs") == before
    await web.call("tabs", show=1)
    script = "[document.cookie.includes('kept=1'), sessionStorage.a, localStorage.c, scrollY > 100]"
    assert await web.call("evaluate", script=script) == '[true, "b", "d", true]'
    await web.call("tabs", close=2)


async def test_a_page_that_changes_without_a_call_is_saved(web: Browsing) -> None:
    await web.open("/form")
    later = "setTimeout(() => { localStorage.late = 'kept'; document.cookie = 'late=1' }, 300)"
    await web.call("evaluate", script=later)
    web.browsers.save_again_seconds = 0.5
    state = web.browser.folder / "state.json"
    while b"late" not in (kept := state.read_bytes()) or b"kept" not in kept:
        await asyncio.sleep(0.1)
    web.browsers.save_again_seconds = 60.0


async def test_a_browser_that_ends_is_opened_again_and_the_model_is_told(web: Browsing) -> None:
    await web.open("/form")
    os.kill(web.browser.process.pid, signal.SIGKILL)
    await web.browser.process.ended()
    told = await web.call("read")
    assert "The browser had ended" in told and "was opened again" in told and 'heading "Order"' in told


async def test_a_page_that_hangs_ends_with_the_browser_and_is_named(web: Browsing) -> None:
    """Otherwise every later call would hang as well."""
    await web.open("/hang")
    web.browser.tools.patience = 0.5
    assert "The browser did not answer and was ended" in await web.click('button "Hang"')
    assert 'heading "Start"' in await web.open("/")


async def test_a_new_session_leaves_nothing_of_the_old_one(web: Browsing) -> None:
    await web.open("/form")
    browser = web.browser
    folder = browser.folder
    assert folder.stat().st_mode & 0o077 == 0 and (folder / "state.json").stat().st_mode & 0o077 == 0
    await web.api.say(web.session, "/new")
    async with asyncio.timeout(30):
        while list(folder.parent.glob("browser*")) or not browser.process.has_ended:
            await asyncio.sleep(0.02)
    assert "about:blank" in await web.call("tabs")


async def test_a_released_agent_leaves_the_browser_open(web: Browsing) -> None:
    await web.open("/form")
    before = web.browser
    for agent in (await web.api.get("/api/pool"))["agents"]:
        web.api.gateway.pool.release(agent["session_id"])
    assert (await web.api.get("/api/pool"))["size"] == 0
    assert 'heading "Order"' in await web.call("read")
    assert web.browser is before


@pytest.mark.parametrize("lives", [2, pytest.param(20, marks=LONG)])
async def test_a_browser_is_the_same_after_restarts_and_kills(tmp_path: Path, lives: int) -> None:
    """Every second life of the gateway ends with SIGKILL."""
    async with ModelServer(record=False) as model, browsed_site() as site:
        settings = {
            "TOOLS__ENABLED": "files,browser",
            "NETWORK__ALLOW_PRIVATE": f"127.0.0.1:{site.port}",
            "BROWSER__EVALUATE": "true",
        }
        async with real_process(tmp_path, model, settings) as gateway:
            calls = [
                ("open", {"url": f"{site.url}/endless"}),
                ("scroll", {"direction": "down"}),
                (
                    "evaluate",
                    {"script": "document.cookie = 'a=1'; sessionStorage.b = '2'; localStorage.c = '3'"},
                ),
                ("open", {"url": f"{site.url}/form", "new_tab": True}),
            ]
            for tool, arguments in calls:
                await gateway.say("web", f"[[call browser_{tool} {json.dumps(arguments)}]][[reply ok]]")
            script = "[document.cookie, sessionStorage.b, localStorage.c, scrollY > 100]"
            for life in range(lives):
                await gateway.kill(signal.SIGKILL if life % 2 else signal.SIGTERM)
                await gateway.start()
                assert "/form" in await result_of(gateway, "tabs", {"show": 1})
                shown = await result_of(gateway, "evaluate", {"script": script})
                assert shown.endswith('["a=1", "2", "3", true]'), (life, shown)
                await result_of(gateway, "tabs", {"show": 2})
            await gateway.kill(signal.SIGTERM)
        left = [*(gateway.home / "sessions").glob("*/browser-network/*.sock")]
        assert left == []


async def result_of(gateway: GatewayProcess, tool: str, arguments: dict[str, Any]) -> str:
    await gateway.say("web", f"[[call browser_{tool} {json.dumps(arguments)}]][[reply ok]]")
    log = await gateway.call("GET", "/api/sessions/web/entries?before=999999&limit=5")
    results = [
        entry["body"]["results"] for entry in log["entries"] if entry["body"]["type"] == "tool_results"
    ]
    text: str = results[-1][-1]["text"]
    return text


@pytest.mark.parametrize("cycles", [2, pytest.param(200, marks=LONG)])
async def test_a_browser_is_the_same_after_it_was_closed_many_times(web: Browsing, cycles: int) -> None:
    await web.open("/endless")
    await web.call("scroll", direction="down")
    await web.call(
        "evaluate", script="document.cookie = 'kept=1'; sessionStorage.a = 'b'; localStorage.c = 'd'"
    )
    script = (
        "[location.pathname, document.cookie.includes('kept=1'), sessionStorage.a, localStorage.c, scrollY]"
    )
    before = await web.call("evaluate", script=script)
    for _ in range(cycles):
        assert "opens again" in (await web.api.say(web.session, "/browser close"))["reply"]
        assert await web.call("evaluate", script=script) == before


@pytest.mark.parametrize(
    ("kills", "seed"), [(2, 0), *(pytest.param(5, seed, marks=LONG) for seed in range(1, 11))]
)
async def test_kills_during_clicks_repeat_nothing_and_leave_no_process(
    tmp_path: Path, kills: int, seed: int
) -> None:
    """After more kills of one home, its turns wait for up to a minute."""
    random = Random(seed)
    async with ModelServer(record=False) as model, browsed_site() as site:
        settings = {"TOOLS__ENABLED": "browser", "NETWORK__ALLOW_PRIVATE": f"127.0.0.1:{site.port}"}
        async with real_process(tmp_path, model, settings) as gateway:
            for kill in range(kills):
                shown = await result_of(gateway, "open", {"url": f"{site.url}/form"})
                name, button = named(shown, 'textbox "Name"'), named(shown, 'button "Order now"')
                await result_of(gateway, "type", {"element": name, "text": f"order {kill}"})
                click = f'[[call browser_click {{"element": "{button}"}}]][[reply ok]]'
                turn = await gateway.begin("web", click)
                await asyncio.sleep(random.random() / 4)
                await gateway.kill()
                await gateway.start()
                assert (await gateway.ended_turn(turn))["state"] == "done"
                assert sum(order["name"] == f"order {kill}" for order in site.orders) <= 1, site.orders
            await gateway.kill(signal.SIGTERM)
        profile = str(tmp_path / "home" / "sessions")
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if profile in read_words(path)]
        assert left == []


def read_words(path: Path) -> str:
    with suppress(OSError):
        return path.read_bytes().decode(errors="replace")
    return ""


async def test_a_person_logs_the_browser_in_with_their_own_cookies(web: Browsing) -> None:
    await web.open("/")
    cookie = {"name": "user", "value": "Grace", "domain": "127.0.0.1", "httpOnly": True}
    path = f"/api/sessions/{web.session}/browser/login"
    added = await web.api.post(path, {"cookies": json.dumps([cookie])})
    assert (added["cookies"], added["sites"]) == (1, ["127.0.0.1"])
    assert 'heading "Hello Grace"' in await web.open("/account")
    refused = await web.api.post(path, {"cookies": "nothing"}, 400)
    assert "cookies.txt" in refused["error"]["message"]
    await web.api.post("/api/sessions/nobody/browser/login", {"cookies": json.dumps([cookie])}, 404)
