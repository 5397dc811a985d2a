"""`talaria doctor` finds what is wrong and says how to fix it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from talaria.cli import checks
from talaria.cli.main import main
from talaria.models.local.manifest import DEFAULT
from talaria.models.local.needs import unmet

Serve = Callable[..., object]
Findings = dict[str, dict[str, str]]
Doctor = Callable[[Path], tuple[int, Findings]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    for name in [name for name in os.environ if name.upper().startswith("TALARIA_")]:
        monkeypatch.delenv(name)

    def examine(home: Path) -> tuple[int, Findings]:
        status = main(["doctor", "--json", "--home", str(home)])
        report = msgspec.json.decode(capsys.readouterr().out)
        assert report["ok"] == (status == 0)
        return status, {finding["name"]: finding for finding in report["findings"]}

    return examine


def test_a_good_home_has_no_problem_and_stays_as_it_is(doctor: Doctor, home: Path) -> None:
    before = sorted(home.iterdir())
    status, found = doctor(home)
    assert status == 0
    assert found["model"]["text"].startswith("scripted/m")
    assert found["model"]["text"].endswith("Known of it: tools, images, reasoning.")
    assert {"sqlite", "disk", "clock", "home", "config", "token", "gateway", "store", "tools"} <= set(found)
    assert sorted(home.iterdir()) == before


def test_a_running_gateway_is_asked(doctor: Doctor, home: Path, serve: Serve) -> None:
    serve()
    status, found = doctor(home)
    assert status == 0
    assert "Running at http://127.0.0.1:" in found["gateway"]["text"]
    assert found["owed"]["text"].startswith("Nothing")
    assert "port" not in found


def test_no_model_is_a_problem_with_a_fix(doctor: Doctor, tmp_path: Path) -> None:
    status, found = doctor(tmp_path / "new")
    assert status == 1
    assert found["model"]["level"] == "problem"
    assert "The built-in model" in found["model"]["text"]
    can_run = unmet() is None
    assert found["model"]["command"].endswith(f"pull {DEFAULT} --yes" if can_run else "setup")
    assert not (tmp_path / "new").exists()


def test_a_wrong_config_is_a_problem(doctor: Doctor, home: Path) -> None:
    (home / "config.toml").write_text("[pool]\nmax_agents = 'x'\n")
    status, found = doctor(home)
    assert status == 1
    assert "line 2" in found["config"]["text"]


def test_open_files_are_warned_of_and_left(doctor: Doctor, home: Path) -> None:
    home.chmod(0o755)
    (home / "http.token").write_text("0123456789abcdef0123\n")
    (home / "http.token").chmod(0o644)
    _, found = doctor(home)
    assert (found["home"]["level"], found["home"]["command"]) == ("warn", f"chmod 700 {home}")
    assert found["token"]["command"] == f"chmod 600 {home / 'http.token'}"
    assert (home / "http.token").stat().st_mode & 0o777 == 0o644


def test_a_running_gateway_s_token_file_is_left_as_it_is(doctor: Doctor, home: Path, serve: Serve) -> None:
    serve()
    token = home / "http.token"
    token.chmod(0o644)
    _, found = doctor(home)
    assert found["gateway"]["level"] == "ok"
    assert token.stat().st_mode & 0o777 == 0o644
    token.unlink()
    status, found = doctor(home)
    assert status == 1
    assert "is missing" in found["token"]["text"]
    assert not token.exists()


def test_a_damaged_database_is_a_problem(doctor: Doctor, home: Path) -> None:
    (home / "talaria.db").write_bytes(b"not a database, but long enough to look like something" * 20)
    status, found = doctor(home)
    assert status == 1
    assert found["store"]["level"] == "problem"


def test_a_home_that_is_a_file_is_a_problem(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, found = doctor(tmp_path / "file")
    assert status == 1
    assert "is a file" in found["home"]["text"]


def test_a_busy_configured_port_is_a_problem(doctor: Doctor, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with (home / "config.toml").open("a") as file:
            file.write(f"[http]\nport = {taken.getsockname()[1]}\n")
        _, found = doctor(home)
    assert found["port"]["level"] == "problem"


def test_little_space_and_an_old_sqlite_are_told(
    doctor: Doctor, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "LITTLE_SPACE", 1 << 62)
    monkeypatch.setattr(checks, "is_single_process_only", True)
    _, found = doctor(home)
    assert found["disk"]["level"] == "warn"
    assert found["sqlite"]["command"].endswith("-m pip install pysqlite3")


def test_in_words_it_ends_with_a_verdict(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TALARIA_HOME", raising=False)
    assert main(["doctor", "--home", str(home)]) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1] in (
        "Everything is fine.",
        "no problems, 1 warning.",
    )
