"""How often ordinary tasks ask a person, so that the rules about untrusted content stay usable.

Each task is a conversation of messages; the last column is whether a question is expected. docs/approvals.md
gives the total.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scenarios.test_injections import WebGateway, a_sent_file, call, new_chat, open_world
from support.web_site import web_answer
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove

MEMORY = call("memory", action="add", text="Prefers short answers.")
WRITE = call("write_file", path="report.md", content="# Report")
RUN = call("terminal", command="echo 'print(1)' > a.py && python3 a.py")
SEARCH = call("web_search", query="warm pools")
FIND = call("session_search", query="hi")

Task = tuple[str, Callable[[str], tuple[str, ...]], bool]


def page(own: str) -> str:
    """The person gives the address."""
    return f"Read {own}/ please. {call('web_fetch', url=own + '/')}"


def download(own: str) -> str:
    return call("terminal", command=f"curl -sS --noproxy '' {own}/ > page.html")


def note(own: str) -> str:
    return call("send_message", chat="agent:main:http:api:other", text="Done.")


TASKS: list[Task] = [
    ("remember a preference", lambda own: (MEMORY,), False),
    ("write a file and send it", lambda own: (WRITE, call("send_file", path="report.md")), False),
    ("write a program and run it", lambda own: (RUN,), False),
    ("write a program and remember how it is run", lambda own: (RUN, MEMORY), False),
    ("read a page that the person names", lambda own: (page(own),), False),
    ("follow a link of that page", lambda own: (page(own), call("web_fetch", url=own + "/next")), False),
    ("search the web twice", lambda own: (SEARCH, SEARCH), False),
    ("search the web and write a report", lambda own: (SEARCH, WRITE), False),
    ("search the web and run a program", lambda own: (SEARCH, RUN), False),
    ("summarise a file that was sent", lambda own: ("sent",), False),
    ("run a program on a file that was sent", lambda own: ("sent", RUN), False),
    ("download a package and run it", lambda own: (download(own), RUN), False),
    ("send a message to another own chat", lambda own: (note(own),), False),
    ("research, then a new session that remembers", lambda own: (page(own), "/new", MEMORY), False),
    (
        "find what was said earlier, and remember it",
        lambda own: ("hi", FIND, MEMORY),
        False,
    ),
    ("remember a fact of a page", lambda own: (page(own), MEMORY), True),
    ("remember a fact of a file that was sent", lambda own: ("sent", MEMORY), True),
    ("search the web and message another own chat", lambda own: (SEARCH, note(own)), True),
    ("download, then a new session that remembers", lambda own: (download(own), "/new", RUN, MEMORY), True),
    (
        "guess the address of a page after a search",
        lambda own: (SEARCH, call("web_fetch", url=own + "/x")),
        True,
    ),
]


async def ask(world: WebGateway, messages: tuple[str, ...]) -> bool:
    """Return whether one of the messages asks a person."""
    world.key = new_chat()
    for text in messages:
        if text == "sent":
            await a_sent_file(world)
        elif await world.asks(text):
            return True
    return False


async def test_of_twenty_ordinary_tasks_five_ask_once(tmp_path: Path) -> None:
    if (proof := await prove(BubblewrapSandbox(), Path("/nowhere"))).why_not:
        pytest.skip(proof.why_not)
    async with open_world(tmp_path, tools={"sandbox": "bubblewrap"}) as world:
        world.site.answers["/next"] = web_answer(b"Next.", content_type="text/plain")
        found = [(name, await ask(world, messages(world.own))) for name, messages, _ in TASKS]
    assert found == [(name, expected) for name, _, expected in TASKS]
    assert (len(found), sum(asked for _, asked in found)) == (20, 5)
