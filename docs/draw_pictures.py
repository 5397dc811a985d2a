"""Draws the pictures of quickstart.md, discord.md and slack.md: real commands in tmux, written as SVG.

Run it with `./dev pictures` after a change of what these commands print.
"""

# ruff: noqa: S603 - programs of this clone, and tmux

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from talaria.testing.discord_server import DiscordServer
from talaria.testing.slack_platform import ALL_SCOPES
from talaria.testing.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer

FOLDER = Path(__file__).parent / "pictures"
BIN = Path(sys.prefix) / "bin"
WIDTH, HEIGHT = 100, 40
DEADLINE = 30.0
KEY = "sk-an-example"
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")  # the gateway and the model server take any free port
Server = DiscordServer | SlackServer
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # they would be fetched from elsewhere


class Terminal:
    """A shell in a tmux of its own, in a home of its own."""

    def __init__(self, folder: Path, model_url: str) -> None:
        self._folder = folder
        self._model_url = model_url
        self._socket = f"talaria-pictures-{uuid.uuid4().hex[:8]}"
        path = f"{BIN}:{os.environ['PATH']}"
        self._environ = {
            "PATH": path,
            "HOME": str(folder),
            "TERM": "xterm-256color",
            "PS1": "$ ",
            "TALARIA_HTTP__PORT": "0",
            "LANG": "C.UTF-8",
        }
        shell = ["env", "-i", *(f"{name}={value}" for name, value in self._environ.items()), "sh"]
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), shlex.join(shell)
        )
        self.until("$")

    def send(self, text: str, *then: str) -> None:
        """Type a line, and wait until the screen shows all of these."""
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")
        self.until(*then)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def until(self, *texts: str) -> None:
        end = time.monotonic() + DEADLINE
        while not all(text in self.screen() for text in texts):
            if time.monotonic() > end:
                raise SystemExit(f"waited for {texts}; the screen is:\n{self.screen()}")
            time.sleep(0.05)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-e")

    def draw(self, name: str, title: str, hidden: str = "") -> None:
        """Write the screen as a picture, without the text `hidden`."""
        screen = self.screen().replace(hidden, "") if hidden else self.screen()
        screen = _ADDRESS.sub(self._shown, screen.replace(str(self._folder), "/home/you"))
        lines = [line.rstrip() for line in screen.splitlines()]
        while lines and lines[-1] in ("", "$"):
            lines.pop()
        console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: PTH123, SIM115
        for line in lines:
            console.print(Text.from_ansi(line), soft_wrap=False)
        svg = console.export_svg(title=title, unique_id=f"talaria-{name}")
        (FOLDER / f"{name}.svg").write_text(_FONTS.sub("", svg), encoding="utf-8")

    def _shown(self, address: re.Match[str]) -> str:
        return f"127.0.0.1:{8000 if address[0] in self._model_url else 8765}"

    def close(self) -> None:
        self._tmux("kill-server", check=False)

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=check)
        return done.stdout


