"""The examples of docs/how-to/write-a-plugin.md run: as a file, as a package, and in the contract suite."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway import without_http
from support.rig import inbound
from talaria.cli.gateway_parts import parts_with_plugins
from talaria.cli.home_gateway import running_gateway
from talaria.config.home import Home
from talaria.config.load import load
from talaria.config.plugins import find_plugins
from talaria.core.extensions import CODE_OWNERS
from talaria.core.redaction import SecretRegistry
from talaria.parts import PARTS
from talaria.plugins.loading import examine_plugins
from talaria.testing.model_server import ModelServer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-plugin.md"
FILE, SUITE = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
(PROJECT,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
CONFIG = """\
[model]
provider = "scripted"
[providers.scripted]
base_url = "{url}"
[http]
port = 0
[shutdown]
deadline = "1s"
[plugins.weather]
closed = ["atlantis", "mordor"]
"""
ENVIRON = {"TALARIA_HTTP_TOKEN": "a-token-for-tests"}


@pytest.fixture(autouse=True)
def _owners() -> Iterator[None]:
    yield
    CODE_OWNERS.drop("weather")


def _names() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(FILE + SUITE, str(PAGE), "exec", dont_inherit=True), names)
    return names


TestForecast = _names()["TestForecast"]


async def test_the_file_of_the_page_works_in_a_gateway(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "weather.py").write_text(FILE)
    async with ModelServer() as model:
        (tmp_path / "config.toml").write_text(CONFIG.format(url=model.base_url))
        loaded = load(tmp_path, ENVIRON, PARTS)
        parts = parts_with_plugins(home, loaded, ENVIRON, SecretRegistry())
        async with (
            without_http(tmp_path, environ=ENVIRON, parts=parts, channels=parts) as gateway,
            running_gateway(home, ENVIRON) as client,
        ):
            assert client is not None

            async def ask(text: str) -> str:
                return str((await gateway.turns.wait(await gateway.turns.submit(inbound(text)))).reply)

            (report,) = (await client.status())["plugins"]
            assert (report["name"], report["state"]) == ("weather", "loaded")
            assert report["brings"] == ["tool forecast", "command /weather", "hook before_tool"]
            assert await ask("/weather Vienna") == "Vienna: sunny for 1 days."
            called = await ask('[[call forecast {"place": "Bergen", "days": 3}]]')
            assert called == "Tool results: Bergen: rain for 3 days."
            refused = await ask('[[call forecast {"place": "Mordor"}]]')
            assert "The plug-in weather refused this: There is no weather in that town." in refused
            assert "/weather TOWN: tell the weather (plugin:weather)" in await ask("/help")
            assert "plugin:weather" in await ask("/tools")


def test_the_package_of_the_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads(PROJECT)["project"]
    site = tmp_path / "site"
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    ((name, target),) = project["entry-points"]["talaria.plugins"].items()
    (info / "entry_points.txt").write_text(f"[talaria.plugins]\n{name} = {target}\n")
    package = site / target.partition(":")[0]
    package.mkdir()
    (package / "__init__.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(site))
    (source,) = find_plugins(Home(tmp_path))
    assert (source.name, source.label) == ("weather", "talaria_weather 1.0")
    (examined,) = examine_plugins(Home(tmp_path), {}, ENVIRON)
    assert examined.result.problem is None
    assert examined.result.brings == ("tool forecast", "command /weather", "hook before_tool")
