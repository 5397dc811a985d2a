"""`talaria plugins`: what an operator types and reads, and what `talaria doctor` says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from talaria.cli.doctor import examine
from talaria.cli.main import main
from talaria.config.home import Home
from talaria.config.plugins import find_plugins
from talaria.core.problems import Severity
from talaria.plugins.records import Quarantined, quarantine

Plugins = Callable[..., tuple[int, str, str]]
GOOD = "def register(plugin):\n    plugin.command('good', lambda call: 'yes', help='say yes')\n"
BAD = "raise ValueError('no \\x1b[31mluck')\n"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plugins:
    (tmp_path / "plugins").mkdir(mode=0o700)

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["plugins", "--home", str(tmp_path), *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_plugins_are_listed_checked_and_released(tmp_path: Path, run: Plugins) -> None:
    assert "There are no plug-ins." in run("list")[1]
    (tmp_path / "plugins" / "good.py").write_text(GOOD)
    (tmp_path / "plugins" / "bad.py").write_text(BAD)
    (tmp_path / "plugins" / "unused.py").write_text(BAD)
    (tmp_path / "config.toml").write_text(
        "[plugins.unused]\nenabled = false\n[plugins.gone]\nkey = 1\n[http]\nport = 0\n"
    )
    status, said, _ = run("list")
    assert status == 0 and "\x1b" not in said
    rows = [line.split() for line in said.splitlines()[1:4]]
    assert [row[0] for row in rows] == ["bad", "good", "unused"]
    assert "good    loaded    plugins/good.py    command /good" in said
    assert "It raised ValueError in bad.py line 1: no " in said
    assert "unused  off" in said

    (tmp_path / "plugins" / "bad.py").rename(tmp_path / "bad.py")
    listed = json.loads(run("list", "--json")[1])["plugins"]
    assert [each["state"] for each in listed] == ["loaded", "off"]

    (good,) = [each for each in find_plugins(Home(tmp_path)) if each.name == "good"]
    quarantine(tmp_path, "good", Quarantined(good.digest(), "It held the event loop.", 0.0))
    findings = asyncio.run(examine(Home(tmp_path), {}))
    told = [(each.severity, each.text, each.command) for each in findings if each.subject == "plug-ins"]
    assert [level for level, _, _ in told] == [Severity.WARN, Severity.PROBLEM]
    assert "[plugins.gone], but there is no plug-in gone" in told[0][1]
    assert told[1][1:] == (
        "good (plugins/good.py) is quarantined. It held the event loop.",
        "talaria plugins check good",
    )

    status, said, _ = run("check", "good")
    assert status == 0 and "is released. It held the event loop." in said
    assert "good (plugins/good.py): good. It brings: command /good." in said
    status, said, _ = run("check", str(tmp_path / "bad.py"))
    assert status == 1 and "ValueError" in said
    assert "There is no plug-in 'god'.\n  Did you mean good?" in run("check", "god")[2]
    assert "There is no file nowhere.py" in run("check", "nowhere.py")[2]
