"""Tasks of everyday pages, each solved by calls as a model would make them, without scripts.

`test_browsing.py` has the others: filling in and sending a form, searching, lists, sliders, colours and rich
text, pages of a table, dialogs (confirm, cancel, prompt, alert), menus, details, tabs, frames, shadow roots,
endless lists, slow pages, stale elements, windows, uploads and downloads, covered and disabled buttons,
pictures and PDFs, logging in.
"""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

import talaria
from scenarios.test_browser_attacks import browsing
from scenarios.test_browsing import Browsing, ask, decide
from support.programs import needs

pytestmark = [pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browsing]:
    async with browsing(tmp_path_factory.mktemp("tasks")) as web:
        yield web


@dataclass
class Task:
    """A page and the calls on it. A call is a verb, the label of an element, and the rest. At the end the
    page says `done`."""

    page: str
    calls: list[tuple[str, ...]]
    done: str


SAY = "out.textContent = "
TASKS = {
    "a wizard says what is wrong in its first step": Task(
        "<form id=f onsubmit='event.preventDefault(); if (!mail.value.includes(`@`)) { e.textContent = `Enter an"
        " address`; } else { f.hidden = true; two.hidden = false }'><input id=mail aria-label=Mail>"
        "<p id=e role=alert></p><button>Next</button></form>"
        f"<div id=two hidden><button onclick='{SAY}`finished`'>Finish</button></div>",
        [
            ("type", 'textbox "Mail"', "ada"),
            ("click", 'button "Next"'),
            ("sees", 'alert "Enter an address"'),
            ("type", 'textbox "Mail"', "ada@x.example"),
            ("click", 'button "Next"'),
            ("click", 'button "Finish"'),
        ],
        "finished",
    ),
    "a field suggests": Task(
        f"<input role=combobox aria-label=City oninput='l.innerHTML = `<div role=option tabindex=0 onclick=pick()>"
        f"Berlin</div>`'><div id=l role=listbox></div><script>pick = () => {{ {SAY}'city Berlin' }}</script>",
        [("type", 'combobox "City"', "ber"), ("click", 'option "Berlin"')],
        "city Berlin",
    ),
    "several options of a list": Task(
        "<select multiple aria-label=Days onchange='out.textContent = [...this.selectedOptions].map((o) => o.value)'>"
        "<option>Mon<option>Tue<option>Wed</select>",
        [("select", 'listbox "Days"', "Mon", "Wed")],
        "Mon,Wed",
    ),
    "times and numbers": Task(
        f"<input type=time aria-label=At><input type=number aria-label=Count><button onclick='{SAY}"
        "document.querySelector(`[type=time]`).value + `/` + document.querySelector(`[type=number]`).value'>Go</button>",
        [("type", 'date field "At"', "18:05"), ("type", 'spinbutton "Count"', "12"), ("click", 'button "Go"')],
        "18:05/12",
    ),
    "a table is sorted": Task(
        "<table><tr><th onclick='t.append(...[...t.rows].reverse())'>Price</th></tr><tbody id=t><tr><td>3<tr><td>1"
        "</tbody></table>",
        [("click", 'clickable "Price"')],
        "1\n3",
    ),
    "a list is filtered while typing": Task(
        "<input type=search aria-label=Filter oninput='for (const p of document.querySelectorAll(`p.x`))"
        " p.hidden = !p.textContent.includes(this.value)'><p class=x>red shoe<p class=x>blue hat",
        [("type", 'searchbox "Filter"', "hat"), ("wait", "red shoe", "gone")],
        "blue hat",
    ),
    "more is loaded by a button": Task(
        "<div id=l></div><button onclick='l.append(`row ` + ++n + ` `)'>Load more</button><script>n = 0</script>",
        [("click", 'button "Load more"')] * 3,
        "row 3",
    ),
    "a part of the page is scrolled": Task(
        "<div tabindex=0 role=button aria-label=Log style='height:80px;overflow:auto' onscroll='if (scrollTop > 300)"
        " out.textContent = `at the end`'><div style='height:900px'></div></div>",
        [("scroll", 'button "Log"', "bottom")],
        "at the end",
    ),
    "a form in a frame": Task(
        "<iframe title=Inside srcdoc='<input id=a aria-label=Word><button onclick=\"parent.out.textContent = a.value\">"
        "Send</button>'></iframe>",
        [("type", 'textbox "Word"', "framed"), ("click", 'button "Send"')],
        "framed",
    ),
    "a shadow root in a shadow root": Task(
        "<div id=a></div><script>const b = document.createElement('div'); a.attachShadow({mode: 'open'}).append(b);"
        "b.attachShadow({mode: 'open'}).innerHTML = '<button>Deep</button>';"
        f"b.shadowRoot.firstChild.onclick = () => {{ {SAY}'deep' }}</script>",
        [("click", 'button "Deep"')],
        "deep",
    ),
    "a button that comes later": Task(
        f"<div id=l>Please wait</div><script>setTimeout(() => {{ l.innerHTML = `<button onclick='{SAY}1000'>Start"
        "</button>` }, 600)</script>",
        [("wait", "Start"), ("click", 'button "Start"')],
        "1000",
    ),
    "the right one of equal buttons": Task(
        "".join(
            f"<tr><td>Row {n}</td><td><button aria-label='Edit row {n}' onclick='{SAY}`edits {n}`'>Edit</button></td>"
            for n in range(1, 30)
        ),
        [("find", "Edit row 17"), ("click", "Edit row 17")],
        "edits 17",
    ),
    "a tree and a switch": Task(
        "<div role=tree><div role=treeitem tabindex=0 aria-expanded=false onclick='this.ariaExpanded = true; k.hidden ="
        f" false'>Files</div><div id=k hidden role=switch tabindex=0 aria-checked=false onclick='{SAY}`on`'>Sync</div>",
        [("click", 'treeitem "Files"'), ("click", 'switch "Sync"')],
        "on",
    ),
    "a dialog while the page loads": Task(
        f"<script>alert('Welcome')</script><button onclick='{SAY}`in`'>Enter</button>",
        [("dialog",), ("click", 'button "Enter"')],
        "in",
    ),
    "what the outline leaves out": Task(
        "".join(f"<p><a href=/item/{n}>Link number {n}</a>" for n in range(900))
        + f"<button onclick='{SAY}`very last`'>The last button</button>",
        [("find", "The last button"), ("click", "The last button")],
        "very last",
    ),
    "a download that a script makes": Task(
        "<button onclick='const a = document.createElement(`a`); a.download = `made.txt`;"
        " a.href = window.URL.createObjectURL(new Blob([`made`])); a.click()'>Export</button>",
        [("click", 'button "Export"'), ("sees", "Downloaded downloads/made.txt (4 B).")],
        "Export",
    ),
}  # fmt: skip


