"""`talaria connect telegram`, and the gateway that runs with it, against the fake Bot API's own process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import DEADLINE, Serve, Talaria, started
from cli.terminal import Terminal
from support.programs import needs
from support.waiting import wait_until
from talaria.testing.telegram_server import TOKEN


class Platform:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, order: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"{self.url}/_control/{order}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    def replies(self, chat: int) -> list[str]:
        return [each["text"] for each in self("chats").get(str(chat), []) if each["by_bot"]]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with started("telegram_server") as url:
        yield Platform(url)


def test_the_first_who_presents_the_code_is_paired_and_then_answered(
    home: Path, environ: dict[str, str], platform: Platform
) -> None:
    config = home / "config.toml"
    before = "# my settings\n" + config.read_text() + "\n[pool]\nmax_agents = 9  # enough\n"
    before += '[people.owner]\nids = ["slack:U7ADA"]\n'
    config.write_text(before)
    env = {"TALARIA_HOME": str(home), **environ}
    talaria = [sys.executable, "-m", "talaria"]
    connecting = subprocess.Popen(
        [*talaria, "connect", "telegram", "--api-url", platform.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert connecting.stdin is not None
    assert connecting.stdout is not None
    connecting.stdin.write(TOKEN + "\n")
    connecting.stdin.flush()
    lines: list[str] = []
    while not (lines and lines[-1].startswith("or send")):
        lines.append(connecting.stdout.readline())
        assert lines[-1], lines
    code = lines[-1].split()[-1]
    assert f"https://t.me/talaria_bot?start={code}" in "".join(lines)
    platform("say", user=8, name="Eve", text="/start ABCD-EFGH-JKMN")
    platform("say", user=7, text=f"/start {code}")
    rest, _ = connecting.communicate(timeout=DEADLINE)
    assert connecting.returncode == 0
    assert f"Ada is paired.\nNext: talaria serve --home {home}\n" in rest
    assert " config set people.owner.ids slack:U7ADA,telegram:7`" in rest, "the known ones stay"
    assert TOKEN not in "".join(lines) + rest
    assert config.read_text().startswith(before)
    assert TOKEN not in config.read_text()
    assert (home / "telegram.token").stat().st_mode & 0o777 == 0o600

    with subprocess.Popen(
        [*talaria, "serve", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    ) as gateway:  # fmt: skip
        try:
            platform("say", user=7, text="hello")
            wait_until(lambda: "You said: hello" in platform.replies(7))
            assert len(platform.replies(8)) == 1  # a code for Eve, no turn
            said = subprocess.run(
                [*talaria, "doctor", "--json"], env=env, capture_output=True, text=True, check=False
            )
            found = {each["name"]: each for each in json.loads(said.stdout)["findings"]}
            assert found["telegram"]["level"] == "ok"
        finally:
            gateway.terminate()
            _, log = gateway.communicate(timeout=DEADLINE)
    assert gateway.returncode == 0
    assert TOKEN not in log


def test_a_running_gateway_opens_the_channel_without_a_restart(
    home: Path, environ: dict[str, str], platform: Platform, serve: Serve
) -> None:
    serve()
    with subprocess.Popen(
        [sys.executable, "-m", "talaria", "connect", "telegram", "--api-url", platform.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"TALARIA_HOME": str(home), **environ},
    ) as connecting:  # fmt: skip
        assert connecting.stdin is not None
        assert connecting.stdout is not None
        connecting.stdin.write(TOKEN + "\n")
        connecting.stdin.flush()
        lines: list[str] = []
        while not (lines and lines[-1].startswith("Waiting for that, 300 seconds at most")):
            lines.append(connecting.stdout.readline())
            assert lines[-1], lines
        told = [line.split()[0] for line in lines if line.strip()]
        assert told == ["Connected", "The", "Open", "or", "The", "Waiting"]
        assert "The running gateway opens the channel within seconds." in "".join(lines)
        code = next(line for line in lines if line.startswith("or send")).split()[-1]
        platform("say", user=7, text=f"/start {code}")
        rest, _ = connecting.communicate(timeout=DEADLINE)
    assert rest.strip().startswith("Ada is paired.\nIf Ada is you, ")
    assert " config set people.owner.ids telegram:7`" in rest


@needs("tmux")
def test_in_a_terminal_a_line_moves_until_somebody_comes(
    home: Path, platform: Platform, terminal: Terminal
) -> None:
    command = [sys.executable, "-m", "talaria", "connect", "telegram", "--api-url", platform.url]
    terminal.start("env", f"MY_TOKEN={TOKEN}", *command, "--token-env", "MY_TOKEN", "--home", str(home))
    terminal.until("waiting for /start … 1 s of 300")
    screen = terminal.until("waiting for /start … 2 s of 300")
    code = next(line for line in screen.splitlines() if line.startswith("or send")).split()[-1]
    platform("say", user=7, text=f"/start {code}")
    assert "waiting for /start" not in terminal.until("Ada is paired.", "LEFT WITH 0")


@needs("tmux")
def test_in_a_terminal_a_wrong_token_is_asked_for_again(
    home: Path, platform: Platform, terminal: Terminal
) -> None:
    command = [sys.executable, "-m", "talaria", "connect", "telegram", "--api-url", platform.url]
    terminal.start(*command, "--wait", "0", "--home", str(home))
    terminal.until("Token from @BotFather:")
    terminal.send("123:wrong")
    screen = terminal.until("Telegram does not know this token.", "Token from @BotFather:")
    terminal.send(TOKEN)
    terminal.until("Connected @talaria_bot", "LEFT WITH 0")
    assert "123:wrong" not in screen


def test_a_token_that_telegram_refuses_is_not_written(
    home: Path, talaria: Talaria, platform: Platform
) -> None:
    before = (home / "config.toml").read_text()
    done = talaria("connect", "telegram", "--api-url", platform.url, stdin="123:wrong\n")
    assert done.returncode == 1
    assert "Telegram does not know this token." in done.stderr
    assert "wrong" not in done.stderr
    assert (home / "config.toml").read_text() == before
    assert not (home / "telegram.token").exists()


def test_a_variable_can_hold_the_token(home: Path, talaria: Talaria, platform: Platform) -> None:
    env = {"MY_TOKEN": TOKEN}
    done = talaria(
        "connect", "telegram", "--api-url", platform.url, "--token-env", "MY_TOKEN", "--wait", "0", env=env
    )
    assert done.returncode == 0, done.stderr
    assert 'token_env = "MY_TOKEN"' in (home / "config.toml").read_text()
    assert not (home / "telegram.token").exists()
    checked = talaria("doctor")
    assert "MY_TOKEN" in checked.stdout
    missing = talaria("connect", "telegram", "--token-env", "NOT_THERE")
    assert "There is no token in NOT_THERE." in missing.stderr


def test_the_platforms_are_those_of_the_list(talaria: Talaria) -> None:
    unknown = talaria("connect", "telegramm").stderr
    assert "There is no command `talaria connect telegramm`. Did you mean" in unknown
    assert "talaria connect telegram" in talaria("connect", "--help").stdout


@needs("tmux")
def test_in_a_terminal_a_token_that_is_pasted_too_early_is_not_shown(home: Path, terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "talaria", "connect", "telegram", "--api-url", url]
        terminal.start(*command, "--wait", "0", "--home", str(home))
        terminal.until("Token from @BotFather:")
        terminal.send("123:first")
        terminal.until("Trying telegram … 1 s")
        terminal.send("123:second")
        screen = terminal.until("Trying telegram … 2 s")
    assert "123:" not in screen
