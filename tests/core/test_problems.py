"""The commands that a finding offers are those that help here."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from support.waiting import wait_until
from talaria.core.errors import ConfigError, ErrorInfo
from talaria.core.problems import (
    Action,
    Do,
    Problem,
    Severity,
    close_command,
    end_command,
    install_command,
    ok,
    problem,
    warn,
)


def test_only_a_process_of_talaria_is_offered_to_be_ended() -> None:
    with (
        subprocess.Popen((sys.executable, "-c", "input()", "talaria"), stdin=subprocess.PIPE) as ours,
        subprocess.Popen(("sleep", "60")) as other,
    ):
        try:
            assert wait_until(lambda: end_command(ours.pid)) == f"kill {ours.pid}"  # once it has its name
            assert end_command(other.pid) == ""
        finally:
            ours.kill()
            other.kill()
    assert end_command(ours.pid) == ""


def test_a_file_outside_of_the_home_is_not_closed_to_others(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    outside = tmp_path / "shared.env"
    outside.touch()
    link = home / ".env"
    os.symlink(outside, link)
    assert close_command(outside, home) == close_command(link, home) == ""
    assert close_command(home / "config.toml", home) == f"chmod 600 {home / 'config.toml'}"


def test_a_package_is_installed_the_way_this_program_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command("a b") in (
        f"{shlex.quote(sys.executable)} -m pip install 'a b'",
        f"uv pip install --python {shlex.quote(sys.executable)} 'a b'",
    )
    (tmp_path / "pipx_metadata.json").touch()
    assert install_command("a b") == "pipx inject talaria-gateway 'a b'"


def test_findings_have_their_level_and_their_texts() -> None:
    error = ConfigError("Wrong.", "Mend it.")
    told = error.problem("a", "mend")
    assert (told.subject, told.severity, told.text, told.hint, told.command) == (
        "a", Severity.PROBLEM, "Wrong.", "Mend it.", "mend",
    )  # fmt: skip
    assert (ok("a", "t").severity, warn("a", "t").severity, problem("a", "t").severity) == (
        Severity.OK,
        Severity.WARN,
        Severity.PROBLEM,
    )
    assert warn("a", "t", "f", "c") == Problem("t", "f", Action(Do.RUN, "c"), Severity.WARN, "a")
    assert problem("a", "t", "f", "c") == Problem("t", "f", Action(Do.RUN, "c"), subject="a")


def test_the_words_of_an_action_follow_those_for_a_chat() -> None:
    words = {Do.USE_MODEL: "Name another", Do.STOP_TURN: "cancel {}"}
    assert Action(Do.USE_MODEL, "Choose one").worded(words) == "Name another"
    assert Action(Do.USE_MODEL, "choose one").worded(words) == "name another"
    assert Action(Do.STOP_TURN, "it").worded(words) == "cancel it"
    assert Action(Do.RESUME, "{0}{x}").worded(words) == "Send `/resume {0}{x}` to the chat first, or write"


def test_an_action_of_a_newer_version_leaves_the_hint_as_it_is() -> None:
    sent = (
        b'{"type":"t","message":"m","hint":"Do {this} now.","action":{"do":"dance","what":"{this}","more":1}}'
    )
    info = msgspec.json.decode(sent, type=ErrorInfo)
    assert info.action == Action(Do.UNKNOWN, "{this}")
    assert info.hint_in({Do.USE_MODEL: "Name another"}) == "Do {this} now."
    empty = msgspec.structs.replace(info, action=Action(Do.UNKNOWN))
    assert empty.hint_in({}) == "Do {this} now."


def test_an_error_is_a_problem_with_its_action() -> None:
    action = Action(Do.NEW_BUDGET)
    error = ConfigError("Wrong.", f"{action}.", action=action)
    assert error.problem("a").action == error.info().action == action
    assert error.problem("a", "mend").command == "mend"
    assert ConfigError("Wrong.").info().action is msgspec.UNSET