@contextmanager
def model_server() -> Iterator[str]:
    """One that wants its key, so that the pictures show what happens without."""
    options = ["--port", "0", "--key", KEY, "--model", "qwen3-coder", "--model", "gpt-oss-20b"]
    command = [sys.executable, "-m", "talaria.testing.model_server", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split("; ")[0].removeprefix("Scripted model at ")
        finally:
            server.terminate()


def draw_setup(terminal: Terminal, url: str) -> None:
    terminal.send("talaria setup", "Which one")
    last = max(line.split()[0] for line in terminal.screen().splitlines() if line[:5].strip().isdigit())
    terminal.send(last, "Provider")
    terminal.send("mine", "Address of mine")
    terminal.send(url, "Key of mine")
    terminal.send("sk-mistyped", "Type the right key")
    time.sleep(0.3)
    terminal.send(KEY, "Which model")
    terminal.send("qwen3-coder", "[y/N]:")
    terminal.send("y", "Next:")
    terminal.draw("setup", "talaria setup")


def draw_serve(terminal: Terminal, url: str) -> None:
    terminal.send("talaria serve", "spend cap", "spend cap")
    terminal.draw("serve", "talaria serve")


def draw_chat(terminal: Terminal, url: str) -> None:
    terminal.send("talaria chat", "Ctrl-D leaves", "›")
    terminal.send("Good morning!", "You said: Good morning!", " out ")
    terminal.send("/status", "Agent main")
    terminal.draw("chat", "talaria chat")
    terminal.press("C-d")
    terminal.until("$")


def draw_doctor(terminal: Terminal, url: str) -> None:
    terminal.send("talaria config set pool.max_agents lots", "Nothing was written")
    time.sleep(0.5)
    terminal.send("chmod 755 ~/.talaria; printf '[pool]\\nmax_agent = 32\\n' >> ~/.talaria/config.toml", "$")
    time.sleep(0.5)
    terminal.send("clear", "$")
    terminal.send("talaria doctor", "warning")
    terminal.draw("doctor", "talaria doctor")


@contextmanager
def fake_platform(server: Server) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run a fake platform in a thread, and give the function that calls another one there."""
    loop, started = asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        async with server:
            started.set()
            await stopped.wait()

    stopped = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield lambda act: loop.call_soon_threadsafe(act) and None
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


def find_code(terminal: Terminal) -> str:
    found = re.search(r"start ([0-9A-Z-]{14})", terminal.screen())
    return found[1] if found else ""


def draw_discord(terminal: Terminal, url: str) -> None:
    """Two mistakes: a wrong token, and the missing intent."""
    discord = DiscordServer()
    with fake_platform(discord) as call:
        terminal.send(f"talaria connect discord --api-url {discord.url}", "Token of the bot:")
        for token, told in (
            ("the-client-secret", "public key are not the token"),
            (discord.token, "Then paste the token again"),
            (discord.token, "Waiting for that"),
        ):
            time.sleep(0.5)  # what is typed before the question is dropped
            discord.platform.has_message_content = told.startswith("Waiting")
            terminal.send(token, told)
        code = find_code(terminal)
        time.sleep(1)  # until it listens
        call(lambda: discord.person(7).says(f"/start {code}"))
        terminal.until("is paired")
        terminal.draw("connect-discord", "talaria connect discord", f" --api-url {discord.url}")


def draw_slack(terminal: Terminal, url: str) -> None:
    """Two mistakes: the app-level token is mistyped, and a scope is missing."""
    slack = SlackServer()
    with fake_platform(slack) as call:
        slack.platform.scopes = ALL_SCOPES.replace(",users:read", "")
        terminal.send(f"talaria connect slack --api-url {slack.api_url}", "Token (xoxb-…):")
        for tokens, told in (
            ((BOT_TOKEN, APP_TOKEN), "users:read."),
            ((BOT_TOKEN, "xapp-mistyped"), "this app-level token"),
            ((BOT_TOKEN, APP_TOKEN), "Waiting for that"),
        ):
            for token in tokens:
                time.sleep(0.5)  # what is typed before the question is dropped
                terminal.send(token)
            terminal.until(told)
            slack.platform.scopes = ALL_SCOPES
        code = find_code(terminal)
        time.sleep(1)  # until it listens
        call(lambda: slack.person("U7ADA").says(f"!start {code}"))
        terminal.until("is paired")
        terminal.draw("connect-slack", "talaria connect slack", f" --api-url {slack.api_url}")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    drawn: list[Callable[[Terminal, str], None]] = [
        *(draw_setup, draw_serve, draw_chat, draw_doctor),
        *(draw_discord, draw_slack),
    ]
    with tempfile.TemporaryDirectory() as folder, model_server() as url:
        terminals: list[Terminal] = []
        try:
            for draw in drawn:
                terminals.append(Terminal(Path(folder), url))
                draw(terminals[-1], url)
        finally:
            for terminal in reversed(terminals):
                terminal.close()
    for path in sorted(FOLDER.glob("*.svg")):
        sys.stdout.write(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}\n")


if __name__ == "__main__":
    main()
