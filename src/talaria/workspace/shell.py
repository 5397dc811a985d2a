"""The shell of a session: commands in its sandbox, with a working directory and an environment that last."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talaria.core.errors import ToolError
from talaria.core.shells import OutputSink, ShellCommand, ShellEnd, ShellState
from talaria.core.slots import FairThreads
from talaria.core.tasks import stop
from talaria.core.whole_files import replace_file
from talaria.workspace.places import SessionPlaces, make_private
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import (
    ProcessLimits,
    Sandbox,
    SandboxCommand,
    SandboxError,
    is_settable,
)
from talaria.workspace.sandbox.group import below
from talaria.workspace.sandbox.process import Ending, SandboxedProcess, open_process

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
_SAID_BYTES = 500


class SessionCommands:
    """Makes commands of sessions ready to run: sandbox, folders, variables and limits. Shared by all."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        environ: Callable[[], Mapping[str, str]] = dict,
        limits: ProcessLimits | None = None,
        networks: SessionNetworks | None = None,
        threads: FairThreads | None = None,
        *,
        readable: Callable[[], tuple[Path, ...]] = tuple,
        leash: Path | None = None,
    ) -> None:
        """`environ` returns the variables that every command gets, and `readable` the folders beyond its own
        that it may read. Without `networks` none has a network. `threads` run what blocks. `leash` ends
        commands and processes of a gateway that is cut off from its cluster."""
        self.sandboxes = sandboxes
        self.threads = threads or FairThreads("talaria-shell", lambda: 4)
        self.networks = networks
        self.leash = leash
        self._environ = environ
        self._readable = readable
        self._limits = limits or ProcessLimits()

    async def make(
        self,
        places: SessionPlaces,
        seconds: float,
        *,
        is_background: bool = False,
    ) -> tuple[SandboxCommand, ShellState]:
        """Return a command without words, which runs in the session's folders and network with its variables,
        and the state that its shell begins with. Makes the folders. Nobody waits for a background process, so
        an unlisted host is refused to it at once.

        Raises `ToolError`.
        """

        def begin() -> ShellState:
            places.make()
            return load_state(places.shell_state)

        if places.shared is None and places.is_made():
            state = load_state(places.shell_state)
        else:
            state = await self.threads.run(places, begin)
        network = None
        if self.networks is not None:
            sandbox = await self.sandboxes.get()
            network = await self.networks.access(places, sandbox, is_background=is_background)
        environ = {"SHELL": find_shell(), **self._environ(), **state.changed}
        command = SandboxCommand(
            argv=(),
            folder=places.folder,
            home=places.home,
            tmp=places.tmp,
            environ=environ,
            readable=self._readable(),
            limits=replace(self._limits, seconds=seconds),
            network=network,
            is_joined=True,
        )
        return command, state

    def network_note(self, places: SessionPlaces) -> str:
        """Return what the model should know of the network since the last command; empty if nothing."""
        return self.networks.note(places.session_id) if self.networks is not None else ""

    async def make_background(self, places: SessionPlaces, text: str) -> tuple[Sandbox, SandboxCommand]:
        """Return the sandbox and a command without a time limit, which begins where the session's shell is
        and leaves the shell's state alone. Raises `ToolError`."""
        sandbox = await self.sandboxes.get()
        command, state = await self.make(places, 0.0, is_background=True)
        argv = (find_shell(), "-c", f'{_begin(state)}eval "$1"', "sh", text)
        return sandbox, replace(command, argv=argv)


