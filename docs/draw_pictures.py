"""Draws the pictures of docs/quickstart.md: real commands in a real terminal (tmux), written as SVG.

Run it with `./dev pictures` after a change of what these commands print.
"""

# ruff: noqa: S603 - programs of this clone, and tmux

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent / "pictures"
BIN = Path(sys.prefix) / "bin"
WIDTH, HEIGHT = 100, 40
DEADLINE = 30.0
KEY = "sk-an-example"
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")  # the gateway and the model server take any free port
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

    def draw(self, name: str, title: str) -> None:
        screen = _ADDRESS.sub(self._shown, self.screen().replace(str(self._folder), "/home/you"))
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


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    drawn: list[Callable[[Terminal, str], None]] = [draw_setup, draw_serve, draw_chat, draw_doctor]
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
