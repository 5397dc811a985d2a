"""Running a command in a sandbox: its output as it comes, its end, and nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import talaria
from talaria.core.tasks import finish_in_task
from talaria.workspace.sandbox.command import (
    Launch,
    Sandbox,
    SandboxCommand,
    SandboxError,
    command_user,
    open_data,
)
from talaria.workspace.sandbox.group import parse_status, start_time

_PIECE = 64 << 10
_PATIENCE = 5.0  # seconds; the spawner needs less to end a command
_MAX_TOLD = 64 << 10
_SCREEN = (24, 80)  # lines and columns of a terminal
_DESCRIPTORS = 200  # in one message; Linux takes 253
# Imported, not run: so the bytecode is kept. The arguments are the package's folder and the link.
_START = (
    "import sys; sys.path.append(sys.argv[1]); from talaria.workspace.sandbox import spawner; "
    "spawner.main(int(sys.argv[2]))"
)
_SOURCE = str(Path(talaria.__file__).parents[1])


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


class SpawnerLink:
    """The gateway's side of the program `sandbox.spawner`, which starts its commands. The program is started
    with the first command, and again if it is gone. It ends with this process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._owner = 0  # a process that was forked has to have its own
        self.pid = 0  # of the spawner, once a command has needed one

    def send(self, order: bytes, fds: Sequence[int]) -> socket.socket:
        """Have a command started with these descriptors. Return its link. The spawner ends the command when
        the link is closed. Raises `OSError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ordered = open_data("order", order)
        try:
            ours.setblocking(False)
            self._send((ordered, theirs.fileno(), *fds))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(ordered)
        return ours

    def start(self) -> None:
        """Start the spawner, unless it has been started. Raises `OSError`."""
        if self._socket is None or self._owner != os.getpid():
            self._open()

    def close(self) -> None:
        """Let the spawner end, and with it all commands. It is reaped if it has ended already."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.pid and self._owner == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)

    def _send(self, fds: Sequence[int]) -> None:
        self.start()
        assert self._socket is not None
        for at in range(0, len(fds), _DESCRIPTORS):
            sign = b"+" if at + _DESCRIPTORS >= len(fds) else b"-"
            try:
                socket.send_fds(self._socket, (sign,), fds[at : at + _DESCRIPTORS])
            except (BrokenPipeError, ConnectionResetError):
                if at:
                    raise
                self._open()
                socket.send_fds(self._socket, (sign,), fds[at : at + _DESCRIPTORS])

    def _open(self) -> None:
        """Start the spawner. Not with asyncio: on uvloop, descriptors of the gateway that others left
        inheritable would reach it, and from there every command."""
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            child = subprocess.Popen(  # noqa: S603 - what it is for
                (sys.executable, "-I", "-S", "-c", _START, _SOURCE, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child.returncode = 0  # no warning: it ends with this process
        self._socket, self._owner, self.pid = ours, os.getpid(), child.pid


SPAWNER = SpawnerLink()


class SandboxedProcess:
    """A command that runs. `open_process` makes it and cleans up after it."""

    def __init__(self, link: socket.socket, launch: Launch, streams: _Streams, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._link = link
        self._launch = launch
        self._streams = streams
        self._deadline = loop.time() + seconds
        self._timed_out = False
        self._begun: asyncio.Future[None] = loop.create_future()
        self._ended = asyncio.Event()
        self._code = 128 + signal.SIGKILL
        self._is_lost = False
        self.pid = 0  # of the process that stands for the whole command
        loop.add_reader(link.fileno(), self._hear)

    @property
    def has_ended(self) -> bool:
        """Whether no process of the command is left, as the spawner said."""
        return self._ended.is_set() and not self._is_lost

    async def started(self) -> None:
        """Wait until it has been started. Raises `OSError` if it was not."""
        await self._begun

    async def output(self) -> AsyncIterator[Output]:
        """Yield the output until the command has ended, or has run out of time and was ended. There is one
        reader.

        A command whose output is not read waits, so that the memory in use is bounded. A caller that stops
        reading has to end the command.
        """
        loop = asyncio.get_running_loop()
        until = self._deadline
        while self._streams.outputs:
            # A command that always has output runs out of time too.
            if loop.time() < until and (piece := self._streams.read()) is not None:
                yield piece
                continue
            try:
                async with asyncio.timeout_at(until):
                    await self._streams.readable()
            except TimeoutError:
                if self._timed_out:
                    return  # a process that left the command holds the pipe open
                self._timed_out = True
                await self.kill()
                until = loop.time() + _PATIENCE

    async def write(self, content: bytes) -> None:
        """Write to the command's input, and wait while it does not read. Raises `OSError` if nothing reads it
        any more. There is one writer at a time."""
        loop, view = asyncio.get_running_loop(), memoryview(content)
        while view:
            fd = self._streams.input
            if fd < 0:
                raise BrokenPipeError
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
        self._streams.close_input()

    async def ended(self) -> None:
        """Wait until the command has ended, whatever of its output is unread."""
        await self._ended.wait()

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
        if "exit-code" in told:
            return Ending(int(told["exit-code"]))
        if self._code > 128:  # it was killed before it could tell
            return Ending(self._code)
        why = str(told.get("error") or "see its output")
        raise SandboxError(f"The sandbox did not start the command: {why}.", "Run `talaria doctor`.")

    async def kill(self) -> None:
        """End every process of the command. Returns when they are gone."""
        if not self._ended.is_set():
            with suppress(OSError):  # the spawner is gone
                self._link.shutdown(socket.SHUT_WR)
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * _PATIENCE):
                    await self._ended.wait()
                    return
            self._lose()  # the spawner is stopped

    async def close(self) -> None:
        """End the command if it runs, and give back its pipes."""
        await self.kill()
        if self._is_lost:
            await self._kill_lost()
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        self._link.close()
        self._streams.close()
        os.close(self._launch.status)

    def _hear(self) -> None:
        """Take what the spawner tells: that the command runs or cannot, then its end."""
        try:
            told = self._link.recv(_MAX_TOLD).decode(errors="replace")
        except BlockingIOError:
            return
        except OSError:
            told = ""
        sign, rest = told[:1], told[1:]
        if sign == "+":
            self.pid = int(rest)
            if not self._begun.done():
                self._begun.set_result(None)
            return
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        if sign == "=":
            self._code = int(rest)
            self._ended.set()
            return
        if not self._begun.done():
            self._begun.set_exception(OSError(errno.EIO, rest or "its spawner has ended"))
        self._lose()

    def _lose(self) -> None:
        """The spawner is gone, or does not answer."""
        self._is_lost = self.pid > 0
        self._ended.set()

    async def _kill_lost(self) -> None:
        """End a command without its spawner. A supervisor ends its command by itself when the spawner dies;
        if it were killed, processes of the command could stay."""
        if self._launch.confined is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while start_time(self.pid):  # noqa: ASYNC110 - nothing tells it
                    await asyncio.sleep(0.005)

    def _status(self) -> dict[str, Any]:
        """Return what the launcher told about the command, which has ended."""
        os.set_blocking(self._launch.status, False)
        told = b""
        with suppress(BlockingIOError):
            while len(told) < _MAX_TOLD and (piece := os.read(self._launch.status, _MAX_TOLD)):
                told += piece
        return parse_status(told)


class _Streams:
    """The gateway's ends of a command's input and output, and the command's ends until it is started."""

    def __init__(self, command: SandboxCommand) -> None:
        """Open pipes, or a terminal. Raises `OSError`."""
        self.input = -1
        self.outputs: dict[int, Stream] = {}
        self.theirs: list[int] = []  # in this order: stdin, stdout, stderr
        try:
            if command.tty:
                ours, theirs = os.openpty()
                self.outputs[ours] = Stream.OUT
                self.theirs = [theirs, os.dup(theirs), os.dup(theirs)]
                fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *_SCREEN, 0, 0))
                uid, gid = command_user(command.folder)
                if uid:
                    os.fchown(theirs, uid, gid)
            else:
                if command.has_input:
                    theirs, self.input = os.pipe()
                    os.set_blocking(self.input, False)
                else:
                    theirs = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                self.theirs.append(theirs)
                for stream in (Stream.OUT,) if command.is_joined else Stream:
                    ours, theirs = os.pipe()
                    self.outputs[ours] = stream
                    self.theirs.append(theirs)
                if command.is_joined:
                    self.theirs.append(os.dup(theirs))
            for ours in self.outputs:
                os.set_blocking(ours, False)
        except BaseException:
            self.close()
            raise

    def read(self) -> Output | None:
        """Return a piece of output that is there, or None. A stream that has ended is closed."""
        for fd, stream in list(self.outputs.items()):
            try:
                content = os.read(fd, _PIECE)
            except BlockingIOError:
                continue
            except OSError:  # no process has the terminal open any more
                content = b""
            del self.outputs[fd]
            if content:
                self.outputs[fd] = stream  # behind the other one
                return Output(stream, content)
            os.close(fd)
        return None

    async def readable(self) -> None:
        """Wait until there is something to read, or a stream has ended."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        fds = tuple(self.outputs)
        for fd in fds:
            loop.add_reader(fd, ready.set)
        try:
            if fds:
                await ready.wait()
        finally:
            for fd in fds:
                loop.remove_reader(fd)

    def close_theirs(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())

    def close_input(self) -> None:
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        self.close_theirs()
        self.close_input()
        while self.outputs:
            os.close(self.outputs.popitem()[0])


@asynccontextmanager
async def open_process(
    sandbox: Sandbox, command: SandboxCommand, leash: Path | None = None
) -> AsyncIterator[SandboxedProcess]:
    """Run a command until the block is left. Every process of it is gone then, also on cancellation, if this
    process is killed, or if the `leash` ends.

    Raises `SandboxError` if the command cannot be run.
    """
    launch = sandbox.prepare(command)
    streams = None
    try:
        streams = _Streams(command)
        link = SPAWNER.send(launch.order(leash), (*streams.theirs, *launch.fds))
    except OSError as error:
        os.close(launch.status)
        if streams is not None:
            streams.close()
        raise _not_started(error) from error
    finally:
        for fd in launch.fds:
            os.close(fd)
    streams.close_theirs()
    running = SandboxedProcess(link, launch, streams, command.limits.seconds)
    try:
        try:
            await running.started()
        except OSError as error:
            raise _not_started(error) from error
        yield running
    finally:
        if running.has_ended:
            await running.close()  # does not wait
        else:
            await finish_in_task(running.close())


def _not_started(error: OSError) -> SandboxError:
    return SandboxError(f"The sandbox cannot be started: {error.strerror}.", "Run `talaria doctor`.")


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
