"""The examples of the how-to pages run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

import talaria
from contracts.wire_suite import CALLS, TEXT, WireSuite, as_event
from support.gateway import without_http
from support.rig import start
from talaria.cli.doctor import examine
from talaria.cli.home_gateway import running_gateway
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.clock import SystemClock
from talaria.core.errors import ConfigError
from talaria.core.problems import Severity, ok
from talaria.models.catalog import Catalog
from talaria.models.known import Abilities, Prices
from talaria.models.providers import Providers
from talaria.models.wire import Wire
from talaria.operations.access import InviteBody, invite_person
from talaria.parts import PARTS
from talaria.store.in_memory import MemoryStore
from talaria.testing.model_server import ModelServer
from talaria.tools.toolset import resolve

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def example(page: str) -> dict[str, Any]:
    """The names that the code of a page defines."""
    path = PAGES / page
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    exec(compile(code, str(path), "exec", dont_inherit=True), names)
    return names


PAGER_TABLE = """\
[model]
provider = "scripted"
[providers.scripted]
base_url = "{url}"
[http]
port = 0
[shutdown]
deadline = "1s"
[channels.pager]
network = "test"
allowed = ["ada"]
"""


async def test_a_channel_is_one_line_more_in_the_list(tmp_path: Path) -> None:
    """The example of the how-to, added to the list: nothing else in the program knows it."""
    names = example("add-a-channel.md")
    pager = names["PAGER"]
    parts = (pager, *PARTS)
    file, environ = tmp_path / "config.toml", {"TALARIA_HTTP_TOKEN": "a-token-for-tests"}
    network = names["PagerNetwork"]("test")
    async with ModelServer() as model:
        table = PAGER_TABLE.format(url=model.base_url)
        file.write_text(table)
        loaded = load(tmp_path, environ, parts)
        assert (loaded.warnings, loaded.settings.of(pager).allowed) == ((), ("ada",))
        async with (
            without_http(tmp_path, environ=environ, parts=parts, channels=parts) as gateway,
            running_gateway(Home(tmp_path), environ) as client,
        ):
            assert client is not None
            status = await client.status()
            assert status["channels"] == {"pager": "ready", "http": "ready"}
            await network.incoming.put(("1", "ada", "hello"))
            await network.incoming.put(("1", "ada", "hello"))
            assert await network.outgoing.get() == ("ada", "You said: hello")
            await network.incoming.put(("2", "eve", "hello"))
            person, text = await network.outgoing.get()
            assert (person, "pairing code" in text) == ("eve", True)
            assert (await client.carry_out(invite_person, InviteBody("pager"))).channel == "pager"

            file.write_text(table.replace('["ada"]', '["ada", "eve"]'))
            gateway.reloader.reload()
            await network.incoming.put(("3", "eve", "now?"))
            assert await network.outgoing.get() == ("eve", "You said: now?")
            assert network.acknowledged == ["1", "1", "2", "3"]
            found = await examine(Home(tmp_path), environ, parts=parts)
            assert ok("pager", "The network test is there.") in found
            assert not [each for each in found if each.severity is Severity.PROBLEM]


def test_the_settings_of_a_channel_are_checked_like_all_others(tmp_path: Path) -> None:
    parts = (example("add-a-channel.md")["PAGER"], *PARTS)
    file = tmp_path / "config.toml"
    file.write_text("[channels.pager]\nwith = 30\n")
    unknown = "channels.pager.with is not a known key and has no effect. Did you mean width?"
    assert load(tmp_path, {}, parts).warnings == (f"config.toml line 2: {unknown}",)
    wrong = {
        "width = 3": "channels.pager.width is 3: expected a whole number of at least 20.",
        'network = "A"': 'channels.pager.network is "A": expected the name of a network, in small letters.',
        'allowed = ["ada"]': "channels.pager.allowed is set: expected channels.pager.network beside it.",
    }
    for line, problem in wrong.items():
        file.write_text(f"[channels.pager]\n{line}\n")
        with pytest.raises(ConfigError, match=re.escape(f"config.toml line 2: {problem}")):
            load(tmp_path, {}, parts)
    file.unlink()
    assert load(tmp_path, {"TALARIA_CHANNELS__PAGER__WIDTH": "40"}, parts).settings.of(parts[0]).width == 40


def test_only_the_list_names_a_chat_platform() -> None:
    source = Path(talaria.__file__).parent
    named = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "telegram" in path.read_text().lower()
    }
    ours = ("channels/telegram/", "testing/", "imports/")  # an import reads the names of other programs
    assert {path for path in named if not path.startswith(ours)} == {"parts.py"}


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
    tells_parts = False

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
