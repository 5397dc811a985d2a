"""The commands that a clone prints can be typed in it: on the command line, over HTTP and in chats."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from cli.conftest import Serve, Talaria, started
from cli.test_connect_telegram import Platform
from cli.test_serve import read_banner
from support.waiting import wait_until
from talaria.testing.telegram_server import TOKEN

CLONE = Path(__file__).parents[2]


@pytest.fixture
def in_clone(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The working folder is the clone's, and `talaria` is not on the path."""
    monkeypatch.chdir(CLONE)
    environ["PATH"] = os.defpath
    return environ


def test_people_who_talk_to_a_clone_read_its_commands(
    in_clone: dict[str, str], home: Path, serve: Serve, tmp_path: Path
) -> None:
    with started("telegram_server") as url, (home / "config.toml").open("a") as config:
        platform = Platform(url)
        config.write(f'[channels.telegram]\ntoken_env = "MY_TOKEN"\napi_url = "{url}"\n')
        config.flush()
        read_banner(serve(env={"MY_TOKEN": TOKEN}))
        address = (tmp_path / "title").read_text().split()[2]
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(f"{address}/api/pool")
        hint = msgspec.json.decode(refused.value.read())["error"]["hint"]
        assert "`./dev open` logs a browser in" in hint
        platform("say", user=8, name="Eve", text="hello")
        wait_until(lambda: bool(platform.replies(8)))
        assert "\n./dev pair approve " in platform.replies(8)[0]


def test_help_shows_what_can_be_typed(in_clone: dict[str, str], talaria: Talaria) -> None:
    assert "Usage: ./dev [OPTIONS] COMMAND" in talaria("--help").stdout
    for verb in ("serve", "open", "ask", "config", "backup"):
        shown = talaria(verb, "--help").stdout
        assert f"Usage: ./dev {verb} " in shown
        assert f"  ./dev {verb}" in shown.partition("Example")[2]
        assert f"talaria {verb}" not in shown


def test_a_home_that_was_named_is_part_of_the_commands(talaria: Talaria, home: Path) -> None:
    told = talaria("sessions", "show", "nobody", "--home", str(home)).stderr
    assert f"`talaria sessions --home {home} list`" in told
    assert "`talaria sessions list`" in talaria("sessions", "show", "nobody").stderr


def test_the_scripted_model_is_named_by_a_command_that_works(
    in_clone: dict[str, str], talaria: Talaria, home: Path
) -> None:
    """It is no command of the program, so it takes no --home."""
    (home / "config.toml").write_text('[model]\nname = "m"\n')
    told = talaria("ask", "hello", "--home", str(home)).stderr
    assert "run `./dev scripted` in another terminal" in told