class SessionShell:
    """The shell of a session. Its working directory and environment last from command to command, and outlive
    the handle, the gateway and the end of the session. A program that waits for input is ended when it has
    been silent for `patience` seconds."""

    def __init__(self, places: SessionPlaces, commands: SessionCommands, patience: float = 5.0) -> None:
        self._places = places
        self._commands = commands
        self._patience = patience

    @property
    def confinement(self) -> str:
        """The sandbox that commands run in, in a sentence; empty if no command has needed one yet."""
        choice = self._commands.sandboxes.status
        return "" if choice is None else choice.reason

    async def state(self) -> ShellState:
        """Return the state as the next command will find it. Does not need a sandbox."""
        return await self._commands.threads.run(self._places, load_state, self._places.shell_state)

    async def run(self, command: ShellCommand, sink: OutputSink) -> ShellEnd:
        """Run a command in the session's sandbox and wait for its end.

        Every process of it is gone when this returns, raises or is cancelled. Raises `ToolError` if it cannot
        be run; a command that fails or runs out of time is a `ShellEnd`.
        """
        if not command.text.strip():
            raise ToolError("The command is empty.", "Say what to run.")
        sandbox = await self._commands.sandboxes.get()
        dump = f".talaria-{secrets.token_hex(8)}"
        made, state = await self._commands.make(self._places, command.seconds)
        tmp = sandbox.temporary(made)
        argv = (find_shell(), "-c", _script(state, f"{tmp}/{dump}"), "sh", command.text)
        made = replace(made, argv=argv, tty=command.tty)
        watch = _Watch(sink)
        note = ""
        try:
            async with open_process(sandbox, made, self._commands.leash) as process:
                ending = await self._follow(process, watch, is_typed=command.tty)
        except SandboxError as error:
            text = error.user_text.replace("see its output", watch.said() or "it said nothing")
            raise ToolError(text, error.hint) from error
        finally:
            given = made.variables(tmp)
            state, note = await self._commands.threads.run(self._places, self._keep, state, given, dump)
        cwd = state.cwd or str(self._places.folder)
        note = f"{note} {self._commands.network_note(self._places)}".strip()
        return ShellEnd(ending.code, cwd, ending.timed_out, watch.waited, note)

    async def _follow(self, process: SandboxedProcess, watch: _Watch, *, is_typed: bool) -> Ending:
        """Pass the output on until the command ends. A command on a terminal is watched for programs that
        wait for input, which nobody gives."""
        watching = asyncio.create_task(self._watch(process, watch), name="waiting") if is_typed else None
        try:
            async for piece in process.output():
                await watch.take(piece.content)
            return await process.wait()
        finally:
            if watching is not None:
                await stop(watching)

    async def _watch(self, process: SandboxedProcess, watch: _Watch) -> None:
        while True:
            before = watch.count
            await asyncio.sleep(self._patience)
            if watch.count != before:
                continue
            found = await self._commands.threads.run(
                self._places, _find_reader, process.pid, watch.has_prompt
            )
            if found and watch.count == before:
                watch.waited = found
                await process.kill()
                return

    def _keep(self, before: ShellState, given: Mapping[str, str], dump: str) -> tuple[ShellState, str]:
        """Save the state that the command left. Return the state for the next command, which is the one
        before if this one left none, and a note. Blocks."""
        content = _take_dump(self._places.tmp / dump)
        if content is None:
            return before, ""
        found = parse_dump(content)
        if found is None:
            text = f"Its variables have more than {MAX_STATE_BYTES >> 10} KiB, so they were not kept."
            return before, text if len(content) > MAX_STATE_BYTES else ""
        after = compare(before, given, *found)
        if after.cwd == str(self._places.folder):
            after = replace(after, cwd="")
        try:
            if after != before:
                save_state(self._places.shell_state, after)
        except OSError as error:
            return before, f"The working directory and variables could not be kept: {error.strerror}."
        return after, ""


class _Watch:
    """The output of a command as it is passed on: how much, and how it ends."""

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self._last = b""
        self.count = 0
        self.waited = ""

    @property
    def has_prompt(self) -> bool:
        return bool(self._last.strip()) and not self._last.endswith(b"\n")

    def said(self) -> str:
        return self._last.decode(errors="replace").strip()

    async def take(self, content: bytes) -> None:
        self.count += 1
        self._last = content[-_SAID_BYTES:]
        await self._sink(content)


