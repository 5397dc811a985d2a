"""`talaria doctor` finds what is wrong and says how to fix it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.conftest import Serve, Talaria
from contracts.store_orders import accepting, answered
from talaria.cli import home_checks
from talaria.cli.gateway_checks import check_gateway
from talaria.cli.main import main
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatKey
from talaria.models.local.runtime import missing_requirement
from talaria.models.local.weights import DEFAULT_MODEL
from talaria.store import part
from talaria.store.sqlite.rescue import new_rescue, restore_command
from talaria.store.sqlite.store import SqliteStore

Findings = dict[str, dict[str, str]]
Doctor = Callable[[Path], tuple[int, Findings]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Doctor:
    for name in [name for name in os.environ if name.upper().startswith("TALARIA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TALARIA_CACHE", str(tmp_path / "cache"))  # the developer may have a model

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


@pytest.mark.parametrize(
    "command",
    ["serve", "ask hello", "chat", "sessions list", "config get", "pair list", "backup", "logs"],
)
def test_every_command_refuses_a_home_that_others_can_write(
    doctor: Doctor, home: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    home.chmod(0o777)
    before = sorted(home.iterdir())
    assert main([*command.split(), "--home", str(home)]) != 0
    said = capsys.readouterr()
    assert f"chmod go-w {home}" in said.err
    assert "scripted" not in said.out
    assert sorted(home.iterdir()) == before
    status, found = doctor(home)
    assert (status, found["home"]["command"]) == (1, f"chmod go-w {home}")


def test_a_running_gateway_is_asked(doctor: Doctor, home: Path, serve: Serve) -> None:
    serve()
    status, found = doctor(home)
    assert status == 0
    assert "Running at http://127.0.0.1:" in found["gateway"]["text"]
    assert found["owed"]["text"].startswith("Nothing")
    assert "port" not in found


def test_a_reply_to_a_channel_that_was_removed_is_told(doctor: Doctor, home: Path, serve: Serve) -> None:
    async def owe() -> None:
        async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
            await answered(store, accepting(chat=ChatKey("agent:main:gone:dm:1"), address="1"))

    asyncio.run(owe())
    serve()
    _, found = doctor(home)
    assert found["owed"]["level"] == "warn"
    assert found["owed"]["text"] == "1 reply cannot be sent: the gateway has no channel gone now."


def test_saved_content_of_a_database_that_vanished_is_told_with_its_command(
    doctor: Doctor, home: Path
) -> None:
    rescued = new_rescue(home / "talaria.db")
    rescued.write_bytes(b"")
    status, found = doctor(home)
    assert status == 1
    assert str(rescued) in found["store"]["text"]
    assert found["store"]["command"] == restore_command(rescued, home / "talaria.db")


def test_no_model_is_a_problem_with_a_fix(doctor: Doctor, tmp_path: Path) -> None:
    status, found = doctor(tmp_path / "new")
    assert status == 1
    assert found["model"]["level"] == "problem"
    assert "The built-in model" in found["model"]["text"]
    can_run = missing_requirement() is None
    assert found["model"]["command"].endswith(f"pull {DEFAULT_MODEL} --yes" if can_run else "setup")
    assert not (tmp_path / "new").exists()


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


def test_little_space_and_an_old_sqlite_are_told(
    doctor: Doctor, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_checks, "LITTLE_SPACE", 1 << 62)
    monkeypatch.setattr(part, "is_single_process_only", True)
    _, found = doctor(home)
    assert found["disk"]["level"] == "warn"
    assert found["sqlite"]["command"].endswith("-m pip install pysqlite3")


def test_the_price_of_the_model_is_told(doctor: Doctor, home: Path) -> None:
    assert doctor(home)[1]["price"]["text"] == "scripted/m costs nothing."
    with (home / "config.toml").open("a") as config:
        config.write('[prices."scripted/*"]\ninput = 1.5\noutput = 3\n')
    text = doctor(home)[1]["price"]["text"]
    assert text == "scripted/m: $1.50 in, $1.50 from the cache, $3.00 out, for a million tokens."


def test_a_cap_that_refuses_every_call_is_told(doctor: Doctor, home: Path, talaria: Talaria) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[prices."scripted/*"]\ninput = 1.5\noutput = 3\n')
    assert "budget" not in doctor(home)[1]
    told = talaria("config", "set", "budgets.per_day_usd", "0.001").stderr
    refused = "budgets.per_day_usd is $0.001, and one answer of scripted/m may cost up to $0.098"
    assert f"But {refused}" in told
    found = doctor(home)[1]["budget"]
    assert (found["level"], found["text"].partition(",")[0]) == ("warn", "budgets.per_day_usd is $0.001")
    assert found["command"].endswith(" set budgets.per_day_usd 0.98")
    assert not talaria("config", "set", "budgets.per_day_usd", "0.98").stderr
    assert "budget" not in doctor(home)[1]


def test_in_words_it_ends_with_a_verdict(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TALARIA_HOME", raising=False)
    assert main(["doctor", "--home", str(home)]) == 0
    *_, verdict, called = capsys.readouterr().out.rstrip().splitlines()
    assert verdict in ("Everything is fine.", "no problems, 1 warning.")
    assert called.startswith("The model was not called; `") and called.endswith(" --call` calls it once.")


def test_a_reason_that_is_a_sentence_keeps_one_full_stop() -> None:
    status = {"ready": False, "reasons": ["store: database or disk is full.", "http: closed."]}
    (told,) = (each.text for each in check_gateway("", status) if "not accepting" in each.text)
    assert told.endswith("not accepting: store: database or disk is full; http: closed.")


def test_the_sandbox_in_force_is_told_with_its_proof(doctor: Doctor, home: Path) -> None:
    _, found = doctor(home)
    if found["sandbox"]["level"] == "ok":
        assert re.match(
            r"Commands run in (bubblewrap|landlock); \d\d escapes were tried", found["sandbox"]["text"]
        )
    else:
        assert found["sandbox"]["text"].startswith(
            "No sandbox holds here, so commands are refused. bubblewrap: "
        )
        assert found["sandbox"]["fix"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "none",
            "Commands run without a sandbox, as tools.sandbox says: they can do all that this user can.",
        ),
        ("container", 'tools.sandbox = "container" is not built yet, so commands are refused.'),
        ("ssh", 'tools.sandbox = "ssh" is not built yet, so commands are refused.'),
    ],
)
def test_another_sandbox_is_a_warning(doctor: Doctor, home: Path, kind: str, text: str) -> None:
    with (home / "config.toml").open("a") as file:
        file.write(f'\n[tools]\nsandbox = "{kind}"\n')
    status, found = doctor(home)
    assert (status, found["sandbox"]["level"], found["sandbox"]["text"]) == (0, "warn", text)
    assert found["sandbox"]["command"].endswith("set tools.sandbox auto")
