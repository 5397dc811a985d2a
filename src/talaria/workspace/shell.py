"""The shell of a session: commands in its sandbox, with a working directory and an environment that last."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.errors import ToolError
from talaria.core.shells import OutputSink, ShellCommand, ShellEnd, ShellState
from talaria.workspace.places import SessionPlaces
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.port import ProcessLimits, Sandbox, SandboxCommand, SandboxError
from talaria.workspace.sandbox.process import Ending, open_process
from talaria.workspace.shell_state import MAX_STATE_BYTES, compare, load_state, parse_dump, save_state

if TYPE_CHECKING:
    from talaria.workspace.network import SessionNetworks

# It has no line break, so that the shell counts the lines of the command from 1. The state is written when
# the command has ended, and by the trap if it left the shell by itself.
_SCRIPT = 'trap {save} EXIT; {begin}eval "$1"; set -- $?; {{ {save_now}; }}; exit $1'
_SAVE = (
    "{{ set +eux; }} 2>/dev/null; "
    "[ -e {dump} ] || {{ printf '%s\\0' \"$PWD\"; command -p env -0; }} >{dump} 2>/dev/null"
)
_ENTER = (
    "cd -- {cwd} 2>/dev/null || "
    "printf '[The working folder %s is gone. This runs in %s.]\\n' {cwd} \"$PWD\"; "
)


class SessionCommands:
    """Makes commands of sessions ready to run: sandbox, folders, variables and limits. Shared by all."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        environ: Callable[[], Mapping[str, str]] = dict,
        limits: ProcessLimits | None = None,
        networks: SessionNetworks | None = None,
    ) -> None:
        """`environ` returns the variables that every command gets. Without `networks` none has a network."""
        self.sandboxes = sandboxes
        self._networks = networks
        self._environ = environ
        self._limits = limits or ProcessLimits()

    async def make(
        self,
        places: SessionPlaces,
        argv: Sequence[str],
        state: ShellState,
        seconds: float,
        *,
        is_background: bool = False,
    ) -> SandboxCommand:
        """Return a command that runs in the session's folders and network with its variables. Makes the
        folders. Nobody waits for a background process, so an unlisted host is refused to it at once.

        Raises `ToolError`.
        """
        await asyncio.to_thread(places.make)
        network = None
        if self._networks is not None:
            sandbox = await self.sandboxes.get()
            network = await self._networks.access(places, sandbox, is_background=is_background)
        environ = {"SHELL": find_shell(), **self._environ(), **state.changed}
        return SandboxCommand(
            argv=argv,
            folder=places.folder,
            home=places.home,
            tmp=places.tmp,
            environ=environ,
            limits=replace(self._limits, seconds=seconds),
            network=network,
        )

    def network_note(self, places: SessionPlaces) -> str:
        """Return what the model should know of the network since the last command; empty if nothing."""
        return self._networks.note(places.session_id) if self._networks is not None else ""

    async def make_background(self, places: SessionPlaces, text: str) -> tuple[Sandbox, SandboxCommand]:
        """Return the sandbox and a command without a time limit, which begins where the session's shell is
        and leaves the shell's state alone. Raises `ToolError`."""
        sandbox = await self.sandboxes.get()
        state = await asyncio.to_thread(load_state, places.shell_state)
        argv = (find_shell(), "-c", f'{_begin(state)}eval "$1"', "sh", text)
        return sandbox, await self.make(places, argv, state, 0.0, is_background=True)


class SessionShell:
    """A `Shell` over the places of one session."""

    def __init__(self, places: SessionPlaces, commands: SessionCommands) -> None:
        self._places = places
        self._commands = commands

    async def state(self) -> ShellState:
        return await asyncio.to_thread(load_state, self._places.shell_state)

    async def run(self, command: ShellCommand, sink: OutputSink) -> ShellEnd:
        sandbox = await self._commands.sandboxes.get()
        state = await self.state()
        dump = f".talaria-{secrets.token_hex(8)}"
        inside = "/tmp" if sandbox.name == "bubblewrap" else str(self._places.tmp)  # noqa: S108
        argv = (find_shell(), "-c", _script(state, f"{inside}/{dump}"), "sh", command.text)
        made = await self._commands.make(self._places, argv, state, command.seconds)
        try:
            async with open_process(sandbox, made) as process:
                async for piece in process.output():
                    await sink(piece.content)
                ending = await process.wait()
        except SandboxError as error:
            raise ToolError(error.user_text, error.hint) from error
        finally:
            kept = await asyncio.to_thread(self._keep, state, made.variables(inside), dump)
        return self._end(ending, kept)

    def _keep(self, before: ShellState, given: Mapping[str, str], dump: str) -> ShellState:
        """Save the state that the command left, and return it; the one before if it left none. Blocks."""
        path = self._places.tmp / dump
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return before
        with os.fdopen(fd, "rb") as file:
            content = file.read(MAX_STATE_BYTES + 1)
        with suppress(OSError):
            path.unlink()
        found = parse_dump(content)
        if found is None:
            return before
        after = compare(before, given, *found)
        if after != before:
            save_state(self._places.shell_state, after)
        return after

    def _end(self, ending: Ending, state: ShellState) -> ShellEnd:
        note = self._commands.network_note(self._places)
        return ShellEnd(ending.code, state.cwd or str(self._places.folder), ending.timed_out, note)


@cache
def find_shell() -> str:
    """Return the path of the shell that runs commands: bash where it is installed."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if Path(path).exists()), "/bin/sh")


def _script(state: ShellState, dump: str) -> str:
    save = _SAVE.format(dump=shlex.quote(dump))
    return _SCRIPT.format(
        save=shlex.quote(save),
        save_now=save,
        begin=_begin(state),
    )


def _begin(state: ShellState) -> str:
    """Return the words that bring a shell into the session's state."""
    unset = f"unset {' '.join(state.removed)}; " if state.removed else ""
    return unset + (_ENTER.format(cwd=shlex.quote(state.cwd)) if state.cwd else "")