@needs("chromium")
@needs("bwrap")
@pytest.mark.parametrize("name", TASKS)
async def test_a_task_is_solved(web: Browsing, name: str) -> None:
    task, path = TASKS[name], f"/task-{list(TASKS).index(name)}"
    web.site.pages[path] = f"<title>Task</title><p id=out></p>{task.page}"
    await web.open(path)
    for verb, *rest in task.calls:
        match verb:
            case "sees":
                assert rest[0] in web.shown
            case "wait":
                assert "seconds the page" not in await web.call("wait", text=rest[0], gone="gone" in rest)
            case "find":
                await web.call("find", text=rest[0])
            case "dialog":
                assert "dialog (alert)" in web.shown
                await web.call("dialog", accept=True)
            case _:
                await act(web, verb, *rest)
    everything = await web.call("read", all=True)
    assert "\n".join(line.strip() for line in everything.splitlines()).find(task.done) >= 0, everything


async def act(web: Browsing, verb: str, label: str, *rest: str) -> None:
    try:
        element = web.element(label)
    except AssertionError:  # it is folded, because it has not changed
        await web.call("read")
        element = web.element(label)
    match verb:
        case "type":
            await web.call("type", element=element, text=rest[0])
        case "select":
            await web.call("select", element=element, options=list(rest))
        case "scroll":
            await web.call("scroll", element=element, direction=rest[0])
        case _:
            await web.call("click", element=element)
    assert "Error" not in web.shown, web.shown


@needs("chromium")
@needs("bwrap")
async def test_a_file_is_uploaded_and_sent(web: Browsing) -> None:
    await web.api.say(
        web.session, '[[call write_file {"path": "cv.txt", "content": "I am Ada"}]][[reply ok]]'
    )
    await web.open("/upload")
    await web.call("upload", element=web.element('file field "File"'), path="cv.txt")
    await web.call("read")
    turn, question = await ask(web, "click", json.dumps({"element": web.element('button "Send"')}))
    assert "File: cv.txt" in question["text"]
    assert 'heading "Got cv.txt"' in await decide(web, turn, question, "approve")
    assert web.site.uploads == {"cv.txt": b"I am Ada"}


async def test_every_failure_says_what_to_try_next() -> None:
    source = Path(talaria.__file__).parent
    bare = []
    for path in (source / "tools/browser.py", *(source / "workspace/browser").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "ToolError"
                and len(node.args) < 2
            ):
                bare.append(f"{path.name}:{node.lineno}")
    assert bare == []
