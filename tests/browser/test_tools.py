"""Tool calls on the page: a card that streams output, folds when the call has ended and can be opened."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from browser.visitor import Visitor


def call(command: str, **more: object) -> str:
    return f"[[call terminal {json.dumps({'command': command, **more})}]]"


async def test_a_command_streams_into_its_card_and_folds_with_its_exit_code(visitor: Visitor) -> None:
    await visitor.say(
        call("echo begun; echo waiting for a file; until test -e go; do sleep 0.05; done; echo over; exit 3")
        + "[[reply Ran it.]]"
    )
    card = visitor.page.locator("details.call")
    await card.locator(".result", has_text="begun").wait_for()
    assert await card.locator(".result").is_visible(), "it is open while it runs"
    assert "over" not in (await card.locator(".result").text_content() or "")
    assert (await card.locator(".given").text_content() or "").startswith("$ echo begun")
    name = await visitor.name()
    session = await visitor.gateway.call("GET", f"/api/sessions/{name}")
    key = session["chat_key"]
    folder = next(
        path for path in (visitor.gateway.home / "files").iterdir() if name in path.name or path.name in key
    )
    (folder / "go").touch()
    await visitor.sees("Ran it.", "#log .agent")
    await visitor.settled()
    assert await card.locator(".outcome").inner_text() == "exit code 3"
    assert await card.get_attribute("data-outcome") == "error"
    assert not await card.locator(".result").is_visible(), "it folds by itself"
    await card.locator("summary").click()
    assert await card.locator(".result").inner_text() == "begun\nwaiting for a file\nover\n[Exit code 3.]"
    await visitor.page.reload()
    await visitor.sees("Ran it.", "#log .agent")
    assert await card.locator(".outcome").inner_text() == "exit code 3"


async def test_the_line_of_a_command_has_only_the_command(visitor: Visitor) -> None:
    await visitor.say(call("echo one && echo two", timeout=60) + "[[reply Ran it.]]")
    await visitor.sees("Ran it.", "#log .agent")
    card = visitor.page.locator("details.call")
    assert await card.locator(".brief").text_content() == "echo one && echo two"
    await card.locator("summary").click()
    assert await card.locator(".given").text_content() == "$ echo one && echo two\ntimeout: 60"


async def test_output_is_harmless_bounded_and_healed_over_a_reconnect(visitor: Visitor) -> None:
    started = {"type": "tool.started", "call_id": "c", "name": "terminal", "arguments": '{"command":"make"}'}
    text = "\x1b[31mred\x1b[0m\x1b]0;title\x07\n10 %\r99 %\n<img src=x onerror=alert(1)>\u202egnp.exe\n"
    output = {"type": "tool.output", "call_id": "c", "text": text}
    flood = {"type": "tool.output", "call_id": "c", "text": "x" * 200_000}
    is_first_seen, is_seen = asyncio.Event(), asyncio.Event()
    tries: list[Any] = []

    def stream(first: int, *events: dict[str, str]) -> str:
        return "".join(f"id: {n}\ndata: {json.dumps(event)}\n\n" for n, event in enumerate(events, first))

    async def answer(route: Any) -> None:
        tries.append(route)
        if len(tries) == 2:
            await is_first_seen.wait()
        later = flood if len(tries) == 2 else output  # the second connection begins with the call again
        if len(tries) <= 2:
            await route.fulfill(content_type="text/event-stream", body=stream(2 * len(tries), started, later))
        else:
            await is_seen.wait()
            await route.continue_()

    await visitor.page.route("**/events", answer)
    await visitor.say("hello")
    result = visitor.page.locator("#live details.call .result")
    await result.get_by_text("99 %").wait_for()
    assert await result.text_content() == "red\n99 %\n<img src=x onerror=alert(1)>gnp.exe\n"
    is_first_seen.set()
    flooded = visitor.page.locator("#live details.call .result", has_text="xxx")
    await flooded.wait_for()
    assert await flooded.evaluate("(node) => node.textContent.length") == 131072
    is_seen.set()
    await visitor.settled()


async def test_the_change_of_a_file_is_shown_as_lines(visitor: Visitor) -> None:
    write = '[[call write_file {"path":"a.txt","content":"one\\ntwo\\nthree"}]]'
    edit = '[[call edit_file {"path":"a.txt","old":"one\\ntwo","new":"one\\n2"}]]'
    await visitor.say(f"{write}[[reply Written.]]")
    await visitor.sees("Written.", "#log .agent")
    await visitor.say(f"{edit}[[reply Changed.]]")
    await visitor.sees("Changed.", "#log .agent")
    await visitor.settled()
    card = visitor.page.locator("#log .tool.call", has_text="edit_file")
    await card.locator("summary").click()
    read = "(rows) => rows.map((row) => [row.className, row.textContent])"
    shown = await card.locator(".diff span").evaluate_all(read)
    assert shown == [["same", "a.txt\n"], ["same", "  one\n"], ["removed", "- two\n"], ["added", "+ 2\n"]]


async def test_a_card_that_a_person_opened_stays_open(visitor: Visitor) -> None:
    given = '{"path":"a.txt","content":"one\\ntwo"}'
    text = f"[[call write_file {given}]][[chunks 20]][[chunk-delay 0.05]][[words 40]]"
    await visitor.say(text)
    card = visitor.page.locator("details.call")
    await card.wait_for()
    await card.locator("summary").click()
    assert await card.locator(".given").inner_text() == "path: a.txt\ncontent:\n  one\n  two"
    await visitor.sees("word40")
    await visitor.settled()
    await visitor.page.locator("#new").click()
    await visitor.say(text)
    await visitor.sees("word40")
    await visitor.settled()
    assert await card.get_attribute("open") is None, "it is a call of another chat"


async def test_each_delegate_of_a_call_is_a_line_that_opens_and_can_be_stopped(visitor: Visitor) -> None:
    tasks = ["[[reply quick]]", '[[call read_file {"path": "x"}]][[hang]]']
    await visitor.say(f"[[call delegate {json.dumps({'tasks': tasks})}]][[reply All here.]]")
    lines = visitor.page.locator("#live .delegates li")
    await lines.nth(1).locator(".outcome", has_text="running").wait_for()
    await lines.nth(0).locator(".outcome", has_text="done").wait_for()
    await lines.nth(1).locator("summary").click()
    await lines.nth(1).get_by_role("button", name="Stop").click()
    await visitor.sees("All here.", "#log .agent")
