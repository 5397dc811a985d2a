"""Running a command in a sandbox: its output as it comes, its end, and nothing left behind."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from talaria.core.tasks import finish_in_task, stop
from talaria.workspace.sandbox.port import Launch, Sandbox, SandboxCommand, SandboxError
from talaria.workspace.sandbox.users import command_user

_PIECE = 64 << 10
_PIECES = 4  # of output that wait to be read, before the command has to wait
_PATIENCE = 5.0  # seconds until a supervisor that does not end is killed itself
_MAX_STATUS = 64 << 10
_SCREEN = (24, 80)  # lines and columns of a terminal


class Stream(StrEnum):
    OUT = "stdout"
    ERR = "stderr"


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of the command's output."""

    stream: Stream
    content: bytes


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a command. `code` is its exit code; 128 + n if signal n ended it, as a shell tells it."""

    code: int
    timed_out: bool = False

    @property
    def signal(self) -> signal.Signals | None:
        try:
            return signal.Signals(self.code - 128)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended, and the first bytes of its output. `dropped` counts the others."""

    ending: Ending
    out: bytes
    err: bytes
    dropped: int = 0


class SandboxedProcess:
    """A command that runs. `open_process` makes it and cleans up after it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        alive: int,
        launch: Launch,
        seconds: float,
        terminal: int | None = None,
    ) -> None:
        """`alive` is open as long as the command may run. `terminal` is the gateway's end of the command's
        terminal, if it has one."""
        loop = asyncio.get_running_loop()
        self._process = process
        self._alive = alive
        self._launch = launch
        self._terminal = terminal
        self._deadline = loop.time() + seconds
        self._timed_out = False
        self._pieces: asyncio.Queue[Output | None] = asyncio.Queue(_PIECES)
        self._readers: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.ReadTransport] = []
        self._ended = asyncio.Event()
        self._told = bytearray()
        self._has_first = False
        self._guard: int | None = None
        self._running: set[int] = set()
        os.set_blocking(launch.status, False)
        loop.add_reader(launch.status, self._hear)
        self._watch(os.pidfd_open(process.pid))

    async def connect(self) -> None:
        """Begin to read the output."""
        loop = asyncio.get_running_loop()
        if self._terminal is not None:
            self._readers.append(asyncio.create_task(self._read_terminal(self._terminal), name="terminal"))
            return
        for pipe, stream in ((self._process.stdout, Stream.OUT), (self._process.stderr, Stream.ERR)):
            reader = asyncio.StreamReader(_PIECE)
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.connect_read_pipe(lambda made=protocol: made, pipe)  # type: ignore[misc]
            self._transports.append(transport)
            self._readers.append(asyncio.create_task(self._read(reader, stream), name=f"sandbox {stream}"))

    @property
    def pid(self) -> int:
        """The process of the gateway's that stands for the whole command."""
        return self._process.pid

    @property
    def ends_all(self) -> int:
        """The signal upon which that process ends the whole command."""
        return self._launch.ends_all

    async def output(self) -> AsyncIterator[Output]:
        """Yield the output until the command has ended, or has run out of time and was ended.

        A command whose output is not read waits, so that the memory in use is bounded. A caller that stops
        reading has to end the command.
        """
        loop = asyncio.get_running_loop()
        until = self._deadline
        open_streams = len(self._readers)
        while open_streams:
            try:
                piece = await self._next(until)
            except TimeoutError:
                if self._timed_out:
                    return  # a process that left the command holds the pipe open
                self._timed_out = True
                await self.kill()
                until = loop.time() + _PATIENCE
                continue
            if piece is None:
                open_streams -= 1
            else:
                yield piece

    async def write(self, content: bytes) -> None:
        """Write to the command's input, and wait while it does not read. Raises `OSError` if nothing reads it
        any more. There is one writer at a time."""
        stdin, loop, view = self._process.stdin, asyncio.get_running_loop(), memoryview(content)
        while view:
            if stdin is None or stdin.closed:
                raise BrokenPipeError
            fd = stdin.fileno()
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(fd, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(fd)

    def close_input(self) -> None:
        """Let the command read the end of its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def ended(self) -> None:
        """Wait until the command has ended, whatever of its output is unread."""
        await self._ended.wait()

    async def _next(self, until: float) -> Output | None:
        """Return the next piece, None for the end of a stream. Raises `TimeoutError`."""
        if asyncio.get_running_loop().time() >= until:  # a piece that is there is taken without a look at it
            raise TimeoutError
        async with asyncio.timeout_at(until):
            return await self._pieces.get()

    async def wait(self) -> Ending:
        """Return how the command ended. Its output has to be read first.

        Raises `SandboxError` if the command was never run.
        """
        try:
            async with asyncio.timeout_at(None if self._timed_out else self._deadline):
                await self._ended.wait()
        except TimeoutError:
            self._timed_out = True
        if self._timed_out:
            await self.kill()
            return Ending(128 + signal.SIGKILL, timed_out=True)
        told = self._status()
        code = self._process.returncode
        if "exit-code" in told:
            return Ending(int(told["exit-code"]))
        if code < 0:  # it was killed before it could tell
            return Ending(128 - code)
        why = str(told.get("error") or "see its output")
        raise SandboxError(f"The sandbox did not start the command: {why}.", "Run `talaria doctor`.")

    async def kill(self) -> None:
        """End every process of the command. Returns when they are gone."""
        if self._ended.is_set():
            return
        if self._launch.guard:
            self._kill_group()
        else:
            self._process.send_signal(self._launch.ends_all)  # nothing happens if it has been reaped
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._ended.wait()
        except TimeoutError:
            self._kill_group()
            await self._ended.wait()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _reap_group(self) -> None:
        """Reap the guard, and the first process of a namespace, if this process inherits them: it is the
        first one of a container, or a subreaper."""
        with suppress(ChildProcessError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while True:
                    if os.waitpid(-self._process.pid, os.WNOHANG) == (0, 0):  # noqa: ASYNC222 - WNOHANG
                        await asyncio.sleep(0.001)

    async def close(self) -> None:
        """End the command if it runs, and give back its pipes."""
        await self.kill()
        if self._launch.guard:
            await self._reap_group()
        await stop(*self._readers)
        for transport in self._transports:
            transport.close()
        unread = (self._process.stdout, self._process.stderr)[len(self._transports) :]
        for pipe in (*unread, self._process.stdin):
            if pipe is not None:
                pipe.close()
        if self._terminal is not None:
            os.close(self._terminal)
        asyncio.get_running_loop().remove_reader(self._launch.status)
        os.close(self._launch.status)

    def _reap(self, fd: int) -> None:
        """Take note of the end of a process. That of the launcher is this one's child."""
        self._process.poll()
        self._hear()
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._running.remove(fd)
        if self._running:
            return
        if self._alive >= 0:
            os.close(self._alive)  # the guard ends
            self._alive = -1
        if self._guard is not None:
            self._watch(self._guard)
            self._guard = None
            return
        self._ended.set()

    def _watch(self, fd: int) -> None:
        """Call `_reap` when the process of this pidfd has ended."""
        self._running.add(fd)
        asyncio.get_running_loop().add_reader(fd, self._reap, fd)

    def _hear(self) -> None:
        """Read what the launcher tells. If it names the first process of a namespace of its own, that one
        has to end too: the launcher does not wait until the kernel has emptied the namespace."""
        loop = asyncio.get_running_loop()
        with suppress(BlockingIOError):
            self._told += (heard := os.read(self._launch.status, _MAX_STATUS))
            if not heard or len(self._told) > _MAX_STATUS:
                loop.remove_reader(self._launch.status)
        if self._has_first:
            return
        told = self._status()
        with suppress(ProcessLookupError):
            if self._guard is None and isinstance(guard := told.get("guard"), int) and self._alive >= 0:
                self._guard = os.pidfd_open(guard)
        if isinstance(first := told.get("child-pid"), int):
            self._has_first = True
            with suppress(ProcessLookupError):
                self._watch(os.pidfd_open(first))

    def _status(self) -> dict[str, Any]:
        """Return what the launcher told about the command: documents of JSON, one after the other."""
        text = self._told.decode(errors="replace")
        status: dict[str, Any] = {}
        decoder = json.JSONDecoder()
        while text := text.lstrip():
            try:
                document, end = decoder.raw_decode(text)
            except ValueError:
                break
            status |= document
            text = text[end:]
        return status

    async def _read(self, reader: asyncio.StreamReader, stream: Stream) -> None:
        while content := await reader.read(_PIECE):
            await self._pieces.put(Output(stream, content))
        await self._pieces.put(None)

    async def _read_terminal(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            readable = asyncio.Event()
            loop.add_reader(fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(fd)
            try:
                content = os.read(fd, _PIECE)
            except BlockingIOError:
                continue
            except OSError:  # no process has the terminal open any more
                content = b""
            await self._pieces.put(Output(Stream.OUT, content) if content else None)
            if not content:
                return


@asynccontextmanager
async def open_process(sandbox: Sandbox, command: SandboxCommand) -> AsyncIterator[SandboxedProcess]:
    """Run a command until the block is left. Every process of it is gone then, also on cancellation.

    Raises `SandboxError` if the command cannot be run.
    """
    launch = sandbox.prepare(command)
    terminal: tuple[int, int] | None = None
    try:
        terminal = _open_terminal(command) if command.tty else None
        process, alive = _start(launch, terminal, has_input=command.has_input)
    except OSError as error:
        os.close(launch.status)
        if terminal is not None:
            os.close(terminal[0])
        text = f"The sandbox cannot be started: {error.strerror}."
        raise SandboxError(text, "Run `talaria doctor`.") from error
    finally:
        for fd in (*launch.fds, *(terminal or ())[1:]):
            os.close(fd)
    running = SandboxedProcess(process, alive, launch, command.limits.seconds, terminal and terminal[0])
    try:
        await finish_in_task(running.connect())  # in the middle of it, nobody would know who closes the pipes
        yield running
    finally:
        await finish_in_task(running.close())


def _open_terminal(command: SandboxCommand) -> tuple[int, int]:
    """Return the gateway's and the command's end of a new terminal."""
    ours, theirs = os.openpty()
    try:
        os.set_blocking(ours, False)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *_SCREEN, 0, 0))
        uid, gid = command_user(command.folder)
        if uid:
            os.fchown(theirs, uid, gid)
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    return ours, theirs


def _start(
    launch: Launch, terminal: tuple[int, int] | None, *, has_input: bool = False
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the launcher from this thread, whose end it would notice as the gateway's. Return it and the
    descriptor whose end its guard would notice.

    Not with asyncio: on uvloop, descriptors of the gateway that others left inheritable would reach it.
    """
    heard, alive = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - what it is for
            launch.guarded(os.getpid(), alive),
            stdin=terminal[1] if terminal else subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=terminal[1] if terminal else subprocess.PIPE,
            stderr=terminal[1] if terminal else subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={},
            pass_fds=launch.fds,
            start_new_session=True,
        )
    except BaseException:
        os.close(alive)
        raise
    finally:
        os.close(heard)  # the guard opens it anew
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
    return process, alive


async def run(sandbox: Sandbox, command: SandboxCommand, max_output: int = 64 << 10) -> Completed:
    """Run a command to its end and return the first `max_output` bytes of each stream.

    Raises `SandboxError` if the command cannot be run. On cancellation every process of it is ended.
    """
    kept = {Stream.OUT: bytearray(), Stream.ERR: bytearray()}
    dropped = 0
    async with open_process(sandbox, command) as process:
        async for piece in process.output():
            room = max_output - len(kept[piece.stream])
            kept[piece.stream] += piece.content[:room]
            dropped += max(0, len(piece.content) - room)
        try:
            ending = await process.wait()
        except SandboxError as error:
            said = bytes(kept[Stream.ERR]).decode(errors="replace").strip()[-500:]
            raise SandboxError(
                error.user_text.replace("see its output", said or "it said nothing"), error.hint
            ) from None
    return Completed(ending, bytes(kept[Stream.OUT]), bytes(kept[Stream.ERR]), dropped)
