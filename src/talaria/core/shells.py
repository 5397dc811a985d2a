"""The port of a session's shell: commands, their output and their end."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

OutputSink: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Takes the output of a command piece by piece. The command waits for it, so that memory is bounded."""


@dataclass(frozen=True, slots=True)
class ShellState:
    """The state that a session's next command finds. `cwd` is a path inside the sandbox; empty means the
    folder of the chat. `changed` and `removed` are the variables that commands exported and unset."""

    cwd: str = ""
    changed: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A text for the shell. `seconds` is its time limit. With `tty` it runs in a terminal of its own."""

    text: str
    seconds: float
    tty: bool = False


@dataclass(frozen=True, slots=True)
class ShellEnd:
    """The end of a command. `code` is its exit code; 128 + n if signal n ended it, as a shell tells it.

    `cwd` is where the next command begins. `waited` names the program that waited for input, if the command
    was ended for that. `note` tells the model what else it should know; it is empty, or a sentence.
    """

    code: int
    cwd: str
    timed_out: bool = False
    waited: str = ""
    note: str = ""

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that ended the command, if one did."""
        try:
            return signal.Signals(self.code - 128)
        except ValueError:
            return None
