"""The program's frame: help, version, unknown commands, and how failures are told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from talaria.cli import main as program
from talaria.cli.main import VERBS, main
from talaria.core.program import this_version

HEAVY = ("aiohttp", "rich", "prompt_toolkit", "uvicorn", "msgspec", "asyncio", "talaria.app")


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.upper().startswith("TALARIA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(option: str) -> None:
    code = (
        "import sys\nfrom talaria.cli.main import main\nstatus = main(sys.argv[1:])\n"
        f"print('LOADED', [name for name in {HEAVY} if name in sys.modules], status)"
    )
    done = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("LOADED [] 0\n")


def test_serve_does_not_load_libraries_of_other_commands_and_features() -> None:
    unwanted = ("rich", "prompt_toolkit", "yaml", "jsonschema", "tomlkit")
    code = f"import sys, talaria.cli.serve, talaria.app\nprint([n for n in {unwanted} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_serve_loads_nothing_of_chat_platforms_but_their_descriptors() -> None:
    code = (
        "import sys, talaria.cli.serve, talaria.app, talaria.parts\n"
        "parents = [f'talaria.channels.{name}.' for name in ('discord', 'slack', 'telegram')]\n"
        "print([n for n in sys.modules if n.startswith((*parents, 'aiohttp')) and not n.endswith('.part')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in VERBS)


@pytest.mark.parametrize(
    "arguments",
    [[name] for name in VERBS]
    + [["sessions", "list"], ["sessions", "show"], ["sessions", "end"], ["sessions", "delete"]]
    + [["config", verb] for verb in ("path", "get", "set", "unset", "edit")]
    + [["service", verb] for verb in ("install", "status", "remove")],
)
def test_every_command_has_help_with_an_example_and_a_home_and_a_version(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert "--home PATH" in text
    assert main([*arguments, "--version"]) == 0
    assert capsys.readouterr().out == f"talaria {this_version()}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chta"], "There is no command `talaria chta`. Did you mean `talaria chat`?"),
        (["sttus"], "There is no command `talaria sttus`.\n"),
        (["zzz"], "There is no command `talaria zzz`."),
        (["sessions", "lst"], "Did you mean `talaria sessions list`?"),
        (["ask", "--sesion", "x", "hi"], "--session"),
        (["chat", "--session", "a b"], "'a b' is not a session name"),
        (["sessions", "show"], "Missing argument 'NAME_OR_ID'"),
        (["ask", ""], "There is nothing to send"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("talaria: ")
    assert said in told
    assert "Try: talaria" in told


def test_a_clone_names_what_can_be_typed_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_home: Path
) -> None:
    monkeypatch.setenv("PATH", str(own_home))
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main(["chta"]) == 2
    told = "talaria: There is no command `./dev chta`. Did you mean `./dev chat`?\n  Try: ./dev --help\n"
    assert capsys.readouterr().err == told
    assert main(["sessions", "show", "nobody"]) == 1
    assert "`./dev sessions list`" in capsys.readouterr().err


def test_home_may_stand_before_or_behind_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--home", "/srv/a", "config", "path"]) == 0
    assert main(["config", "path", "--home", "/srv/b"]) == 0
    assert capsys.readouterr().out == "/srv/a/config.toml\n/srv/b/config.toml\n"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("file", (), "The home HOME is a file, not a folder.\n  Name a folder that you can write"),
        ("folder", (), "config.toml line 2: pool.max_agents"),
        ("new", ("--port", "many"), "Invalid value for '--port': 'many'"),
        ("new", ("--port", "99999"), "Invalid value for '--port': 99999"),
    ],
)
def test_what_keeps_it_from_starting_is_told_in_a_sentence(
    name: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.toml").write_text('[pool]\nmax_agents = "many"\n')
    home = tmp_path / name
    assert main(["serve", "--home", str(home), *options]) == (2 if options else 1)
    told = capsys.readouterr().err
    assert told.startswith(f"talaria: {said.replace('HOME', str(home))}")
    assert "Traceback" not in told
    assert not list(tmp_path.glob("**/talaria.db"))


# -- failures that nobody expected


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """`talaria config path` raises this."""

    def break_with(error: BaseException) -> None:
        @click.command("config")
        def command() -> None:
            raise error

        monkeypatch.setattr("talaria.cli.config.command", command)

    return break_with


def test_a_bug_is_one_line_and_a_file(
    broken: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken(ValueError("oh \x1b[31m no"))
    assert main(["--home", str(tmp_path), "config"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("talaria: unexpected ValueError: oh \\x1b[31m no. This is a bug.\n")
    assert "Traceback" not in told
    (file,) = (tmp_path / "logs").glob("crash-*.txt")
    assert str(file) in told
    assert "Traceback" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_service_that_always_fails_does_not_fill_the_disk(
    broken: Callable[[BaseException], None], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(30):
        (logs / f"crash-20260101-000000-{number:02}.txt").touch()
    broken(ValueError("oh no"))
    assert main(["--home", str(tmp_path), "config"]) == 1
    left = sorted(logs.iterdir())
    assert len(left) == 20
    assert left[0].name == "crash-20260101-000000-11.txt"
    assert left[-1].stat().st_size


def test_a_bug_without_a_home_makes_none(
    broken: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken(ValueError("oh no"))
    assert main(["--home", str(tmp_path / "none"), "config"]) == 1
    assert "TALARIA_DEBUG=1" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_traceback_is_there_for_who_asks(
    broken: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TALARIA_DEBUG", "1")
    broken(ValueError("oh no"))
    assert main(["config"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_quiet(
    broken: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    broken(KeyboardInterrupt())
    assert main(["config"]) == program.INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_left_is_no_error() -> None:
    code = "import sys, time\nfrom talaria.cli.main import run\ntime.sleep(0.3)\nrun(['--help'])"
    shell = f'{sys.executable} -c "{code}" | true; echo status ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"status {program.PIPE_CLOSED}\n", "")
