"""Plug-ins at a start: found in a stable order, checked once, and left out with a reason if faulty."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from talaria.channels.descriptor import Channel
from talaria.config.home import Home
from talaria.config.load import load
from talaria.config.plugins import find_plugins
from talaria.core.extensions import CODE_OWNERS, PluginReport, PluginState
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import Parts
from talaria.gateway import find_extensions
from talaria.observe.loop_watch import Holder
from talaria.parts import PARTS
from talaria.plugins.loading import load_plugins
from talaria.plugins.records import Quarantined, quarantine, read_records, release
from talaria.tools.part import ToolPart

GOOD = """\
import os
from pathlib import Path
from typing import Annotated
import msgspec
from talaria.plugins import Check, CommandCall, Mark, Plugin

with open(Path(__file__).with_suffix(".imports"), "a") as file:
    file.write(f"{os.getpid()}\\n")


class Settings(msgspec.Struct, frozen=True):
    unit: str = "C"
    days: int = 3
    key_env: Annotated[str, Mark.SECRET_VARIABLE] = ""


def register(plugin: Plugin) -> None:
    settings = plugin.settings(Settings)

    def forecast(place: Annotated[str, "A place."], days: int = settings.days) -> str:
        '''Tell the weather.'''
        return f"{place} {days} {settings.unit}"

    plugin.tool(forecast, read_only=True)
    plugin.command("sky", lambda call: "blue", help="tell the sky")
"""
FAULTS = {
    "a_raises": (
        "import sys\nx = 1\nraise ValueError('no luck')\n",
        "ValueError in a_raises.py line 3: no luck",
    ),
    "b_missing": ("import not_there_at_all\n", "needs the module not_there_at_all, which is not installed"),
    "c_syntax": ("def register(plugin)\n    pass\n", "plugins/c_syntax.py line 1: expected ':'"),
    "d_empty": ("x = 1\n", "It has no function register"),
    "e_exits": ("import sys\ndef register(plugin):\n    sys.exit(3)\n", "It raised SystemExit"),
    "f_dies": ("import os\nos.kill(os.getpid(), 11)\n", "was killed by signal 11, without a word"),
    "g_builtin": (
        "def read_file(path: str) -> str:\n    'Read.'\n    return ''\n"
        "def register(plugin):\n    plugin.tool(read_file)\n",
        "It asks for the tool read_file, which is a name of the gateway's own",
    ),
    "h_command": (
        "def register(plugin):\n    plugin.command('stop', lambda call: 'mine', help='x')\n",
        "It asks for the command /stop, which is a name of the gateway's own",
    ),
    "i_hint": (
        "def f(x):\n    'F.'\ndef register(plugin):\n    plugin.tool(f)\n",
        "The parameter x of the tool f has no type hint",
    ),
    "j_class": (
        "class Mine:\n    pass\ndef register(plugin):\n    plugin.add_tool(Mine())\n",
        "Mine is not a Tool",
    ),
    "z_taken": (
        "def forecast(place: str) -> str:\n    'Another.'\n    return ''\n"
        "def register(plugin):\n    plugin.tool(forecast)\n",
        "It asks for the tool forecast, which the plug-in weather has",
    ),
}
HANGS = "import threading\nthreading.Event().wait()\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "plugins").mkdir()
    return Home(tmp_path)


@pytest.fixture(autouse=True)
def _owners() -> Any:
    yield
    for name in ("weather", "other", *FAULTS):
        CODE_OWNERS.drop(name)


def write(home: Home, name: str, text: str) -> Path:
    path = home.path / "plugins" / f"{name}.py"
    path.write_text(text)
    return path


def start(home: Home, tables: dict[str, dict[str, Any]] | None = None, seconds: float = 60.0) -> Parts:
    return load_plugins(home, tables or {}, os.environ, SecretRegistry(), seconds=seconds)


def reports(parts: Parts) -> dict[str, PluginReport]:
    found = find_extensions(parts)
    assert found is not None
    return {report.name: report for report in found.reports()}


def imports(home: Home) -> int:
    return len((home.path / "plugins" / "weather.imports").read_text().split())


def test_a_home_without_plugins_has_the_usual_parts(home: Home) -> None:
    assert start(home) is PARTS


def test_faulty_plugins_are_named_and_left_out_and_the_rest_is_loaded(home: Home) -> None:
    write(home, "weather", GOOD)
    for name, (text, _) in FAULTS.items():
        write(home, name, text)
    parts = start(home)
    told = reports(parts)
    assert list(told) == sorted([*FAULTS, "weather"])
    for name, (_, problem) in FAULTS.items():
        assert told[name].state is PluginState.LEFT_OUT, name
        assert problem in told[name].problem
        assert told[name].hint, name
    assert told["weather"] == PluginReport(
        "weather", "plugins/weather.py", PluginState.LOADED, ("tool forecast", "command /sky")
    )
    found = find_extensions(parts)
    assert found is not None and [command.name for command in found.commands] == ["sky"]
    assert parts[-1] is PARTS[-1], "HTTP closes first"
    assert [part.name for part in parts if isinstance(part, ToolPart) and part not in PARTS] == [
        "plugin:weather"
    ]

    # The check was made in another process, once. An unchanged plug-in is not checked at the next start.
    assert imports(home) == 2
    for name in FAULTS:
        (home.path / "plugins" / f"{name}.py").unlink()
    assert reports(start(home))["weather"].state is PluginState.LOADED
    assert imports(home) == 3
    told = reports(start(home, {"weather": {"days": 5}}))
    assert told["weather"].state is PluginState.LOADED
    assert imports(home) == 5, "other settings are another check"

    told = reports(start(home, {"weather": {"days": "many"}}))
    assert told["weather"].problem == 'plugins.weather.days is "many": expected a whole number.'
    assert told["weather"].hint == "Correct [plugins.weather] in config.toml."
    off = start(home, {"weather": {"enabled": False}})
    assert reports(off)["weather"].state is PluginState.OFF


def test_a_check_imports_nothing_of_the_folder_that_it_is_started_in(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent may have written to the folder in which the operator stands."""
    write(home, "weather", GOOD)
    place = home.path / "place"
    place.mkdir()
    (place / "msgspec.py").write_text("open('was-run', 'w').close()\nraise SystemExit\n")
    monkeypatch.chdir(place)
    assert reports(start(home))["weather"].state is PluginState.LOADED
    assert not (place / "was-run").exists()


