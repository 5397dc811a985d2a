"""Faults of pages and of the browser in a session: the call says so, and the next one works."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from scenarios.test_browser_attacks import browsing
from scenarios.test_browsing import Browsing, ask, decide, unsaid
from support.programs import needs
from talaria.core.ids import SessionId
from talaria.workspace.sandbox.group import below

pytestmark = [needs("chromium"), needs("bwrap"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browsing]:
    async with browsing(tmp_path_factory.mktemp("faults")) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def web(gateway: Browsing, request: pytest.FixtureRequest) -> AsyncIterator[Browsing]:
    """A session of its own for each test, with the only browser that is open."""
    yield replace(gateway, session=f"s{abs(hash(request.node.name))}")
    for session_id in tuple(gateway.browsers._slots):
        await gateway.browsers.retire(session_id)


def renderers(web: Browsing) -> list[int]:
    """Return the processes of the pages."""
    pids = below(web.browser.process.pid)
    return [pid for pid in pids if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]


# -- texts of pages -----------------------------------------------------------------------------------------


async def test_half_characters_of_a_page_end_nothing(web: Browsing) -> None:
    """JavaScript has texts that are no Unicode: half an emoji, as cutting leaves it."""
    web.site.pages["/half"] = (
        f"<title>Half</title><a href=/>{'x' * 89}😀 smile</a><button onclick=\"document.title = '\\ud83d';"
        " history.replaceState(0, '', '#\\ud83d'); alert('\\ud800!')\">Break</button>"
    )
    before = await web.open("/half")
    assert "xxx" in before
    browser = web.browser
    assert "!" in await web.click('button "Break"')
    await web.call("dialog", accept=True)
    assert 'button "Break"' in await web.call("read")
    assert web.browser is browser, "it was not ended"


async def test_fields_named_like_properties_hide_nothing(web: Browsing) -> None:
    """In a form, and on the page, names of elements replace the properties of the same name."""
    names = ("childNodes", "tagName", "title", "getAttribute", "checkVisibility", "shadowRoot", "elements")
    fields = "".join(f"<input name={name} aria-label={name}>" for name in names)
    form = f"<form name=title tabindex=0>{fields}<button>Go</button></form>"
    web.site.pages["/named"] = f"{form}<img name=body>"
    shown = await web.open("/named")
    assert 'textbox "tagName"' in shown and 'button "Go"' in shown


async def test_a_document_without_anything_is_an_empty_page(web: Browsing) -> None:
    web.site.pages["/empty"] = "<button onclick='document.documentElement.remove()'>Clear</button>"
    await web.open("/empty")
    assert "The page is empty." in await web.click('button "Clear"')
    assert "The page has no 'Clear'" in await web.call("find", text="Clear")
    assert "does not show 'Clear'" in await web.call("wait", text="Clear", gone=True)
    assert 'heading "Start"' in await web.open("/")


async def test_a_code_beside_its_label_and_a_shown_password_are_hidden(web: Browsing) -> None:
    web.site.pages["/codes"] = (
        "<title>Codes</title><h1>Mail</h1><p>Order 20261224 was sent.</p><div>"
        "<p>Your verification code is:</p><p><b>493817</b></p></div>"
        "<label>Security code <input value=737></label>"
        "<label>Secret <input id=p type=password value=hunter2></label>"
        f"<div>Enter the login code {'<b><input maxlength=1 value=8></b>' * 6}</div>"
    )
    await web.open("/codes")
    await web.call("evaluate", script="p.type = 'text'")
    everything = await web.call("read") + await web.call("read", all=True)
    everything += await web.call("find", text="49381") + await web.call("find", text="Secret")
    assert not [secret for secret in ("493817", "hunter2", '"737"', '"8"') if secret in everything]
    assert "Order 20261224 was sent." in everything


# -- tabs ---------------------------------------------------------------------------------------------------


async def test_a_name_of_another_tab_is_stale(web: Browsing) -> None:
    first = await web.open("/app")
    name = web.element('button "Add"')
    await web.call("open", url=f"{web.site.url}/app", new_tab=True)
    refused = await web.call("click", element=name)
    assert "not there any more" in refused and "Count 0" in refused, first


async def test_a_name_of_the_time_before_a_restart_is_stale(web: Browsing) -> None:
    await web.open("/app")
    name = web.element('button "Add"')
    await web.api.say(web.session, "/browser close")
    refused = await web.call("click", element=name)
    assert "not there any more" in refused and "Count 0" in refused


async def test_a_page_that_crashes_is_opened_again(web: Browsing) -> None:
    await web.open("/form")
    browser = web.browser
    for pid in renderers(web):
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while not browser.tab.is_crashed:
            await asyncio.sleep(0.02)
    shown = await web.call("read")
    assert "crashed" in shown and 'heading "Order"' in shown
    assert web.browser is browser


async def test_a_window_that_closes_itself_leaves_the_tab_before(web: Browsing) -> None:
    web.site.pages["/window"] = "<button onclick=\"window.open('/closing')\">Open</button><h1>Window</h1>"
    web.site.pages["/closing"] = "<h1>Closing</h1><script>setTimeout(close, 400)</script>"
    await web.open("/window")
    await web.click('button "Open"')
    async with asyncio.timeout(20):
        while len(web.browser.tabs) > 1:
            await asyncio.sleep(0.02)
    assert 'heading "Window"' in await web.call("read")
    assert len(web.browser._sessions) == 1, "nothing is kept of tabs that are gone"


# -- opening again ------------------------------------------------------------------------------------------


async def test_tabs_that_ask_or_hang_when_they_are_opened_again_do_no_harm(web: Browsing) -> None:
    web.site.pages["/alerting"] = (
        "<h1>Alerting</h1><script>sessionStorage.x = 1; if (localStorage.again) alert('Back?');"
        "localStorage.again = 1</script>"
    )
    web.site.pages["/hanging"] = (
        "<h1>Hanging</h1><script>if (localStorage.hang) for (;;) {}; localStorage.hang = 1</script>"
    )
    await web.open("/form")
    for path in ("/alerting", "/hanging"):
        await web.call("open", url=web.site.url + path, new_tab=True)
    await web.api.say(web.session, "/browser close")
    web.browsers.restore_seconds = 2.0
    shown = await web.call("tabs", show=1)
    assert "/form" in shown and "/alerting" in shown
    assert 'heading "Order"' in await web.call("read")


async def test_a_server_that_does_not_answer_ends_no_browser(web: Browsing) -> None:
    await web.open("/form")
    browser = web.browser
    browser.tab.load_seconds = 0.5
    shown = await web.open("/silent")
    assert "did not answer within 0.5 seconds" in shown and "try another page" in shown
    assert 'heading "Start"' in await web.open("/")
    assert web.browser is browser


async def test_hung_tabs_do_not_fail_the_calls_of_another(web: Browsing) -> None:
    web.site.pages["/later"] = "<h1>Later</h1><script>setTimeout(() => { for (;;) {} }, 1500)</script>"
    for _ in range(2):
        await web.call("open", url=f"{web.site.url}/later", new_tab=True)
    await web.call("open", url=f"{web.site.url}/form", new_tab=True)
    await asyncio.sleep(1.5)  # until these pages hang: nothing tells it
    assert 'heading "Order"' in await web.call("read")


async def test_a_double_click_is_one(web: Browsing) -> None:
    web.site.pages["/double"] = (
        "<button onclick='s.textContent += `c`' ondblclick='s.textContent += `D`'>Open</button><p id=s>"
    )
    await web.open("/double")
    await web.click('button "Open"', double=True)
    assert "ccD" in await web.call("read", all=True) and "DD" not in web.shown


# -- bounds -------------------------------------------------------------------------------------------------


async def test_downloads_without_end_are_bounded(web: Browsing) -> None:
    await web.open("/files")
    script = (
        "setInterval(() => { for (let n = 0; n < 10; n += 1) { const a = document.createElement('a');"
        " a.download = 'n'; a.href = URL.createObjectURL(new Blob(['x'])); a.click() } }, 1050)"
    )
    shown = await web.call("evaluate", script=script)
    assert shown.isdigit()
    shown = await web.call("wait", text="never", seconds=5)
    assert 0 < shown.count("Downloaded downloads/") <= 20, shown
    assert "more downloads were refused" in shown and len(web.browser.downloads) <= 20


async def test_a_page_that_takes_too_much_memory_is_ended_within_its_call(tmp_path: Path) -> None:
    async with browsing(tmp_path, max_memory=300 << 20) as web:
        web.site.pages["/greedy"] = (
            "<h1>Greedy</h1><button onclick='const all = []; setInterval(() => {"
            " if (all.length < 40) all.push(new Uint8Array(20_000_000).fill(1)) }, 50)'>Take</button>"
        )
        await web.open("/greedy")
        await web.click('button "Take"')
        assert "browser.max_memory" in await web.call("wait", text="never", seconds=40)
        assert 'heading "Start"' in await web.open("/")


async def test_a_session_that_ends_while_calls_wait_leaves_no_browser_behind(web: Browsing) -> None:
    await web.open("/form")
    browsers = web.browsers
    (session_id,) = browsers._slots
    handle = web.api.gateway.workspaces.open(SessionId(session_id), "chat").browser  # type: ignore[arg-type]
    began, go = asyncio.Event(), asyncio.Event()

    async def use() -> None:
        async with handle.use():
            began.set()
            await go.wait()

    first = asyncio.create_task(use())
    await began.wait()
    ending = asyncio.create_task(browsers.end(session_id))
    second = asyncio.create_task(use())
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, ending, second)
    assert browsers.open_count == 1, "the browser that runs is known"
    await browsers.end(session_id)
    assert browsers.open_count == 0


# -- what a page learns, and who is asked -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("dialog", {"text": "a secret of the chat", "accept": ""}),
        ("evaluate", {"script": "fetch('/?secret')"}),
    ],
)
async def test_every_text_that_reaches_a_page_is_asked_about(
    web: Browsing, tool: str, arguments: dict[str, str]
) -> None:
    await web.open("/form")
    turn, question = await ask(web, tool, unsaid(**arguments).replace('"accept": ""', '"accept": true'))
    assert "you have not written this text" in question["text"]
    assert "Refused by a person" in await decide(web, turn, question, "deny")


async def test_a_file_that_the_person_has_not_named_is_asked_about(web: Browsing) -> None:
    await web.api.say(web.session, '[[call write_file {"path": "private.txt", "content": "x"}]][[reply ok]]')
    await web.open("/upload")
    arguments = unsaid(element=web.element('file field "File"'), path="./private.txt")
    turn, question = await ask(web, "upload", arguments)
    assert "private.txt" in question["text"] and f"127.0.0.1:{web.site.port}" in question["text"]
    assert "Refused by a person" in await decide(web, turn, question, "deny")


@pytest.mark.parametrize(
    ("sender", "is_outlined"),
    [
        ("<div onclick='document.forms[0].submit()' tabindex=0><b>Enter</b></div>", False),
        ("<a href='#' onclick='document.forms[0].submit()'><b>Enter</b></a>", True),
        ("<div onclick='document.forms[0].submit()'><b>Enter</b></div>", False),
    ],
)
async def test_whatever_sends_a_password_is_asked_about(
    web: Browsing, sender: str, is_outlined: bool
) -> None:
    web.site.pages["/enter"] = (
        "<form action='http://user@elsewhere.example/x' method=post><input name=user aria-label=User>"
        f"<input type=password aria-label=Password value=hunter2></form>{sender}"
    )
    await web.open("/enter")
    await web.call("find", text="Enter")
    click = json.dumps({"element": web.element("Enter")})
    if not is_outlined:
        shown = await web.last_of(click, "click")
        assert "may send" in shown and "Call the tool again" in shown
    turn, question = await ask(web, "click", click)
    assert "to elsewhere.example (the page is of 127" in question["text"]
    assert "Password: ••••" in question["text"]
    await decide(web, turn, question, "deny")


async def test_secret_fields_are_dots_in_pictures(web: Browsing) -> None:
    """The same page with another card number gives the same picture."""
    web.site.pages["/card"] = "<label>Card number <input id=c></label><label>Name <input id=n></label>"
    await web.open("/card")
    tab, pictures = web.browser.tab, []
    for script in ("c.value = '4111'", "c.value = '5222'", "n.value = 'Ada'"):
        await web.call("evaluate", script=script)
        pictures.append(await tab.picture())
    assert pictures[0] == pictures[1] != pictures[2]
    assert await web.call("evaluate", script="c.style.webkitTextSecurity") == '""'


async def test_a_password_is_masked_in_the_question(web: Browsing) -> None:
    await web.open("/login")
    arguments = unsaid(element=web.element('password field "Password"'), text="open sesame")
    turn, question = await ask(web, "type", arguments)
    assert "open sesame" not in question["text"] and "••••" in question["text"]
    path = f"/api/approvals/{question['id']}/picture"
    assert b64decode((await web.api.get(path))["data"]).startswith(b"\x89PNG"), "the page is shown, too"
    await decide(web, turn, question, "deny")
    await web.api.get(path, 404)
