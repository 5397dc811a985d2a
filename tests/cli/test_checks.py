"""The findings of the doctor about a home and about the status of a running gateway, one by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from talaria.cli.gateway_checks import _owed, check_gateway, check_idle
from talaria.cli.home_checks import check_home, check_trust
from talaria.cli.model_checks import _check_running
from talaria.config.home import Home
from talaria.config.settings import Settings
from talaria.core.problems import Problem
from talaria.core.program import this_version
from talaria.models.catalog import ModelChoice


def told(findings: Any) -> list[tuple[str, str, str]]:
    return [(found.subject, str(found.severity), found.text) for found in findings]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    return home


def test_a_home_is_looked_at_as_a_folder(home: Home, tmp_path: Path) -> None:
    assert told(check_home(home, {})) == [("home", "ok", f"{home.path}, for this user only.")]
    absent = Home(tmp_path / "a" / "b")
    text = f"{absent.path} is not there yet; the first start makes it."
    assert told(check_home(absent, {})) == [("home", "ok", text)]
    file = Home(tmp_path / "file")
    file.path.write_text("")
    (found,) = check_home(file, {"TALARIA_HOME": str(file.path)})
    assert (found.text, found.command) == (f"{file.path} is a file, not a folder.", "unset TALARIA_HOME")
    (found,) = check_home(file, {"TALARIA_HOME": str(tmp_path)})
    assert found.command == ""
    below = Home(file.path / "home")
    (found,) = check_home(below, {})
    assert (str(found.severity), found.text) == (
        "problem",
        f"{below.path} cannot be made: {file.path} cannot be written.",
    )


def test_an_open_home_is_closed_only_if_it_is_one(home: Home) -> None:
    home.path.chmod(0o755)
    (found,) = check_home(home, {})
    assert (str(found.severity), found.command) == ("warn", "")
    assert found.text == f"{home.path} is open to other users (mode 0755)."
    home.config.touch()
    (found,) = check_home(home, {})
    assert found.command == f"chmod 700 {home.path}"
    assert told(check_trust(home)) == []


def test_a_file_in_the_place_of_a_folder_is_told(home: Home) -> None:
    home.logs.write_text("")
    _, found = check_home(home, {})
    assert (str(found.severity), found.text) == (
        "problem",
        f"{home.logs} is a file, and a folder is needed there.",
    )


def status(**more: Any) -> dict[str, Any]:
    return {
        "version": this_version(), "pid": os.getpid(), "ready": True, "rss_bytes": 5 << 20, "channels": {},
        "store": {"engine": "sqlite", "sessions": 1, "size_bytes": 1024, "integrity": "whole"},
        "turns": {}, "owed": {}, **more,
    }  # fmt: skip


def found(name: str, **more: Any) -> list[Problem]:
    return [each for each in check_gateway("http://h", status(**more)) if each.subject == name]


def test_a_gateway_that_is_well_has_three_lines() -> None:
    assert told(check_gateway("http://h", status())) == [
        ("gateway", "ok", f"Running at http://h (pid {os.getpid()}, 5.0 MiB of memory), accepting."),
        ("store", "ok", "sqlite, 1 session, 1.0 KiB; whole."),
        ("owed", "ok", "Nothing: every turn is settled and every reply sent."),
    ]
    (store,) = found("store", store={"engine": "sqlite", "sessions": 2})
    assert store.text == "sqlite, 2 sessions, 0 B; unknown."


def test_what_is_wrong_with_a_gateway_is_told() -> None:
    old, _ = found("gateway", version="0.0.1")
    assert (str(old.severity), old.text) == (
        "warn",
        f"The running gateway is version 0.0.1, this program is {this_version()}.",
    )
    (closed,) = found("gateway", ready=False, reasons=["the disk is full.", "it starts"])
    assert (str(closed.severity), closed.text) == (
        "problem",
        f"Running at http://h (pid {os.getpid()}), but not accepting: the disk is full; it starts.",
    )
    assert found("gateway", ready=False)[0].text.endswith("it does not say why.")
    _, pending = found("gateway", config={"pending": ["http.port", "log.format"]})
    assert pending.text == "http.port, log.format in config.toml will count from the gateway's next start on."
    (store,) = found("store", store={"trouble": "No room."})
    assert (str(store.severity), store.text) == ("problem", "No room.")
    assert store.hint.startswith("Its log says more.")
    (store,) = found("store", store={"trouble": "Deleted.", "trouble_type": "store_gone"})
    assert store.hint.startswith("Stop the gateway, and start it again")


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        ("ready", None),
        ("starting", None),
        ("draining", None),
        ("stopped: no token.", "Fix this,"),
        ("waiting: the network is down", ""),
    ],
)
def test_a_channel_that_is_not_ready_is_told(state: str, fix: str | None) -> None:
    channels = found("telegram", channels={"telegram": state})
    if fix is None:
        assert channels == []
        return
    (channel,) = channels
    assert channel.text == f"The gateway's channel is {state.rstrip('.')}."
    assert channel.hint.startswith(fix)
    assert bool(channel.hint) is bool(fix)


def test_what_is_owed_is_counted_with_the_age_of_the_oldest() -> None:
    turns = {"accepted": 2, "running": 1, "waiting": 0, "done": 9}
    assert _owed(turns, {"replies": 1, "oldest_seconds": 60.0}).startswith(
        "2 accepted, 1 running, 1 reply unsent; the oldest for "
    )
    assert _owed({"waiting": 3}, {}).startswith("3 waiting; the oldest for ")
    owed, lost = found(
        "owed", owed={"replies": 2, "channels": {"gone": 2, "here": 1}}, channels={"here": "ready"}
    )
    assert lost.text == "2 replies cannot be sent: the gateway has no channel gone now."
    assert owed.text.startswith("2 replies unsent")


def test_a_home_without_a_gateway_says_what_is_in_its_database(home: Home) -> None:
    texts = told(check_idle(home, Settings()))
    assert texts[0] == ("gateway", "ok", "Not running. `talaria serve` starts it.")
    assert texts[1] == ("store", "ok", f"{home.database} is not there yet; the first start makes it.")


def running(default: str, missing: dict[str, str] | None = None) -> dict[str, Any]:
    return {"pid": os.getpid(), "model": {"default": default, "missing_keys": missing or {}}}


def test_the_model_of_a_running_gateway_is_told() -> None:
    same = ModelChoice("openai", "gpt")
    assert told(_check_running(running("openai/gpt"), same)) == [
        ("model", "ok", "The running gateway answers with openai/gpt; its key is there or not needed.")
    ]
    assert told(_check_running(running("local/tiny"), None)) == [
        ("model", "ok", "The running gateway answers with local/tiny.")
    ]
    (none,) = _check_running(running(""), same)
    assert (str(none.severity), none.text, none.command) == (
        "problem", "The running gateway has no model.", "talaria setup",
    )  # fmt: skip
    _, differs = _check_running(running("openai/other"), same)
    assert str(differs.severity) == "warn"
    assert "they name openai/gpt, and the running gateway answers with openai/other." in differs.text
    (used,) = _check_running(running("openai/gpt", {"openai": "OPENAI_API_KEY"}), same)
    assert (str(used.severity), "OPENAI_API_KEY is not among its variables" in used.text) == ("problem", True)
    spare, answers = _check_running(running("openai/gpt", {"other": "OTHER_KEY"}), same)
    assert (str(spare.severity), str(answers.severity)) == ("warn", "ok")