def test_a_process_that_a_plugin_leaves_behind_does_not_hold_the_start(home: Home) -> None:
    gate = home.path / "gate"
    os.mkfifo(gate)
    leaves = (
        f"import os\nif os.fork() == 0:\n    os.setsid()\n    open({str(gate)!r}).read()\n    os._exit(0)\n"
    )
    write(home, "other", leaves)
    try:
        assert reports(start(home, seconds=0.5))["other"].state is PluginState.QUARANTINED
    finally:
        gate.open("w").close()  # lets it end


def test_a_plugin_that_hangs_is_in_quarantine_until_it_is_edited_or_released(home: Home) -> None:
    path = write(home, "other", HANGS)
    told = reports(start(home, seconds=1.0))["other"]
    assert told.state is PluginState.QUARANTINED
    assert told.problem == "It did not come to an end within 1 seconds when it was checked."
    again = reports(start(home, seconds=60.0))["other"]  # it is not run, or this would take a minute
    assert again.state is PluginState.QUARANTINED
    assert "talaria plugins check other" in again.hint
    path.write_text("def register(plugin):\n    plugin.command('other', lambda call: '', help='x')\n")
    assert reports(start(home))["other"].state is PluginState.LOADED


def test_the_plugin_that_held_the_loop_is_left_out_at_the_next_start(home: Home) -> None:
    write(home, "weather", GOOD)
    parts = start(home)
    found = find_extensions(parts)
    assert found is not None
    found.blame(Holder("turn x", None, ("json.py:3 in loads",), ""), 2.0)
    assert read_records(home.path).quarantine == {}, "the gateway's own code"
    found.blame(Holder("turn x", None, ("weather.py:12 in forecast",), "weather"), 2.0)
    now = reports(parts)["weather"]
    assert now.state is PluginState.LOADED
    assert now.problem.startswith("It held the event loop for 2.0 s (weather.py:12 in forecast)")
    told = reports(start(home))["weather"]
    assert told.state is PluginState.QUARANTINED and "held the event loop" in told.problem
    assert release(home.path, "weather") and not release(home.path, "weather")
    assert reports(start(home))["weather"].state is PluginState.LOADED


