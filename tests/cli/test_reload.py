"""config.toml changed under a running gateway: new sessions follow, those that exist keep their prefix."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Caller, Serve, Talaria
from support.forks import ForkedProcess
from support.prefixes import PrefixWatch
from support.waiting import wait_until


class Gateway:
    def __init__(self, home: Path, process: ForkedProcess, model_url: str) -> None:
        self.home = home
        self.process = process
        self._model = model_url.removesuffix("/v1")
        self._caller = Caller(home)

    def status(self) -> Any:
        return self._caller.call("/api/status")

    def bodies(self) -> list[bytes]:
        """What the model was sent, and forget it."""
        request = urllib.request.Request(f"{self._model}/_recorded", method="DELETE")
        with urllib.request.urlopen(request) as answer:
            return [body.encode() for body in json.loads(answer.read())]

    def until(self, condition: Callable[[Any], bool]) -> None:
        wait_until(lambda: condition(self.status()["config"]))


@pytest.fixture
def gateway(home: Path, serve: Serve, model_url: str) -> Gateway:
    gateway = Gateway(home, serve(), model_url)
    gateway.bodies()
    return gateway


def test_new_sessions_follow_and_running_ones_keep_their_prefix(gateway: Gateway, talaria: Talaria) -> None:
    talaria("ask", "--session", "old", "one")
    (first,) = gateway.bodies()
    before = (gateway.home / "config.toml").read_text()
    (gateway.home / "config.toml").write_text(
        before.replace('name = "m"', 'name = "other"')
        + '[agent]\nprompt = "Speak like a pirate."\n'
        + '[tools]\nenabled = ["todo"]\n[shutdown]\ndeadline = "9s"\n'
    )
    gateway.process.send_signal(signal.SIGHUP)
    gateway.until(lambda config: config["pending"] == ["shutdown.deadline"])
    talaria("ask", "--session", "old", "two")
    (second,) = gateway.bodies()
    watch = PrefixWatch(lambda body: "old")
    watch.see_all([first, second])
    assert watch.breaks == []
    assert b"pirate" not in second
    assert json.loads(second)["model"] == "m"
    talaria("ask", "--session", "new", "three")
    (third,) = gateway.bodies()
    assert b"pirate" in third
    assert json.loads(third)["model"] == "other"
    assert [tool["function"]["name"] for tool in json.loads(third)["tools"]] == ["todo"]


def test_a_change_is_noticed_without_a_signal(gateway: Gateway, talaria: Talaria) -> None:
    done = talaria("config", "set", "pool.max_agents", "7")
    assert "within seconds" in done.stdout
    talaria("config", "set", "http.max_body", "1MiB")
    gateway.until(lambda config: config["pending"] == ["http.max_body"])
    assert "7 agents" in talaria("top", "--once").stdout
    found = talaria("doctor").stdout
    assert "http.max_body" in found
    assert "next start" in found


def test_a_broken_file_is_told_of_and_changes_nothing(gateway: Gateway, talaria: Talaria) -> None:
    (gateway.home / "config.toml").write_text("[pool\n")
    gateway.process.send_signal(signal.SIGHUP)
    gateway.until(lambda config: "line 1" in config["trouble"])
    assert talaria("ask", "still there?").stdout.strip() == "You said: still there?"