def _take_dump(path: Path) -> bytes | None:
    """Return what a command wrote when it ended, and remove the file; None if there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            content = file.read(MAX_STATE_BYTES + 1)
    finally:
        os.close(fd)
    with suppress(OSError):
        path.unlink()
    return content


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


# -- the saved state: where the shell is, and which variables its commands changed

MAX_STATE_BYTES = 256 << 10
_PASSING = {"PWD", "OLDPWD", "SHLVL", "_"}  # a shell sets them itself


def parse_dump(content: bytes) -> tuple[str, dict[str, str]] | None:
    """Return the working directory and the variables that a command wrote when it ended, separated by NULs.

    None if there is nothing to be kept: the command ended before all was written, or wrote too much.
    """
    if not content.endswith(b"\0") or len(content) > MAX_STATE_BYTES:
        return None
    cwd, *variables = os.fsdecode(content[:-1]).split("\0")
    pairs = (each.partition("=") for each in variables)
    return cwd, {name: value for name, _, value in pairs if is_settable(name) and name not in _PASSING}


def compare(before: ShellState, given: Mapping[str, str], cwd: str, found: Mapping[str, str]) -> ShellState:
    """Return the state after a command that was given these variables and left those that were `found`.

    Only differences are kept, so that a variable of the gateway's settings changes with the settings.
    """
    kept = {
        name: value
        for name, value in found.items()
        if given.get(name) != value or before.changed.get(name) == value
    }
    removed = {*before.removed, *given} - {*found} - _PASSING
    return ShellState(cwd if cwd.startswith("/") else before.cwd, kept, tuple(sorted(removed)))


def load_state(path: Path) -> ShellState:
    """Return the saved state; an empty one if there is none, or none that can be read. Blocks."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        saved: dict[str, Any] = json.loads(path.read_bytes())
        changed = {str(name): str(value) for name, value in saved["changed"].items()}
        return ShellState(str(saved["cwd"]), changed, tuple(map(str, saved["removed"])))
    return ShellState()


def save_state(path: Path, state: ShellState) -> None:
    """Replace the saved state as a whole. Blocks. Raises `OSError`."""
    make_private(path.parent)
    # As ASCII, since a variable may have bytes that are no text.
    text = json.dumps({"cwd": state.cwd, "changed": dict(state.changed), "removed": state.removed})
    replace_file(path, text.encode("ascii"), is_durable=False)


# -- a program that waits for someone to type on its terminal

_IS_X86 = os.uname().machine == "x86_64"
_READ = {0, 19} if _IS_X86 else {63, 65}  # read, readv
# A program that waits for several things at once; only a prompt tells that the terminal is one of them.
_POLL = {7, 23, 232, 270, 271, 281, 441} if _IS_X86 else {22, 72, 73, 441}
_MOST_LOOKED_AT = 512


def _find_reader(pid: int, has_prompt: bool) -> str | None:
    """Return the name of a process below `pid` that waits for input of its terminal; None if none is known
    to. `has_prompt` says that the last line of the output was not ended, as after a question. Blocks."""
    for process in below(pid)[:_MOST_LOOKED_AT]:
        with suppress(OSError, ValueError):
            words = Path(f"/proc/{process}/syscall").read_text().split()
            if not words[0].isdigit():
                continue  # it is running
            call, first = int(words[0]), int(words[1], 16)
            is_asking = call in _READ and _is_terminal(process, first)
            if is_asking or (has_prompt and call in _POLL and _is_terminal(process, 0)):
                return Path(f"/proc/{process}/comm").read_text().strip() or None
    return None


def _is_terminal(process: int, fd: int) -> bool:
    target = os.readlink(f"/proc/{process}/fd/{fd}")  # noqa: PTH115
    return target.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
