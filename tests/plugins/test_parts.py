"""A memory provider, a context engine, a channel and a source of tools that plug-ins bring."""

from __future__ import annotations

import logging
from pathlib import Path
from textwrap import dedent

import pytest

from support.gateway import without_http
from support.rig import inbound
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.extensions import CODE_OWNERS
from talaria.core.redaction import SecretRegistry
from talaria.gateway import find_extensions
from talaria.observe.logs import capture
from talaria.parts import PARTS
from talaria.plugins.loading import load_plugins
from talaria.testing.model_server import ModelServer

CONFIG = """\
[model]
provider = "scripted"
[providers.scripted]
base_url = "{url}"
[http]
port = 0
[shutdown]
deadline = "1s"
[plugins.brings]
words = 3
"""
BRINGS = """
import logging
from contextlib import asynccontextmanager
import msgspec
from talaria.agent.compaction.engine import SummaryEngine
from talaria.plugins import Channel, Plugin
from talaria.testing.changing_tools import ChangingSource
from talaria.testing.keyword_memory import KeywordMemory
from talaria.tools.function import typed_tool

class Pipe(msgspec.Struct, frozen=True):
    words: int = 1

def register(plugin):
    def echo(word: str) -> str:
        "Say it."
        logging.getLogger("some.library").warning("from inside")
        return word

    source = ChangingSource("brings-source")
    source.offer(typed_tool(echo))
    plugin.add_source(source)

    @asynccontextmanager
    async def memory(scope):
        yield KeywordMemory(scope.secrets)

    @asynccontextmanager
    async def engine(scope):
        yield SummaryEngine()

    class Open:
        status = "ready"

    @asynccontextmanager
    async def channel(gateway, settings):
        opened = Open()
        opened.status = f"ready: {settings.words}"
        yield opened

    plugin.memory(memory)
    plugin.context_engine(engine)
    plugin.channel(Channel(name="pipe", settings=Pipe, open=channel))
    plugin.log.info("registered")
"""
FAILS = """
from contextlib import asynccontextmanager

def register(plugin):
    @asynccontextmanager
    async def broken(scope):
        raise ValueError("no luck")
        yield

    plugin.{what}(broken)
"""


async def test_parts_of_plugins_are_used_and_those_that_fail_are_replaced(tmp_path: Path) -> None:
    home, environ = Home(tmp_path), {"TALARIA_HTTP_TOKEN": "a-token-for-tests"}
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "brings.py").write_text(dedent(BRINGS))
    async with ModelServer() as model:
        (tmp_path / "config.toml").write_text(CONFIG.format(url=model.base_url))
        for lap in ("good", "broken"):
            loaded = load(tmp_path, environ, PARTS)
            parts = load_plugins(home, loaded.settings.plugins, environ, SecretRegistry())
            found = find_extensions(parts)
            assert found is not None
            async with without_http(tmp_path, environ=environ, parts=parts, channels=parts) as gateway:
                reply = (await gateway.turns.wait(await gateway.turns.submit(inbound("hello")))).reply
                assert reply == "You said: hello"
                told = {report.name: report for report in found.reports()}
                provider = gateway.turns.memories and gateway.turns.memories.provider
                if lap == "good":
                    assert told["brings"].brings == ("tool echo", "channel pipe", "memory", "context engine")
                    assert gateway.channels["pipe"].status == "ready: 3"
                    assert type(provider).__name__ == "KeywordMemory"
                    called = await gateway.turns.submit(inbound('[[call echo {"word": "hi"}]]'))
                    assert (await gateway.turns.wait(called)).reply == "Tool results: hi"
                else:
                    assert type(provider).__name__ == "FileMemory"
                    for name in ("memory", "engine"):
                        assert "could not be opened: ValueError('no luck')" in told[name].problem
                        assert told[name].hint
            CODE_OWNERS.drop("brings")
            (tmp_path / "plugins" / "brings.py").unlink(missing_ok=True)
            (tmp_path / "plugins" / "memory.py").write_text(FAILS.format(what="memory"))
            (tmp_path / "plugins" / "engine.py").write_text(FAILS.format(what="context_engine"))
    for name in ("memory", "engine"):
        CODE_OWNERS.drop(name)


def test_lines_of_a_plugins_files_have_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "noisy.py"
    file.write_text("import logging\nlogging.getLogger('anything').warning('hello')\n")
    CODE_OWNERS.add(file, "noisy")
    try:
        with caplog.at_level(logging.WARNING):
            exec(compile(file.read_text(), str(file), "exec"), {})
        (record,) = [each for each in caplog.records if each.name == "anything"]
        assert capture(record).fields["plugin"] == "noisy"
    finally:
        CODE_OWNERS.drop("noisy")
    assert "plugin" not in capture(record).fields
