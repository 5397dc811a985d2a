from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from talaria.config.home import GatewayInfo, Home
from talaria.core.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


# -- finding and preparing


def test_the_option_wins_over_the_variable_and_the_variable_over_the_default(tmp_path: Path) -> None:
    environ = {"TALARIA_HOME": str(tmp_path / "env")}

    assert Home.find(tmp_path / "option", environ).path == tmp_path / "option"
    assert Home.find(None, environ).path == tmp_path / "env"
    assert Home.find(None, {"TALARIA_HOME": ""}).path == Path.home() / ".talaria"


def test_a_home_is_absolute_and_may_start_with_a_tilde() -> None:
    assert Home.find("some/where", {}).path == Path.cwd() / "some/where"
    assert Home.find("~/x", {}).path == Path.home() / "x"


def test_an_unknown_user_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cannot be resolved"):
        Home.find("~no-such-user-here/x", {})


def test_the_names_are_those_of_the_contract(tmp_path: Path) -> None:
    home = Home(tmp_path)

    names = [home.config, home.database, home.lock, home.gateway_json, home.token_file, home.files, home.logs]
    assert [path.relative_to(tmp_path).as_posix() for path in names] == [
        "config.toml",
        "talaria.db",
        "talaria.lock",
        "gateway.json",
        "http.token",
        "files",
        "logs",
    ]


def test_a_new_home_is_private_and_empty(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home")

    assert home.prepare() == ()
    assert mode(home.path) == 0o700
    assert list(home.path.iterdir()) == []


def test_an_open_home_is_left_as_it_is_with_a_warning(home: Home) -> None:
    home.path.chmod(0o755)

    assert home.prepare() == (
        f"The home {home.path} is open to other users (mode 0755). "
        f"If it is for Talaria alone, close it with: chmod 700 {home.path}",
    )
    assert mode(home.path) == 0o755


def test_a_home_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError) as caught:
        Home(tmp_path / "file").prepare()
    assert caught.value.user_text == f"The home {tmp_path / 'file'} is a file, not a folder."
    assert caught.value.hint == "Name a folder that you can write with --home or TALARIA_HOME."


@pytest.mark.parametrize(
    ("path", "why"), [("file/home", "cannot be used: Not a directory"), ("/proc", "cannot be used: ")]
)
def test_a_home_that_cannot_be_made_or_written_says_why(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=f"The home {tmp_path / path} {why}"):
        Home(tmp_path / path).prepare()


# -- the running gateway

HERE = GatewayInfo(os.getpid(), "http://127.0.0.1:8765", "0.1.0", 1_700_000_000.5)


def test_the_gateways_address_comes_back_as_written(home: Home) -> None:
    home.write_gateway(HERE)
    home.write_gateway(HERE)

    assert home.read_gateway() == HERE
    assert mode(home.gateway_json) == 0o600
    assert [path.name for path in home.path.iterdir()] == ["gateway.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"pid": "x"}', b'{"pid":-1,"url":"","version":"","started_at":0}'],
)
def test_a_corrupt_gateway_file_is_no_gateway(home: Home, content: bytes) -> None:
    home.gateway_json.write_bytes(content)

    assert home.read_gateway() is None


def test_a_dead_gateway_is_no_gateway_and_its_file_can_go(home: Home) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    home.write_gateway(GatewayInfo(dead.pid, "http://x", "0.1.0", 0.0))

    assert home.read_gateway() is None
    home.remove_gateway()
    assert not home.gateway_json.exists()


def test_a_gateway_removes_its_own_file_and_never_anothers(home: Home) -> None:
    home.remove_gateway()
    home.write_gateway(GatewayInfo(os.getppid(), "http://x", "0.1.0", 0.0))
    home.remove_gateway()
    assert home.gateway_json.exists()

    home.write_gateway(HERE)
    home.remove_gateway()
    assert not home.gateway_json.exists()


def test_an_address_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.json cannot be written: No such file"):
        Home(tmp_path / "none").write_gateway(HERE)
