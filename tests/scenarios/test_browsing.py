"""The browser of a session, in a whole gateway with a real Chromium and a site on loopback."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from support.gateway import Api, in_process
from support.programs import needs
from support.web_site import WebSite, web_site
from talaria.testing.model_server import ModelServer

pytestmark = [needs("chromium"), needs("bwrap"), pytest.mark.asyncio(loop_scope="module")]
TOOLS = {"enabled": ["files", "browser"], "search_above": 1 << 20}


@dataclass
class Browsing:
    """An agent that browses: each call is a message of its own."""

    api: Api
    site: WebSite
    session: str = "web"
    shown: str = ""

    async def call(self, tool: str, **arguments: Any) -> str:
        """Return the result of one call, whatever it is."""
        call = f"[[call browser_{tool} {json.dumps(arguments)}]][[reply ok]]"
        turn = await self.api.say(self.session, call)
        assert turn["state"] == "done", turn
        entries = (await self.api.get(f"/api/sessions/{self.session}/entries?before=999999&limit=5"))[
            "entries"
        ]
        results = [entry["body"]["results"] for entry in entries if entry["body"]["type"] == "tool_results"]
        self.shown = results[-1][-1]["text"]
        return self.shown

    async def open(self, path: str) -> str:
        return await self.call("open", url=self.site.url + path)

    def element(self, label: str) -> str:
        """Return the name of an element in the last result, by its role and text."""
        found = re.search(rf"{re.escape(label)}.*? (@\d+\.\d+)|(@\d+\.\d+): .*{re.escape(label)}", self.shown)
        assert found, (label, self.shown)
        return found[1] or found[2]

    async def click(self, label: str, **more: Any) -> str:
        return await self.call("click", element=self.element(label), **more)

    async def type(self, label: str, text: str, **more: Any) -> str:
        return await self.call("type", element=self.element(label), text=text, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browsing]:
    home = tmp_path_factory.mktemp("browsing")
    async with ModelServer(record=False) as model, web_site() as site:
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
