"""A real terminal for tests: tmux types keys and reads the screen."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

DEADLINE = 60.0


class Terminal:
    """A tmux server with one pane."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._environ = environ
        self._socket = f"talaria-test-{uuid.uuid4().hex[:8]}"
        self._folder = folder
        self._record = folder / f"{self._socket}.record"

    def start(self, *command: str) -> None:
        """Run the command. It begins when its output is recorded."""
        wait = shlex.join(["tmux", "-L", self._socket, "wait-for", "recorded"])
        line = f"{wait}; {shlex.join(command)}; echo LEFT WITH $?; exec sleep 60"
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "40", "-c", str(self._folder), line
        )
        self._record.touch()
        self._tmux("pipe-pane", f"cat >{shlex.quote(str(self._record))}")
        self._tmux("wait-for", "-S", "recorded")

    def stop(self) -> None:
        """Close the terminal, as a user does by closing its window. Its programs must end by themselves."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}", check=False).strip()
        self._tmux("kill-server", check=False)
        end = time.monotonic() + DEADLINE
        while left := _processes_of(shell):
            if time.monotonic() > end:
                for process in left:
                    os.kill(process, signal.SIGKILL)
                raise AssertionError(f"{len(left)} processes lived on after their terminal was closed")
            time.sleep(0.02)

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
        """Wait until the screen shows all texts, the last of them on its last line, and return the screen."""
        end = time.monotonic() + DEADLINE
        while True:
            screen = self.screen()
            last = screen.rstrip().rpartition("\n")[2]
            if all(text in screen for text in texts[:-1]) and texts[-1] in last:
                return screen
            assert time.monotonic() < end, f"waited for {texts}, the screen is:\n{screen}"
            time.sleep(0.05)

    def until_written(self, pattern: str) -> None:
        """Wait until the program has written this at any time, however short it was on the screen."""
        end = time.monotonic() + DEADLINE
        while not re.search(pattern, written := self._record.read_text(errors="replace")):
            assert time.monotonic() < end, f"waited for {pattern}, written is:\n{written}"
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


def _processes_of(session: str) -> list[int]:
    """Return the processes of a session of the operating system, which a terminal's shell leads."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat") if session else ():
        with suppress(OSError):  # it has just ended
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if its_session == session and state != "Z":
                found.append(int(stat.parent.name))
    return found