def test_a_file_that_others_may_write_is_refused(home: Home) -> None:
    path = write(home, "weather", GOOD)
    path.chmod(0o666)
    told = reports(start(home))["weather"]
    assert "can be written by other users (mode 0666)" in told.problem
    assert told.hint == f"Fix it with: chmod go-w {path}"
    assert not path.with_suffix(".imports").exists(), "not a line of it was run"
    path.chmod(0o600)
    (home.path / "plugins").chmod(0o777)
    assert reports(start(home))["weather"].state is PluginState.LEFT_OUT
    (home.path / "plugins").chmod(0o700)


def test_names_of_files_are_checked_and_hidden_files_are_no_plugins(home: Home) -> None:
    write(home, "_shared", "raise ValueError")
    write(home, "Big Name", "raise ValueError")
    (found,) = find_plugins(home)
    assert found.problem is not None and found.problem.hint
    assert found.problem.text == "plugins/Big Name.py has no name for a plug-in."


PACKAGE = """\
from talaria.plugins import Channel, Plugin

def register(plugin: Plugin) -> None:
    plugin.on_turn_ended(lambda facts: None)
"""


def test_packages_come_first_and_a_second_plugin_of_a_name_is_left_out(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    info = site / "talaria_zoo-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nother = a:b\n\n[talaria.plugins]\nzoo = talaria_zoo.main:register\n"
        "ghost = not_installed_at_all:register\n"
    )
    package = site / "talaria_zoo"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(site))
    write(home, "zoo", GOOD)
    write(home, "abc", "def register(plugin): pass\n")
    found = find_plugins(home)
    assert [(each.name, each.label) for each in found] == [
        ("ghost", "talaria_zoo 1.5"),
        ("zoo", "talaria_zoo 1.5"),
        ("abc", "plugins/abc.py"),
        ("zoo", "plugins/zoo.py"),
    ]
    parts = start(home)
    told = reports(parts)
    assert (told["zoo"].source, told["zoo"].brings) == ("talaria_zoo 1.5", ("hook turn_ended",))
    assert "not_installed_at_all, which is not installed" in told["ghost"].problem
    before = found[1].digest()
    (package / "main.py").write_text(PACKAGE + "\n")
    assert found[1].digest() != before
    for name in ("zoo", "abc"):
        CODE_OWNERS.drop(name)


def test_tables_of_plugins_are_no_concern_of_the_gateways_settings(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[plugins.weather]\nunit = "F"\nmore = {a = 1}\n')
    environ = {"TALARIA_PLUGINS__WEATHER__DAYS": "7"}
    loaded = load(tmp_path, environ, PARTS)
    assert loaded.warnings == ()
    assert loaded.settings.plugins == {"weather": {"unit": "F", "more": {"a": 1}, "days": 7}}
    assert not [part for part in PARTS if isinstance(part, Channel) and part.table[:1] == ("plugins",)]


def test_no_entry_of_the_quarantine_is_lost_if_several_write_at_once(tmp_path: Path) -> None:
    names = [f"plugin{number}" for number in range(40)]
    entry = Quarantined("digest", "it hung", 1.0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: quarantine(tmp_path, name, entry), names))
    assert sorted(read_records(tmp_path).quarantine) == sorted(names)
