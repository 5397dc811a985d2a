"""A real terminal for tests: keys are typed into tmux, and the screen is read."""

from __future__ import annotations

import shlex
import subprocess
import time
import uuid
from pathlib import Path

DEADLINE = 20.0


class Terminal:
    """A tmux server of its own with one pane."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._environ = environ
        self._socket = f"talaria-test-{uuid.uuid4().hex[:8]}"
        self._folder = folder

    def start(self, *command: str) -> None:
        line = f"{shlex.join(command)}; echo LEFT WITH $?; exec sleep 60"
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "40", "-c", str(self._folder), line
        )

    def stop(self) -> None:
        self._tmux("kill-server", check=False)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def send(self, text: str) -> None:
        self.type(text)
        self.press("Enter")

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-S", "-")

    def title(self) -> str:
        return self._tmux("display-message", "-p", "#{pane_title}")

    def until(self, *texts: str) -> str:
        """The screen as soon as it shows all of these, the last of them on the last line with text."""
        end = time.monotonic() + DEADLINE
        while True:
            screen = self.screen()
            last = screen.rstrip().rpartition("\n")[2]
            if all(text in screen for text in texts[:-1]) and texts[-1] in last:
                return screen
            assert time.monotonic() < end, f"waited for {texts}, the screen is:\n{screen}"
            time.sleep(0.05)

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._socket, *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            check=check,
        )
        return done.stdout
