"""The examples of the how-to pages run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from contracts.wire_suite import CALLS, TEXT, WireSuite, as_event
from rig import start
from talaria.access.authorizer import Authorizer
from talaria.config.load import load
from talaria.core.clock import SystemClock
from talaria.models.catalog import Catalog
from talaria.models.known import Abilities, Prices
from talaria.models.providers import Providers
from talaria.models.wire import Wire
from talaria.parts import PARTS
from talaria.store.memory import MemoryStore
from talaria.tools.toolset import resolve

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def example(page: str) -> dict[str, Any]:
    """The names that the code of a page defines."""
    path = PAGES / page
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    exec(compile(code, str(path), "exec", dont_inherit=True), names)
    return names


class Pager:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.rang = asyncio.Event()

    async def send(self, person: str, text: str) -> str:
        self.sent.append((person, text))
        self.rang.set()
        return str(len(self.sent))


async def test_the_channel_of_the_how_to_answers_those_who_may(tmp_path: Path) -> None:
    names = example("add-a-channel.md")
    clock, platform = SystemClock(), Pager()
    async with start(MemoryStore(clock), tmp_path) as rig:
        sending = asyncio.create_task(rig.delivery.run())
        rig.delivery.attach("pager", names["PagerOutlet"](platform))
        authorizer = Authorizer(MemoryStore(clock).pairings, {"pager": ["ada"]}, clock)
        channel = names["PagerChannel"](authorizer, rig.turns, platform)
        await channel.receive("1", "ada", "hello")
        await channel.receive("1", "ada", "hello")
        await platform.rang.wait()
        assert platform.sent == [("ada", "You said: hello")]
        await channel.receive("2", "eve", "hello")
        assert "pairing code" in platform.sent[1][1]
        assert len(platform.sent) == 2
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_the_tools_of_the_how_to_are_called_by_a_model(tmp_path: Path) -> None:
    names = example("add-a-tool.md")
    family = resolve([names["note_family"]()], ["notes"])
    async with start(
        MemoryStore(SystemClock()), tmp_path, tools=lambda tools: tools.with_tools(family)
    ) as rig:
        empty = await rig.say("[[call read_notes]]")
        assert empty.reply == "Tool results: The notebook is empty."
        added = await rig.say('[[call add_note {"note": "one"}]] [[call add_note {"note": "two"}]]')
        assert added.reply == "Tool results: The notebook has 2 notes now."
        refused = await rig.say('[[call add_note {"note": "a\\nb"}]]')
        assert "A note is one line. Add each line by a call of its own." in str(refused.reply)
        read = await rig.say("[[call read_notes]]")
        assert read.reply == "Tool results: one\ntwo\n"


class TestTheWireOfTheHowTo(WireSuite):
    wire: Wire = example("add-a-provider.md")["ParrotWire"]()

    def events(self) -> list[bytes]:
        words = [{"say": TEXT[:9]}, {"say": TEXT[9:]}]
        return [
            *map(as_event, words),
            *(as_event({"call": asdict(call)}) for call in CALLS),
            as_event({"end": True}),
        ]


def test_the_configuration_of_the_how_to_is_enough(tmp_path: Path) -> None:
    (written,) = re.findall(r"```toml\n(.*?)```", (PAGES / "add-a-provider.md").read_text(), re.DOTALL)
    (tmp_path / "config.toml").write_text(written)
    environ = {"ACME_API_KEY": "sk-1"}
    loaded = load(tmp_path, environ, PARTS)
    settings, providers = loaded.settings, Providers(loaded.settings.providers, environ)
    catalog = Catalog(settings.model, {}, providers=providers.known, abilities=settings.models)
    choice = catalog.default()
    assert (loaded.warnings, str(choice)) == ((), "acme/acme-large")
    assert providers.get(choice.provider).wire.name == "openai-chat"
    assert catalog.abilities(choice.provider, choice.model) == Abilities(128_000, tools=True, images=False)
    assert Prices(settings.prices).find(choice.provider, choice.model) is not None
