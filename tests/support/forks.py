"""Commands as forks of one process that has imported `talaria` and its libraries.

Importing is most of what a command costs. Each fork is a process with arguments, environment, streams and an
exit status of its own. One server (`support/fork_server.py`) serves all tests of a worker. `test_main.py` and
tests that say `sys.executable` start the program from nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TextIO

from support import fork_server
from support.leftovers import staying


class ForkedProcess:
    """A command that runs. Has the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, statuses: socket.socket, stdout: TextIO | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._statuses = statuses

    def fileno(self) -> int:
        """Can be read when the process has ended."""
        return self._statuses.fileno()

    def poll(self) -> int | None:
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        status = self._read_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("talaria", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_status(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._statuses], [], [], timeout)[0]:
            (self.returncode,) = fork_server.STATUS.unpack(self._statuses.recv(fork_server.STATUS.size))
            self._statuses.close()
        return self.returncode


class ForkServer:
    """Starts commands. Arguments, environment and streams go to the server process through a socket."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        folder: Path | None = None,
    ) -> ForkedProcess:
        """The three streams are file descriptors, which the caller closes."""
        request = json.dumps([arguments, dict(env), str(folder or Path.cwd())]).encode() + b"\n"
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._server, [request], [stdin, stdout, stderr, theirs.fileno()])
        (pid,) = fork_server.STATUS.unpack(ours.recv(fork_server.STATUS.size))
        return ForkedProcess(pid, ours, None)

    def start_with_pipe(
        self, arguments: Sequence[str], env: Mapping[str, str], stderr: int, folder: Path | None = None
    ) -> ForkedProcess:
        """Nothing to read, and what the command prints is the text of `stdout`."""
        reading, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        process = self.start(arguments, env, stdin=nothing, stdout=writing, stderr=stderr, folder=folder)
        os.close(writing)
        os.close(nothing)
        process.stdout = os.fdopen(reading)
        return process

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], stdin: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        with (
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
            _filled_pipe(stdin) as given,
        ):
            process = self.start(arguments, env, stdin=given, stdout=out.fileno(), stderr=err.fileno())
            try:
                status = process.wait(timeout)
            except BaseException:
                process.kill()
                process.wait()
                raise
            said = [file.read() for file in (out, err) if not file.seek(0)]
        return subprocess.CompletedProcess(arguments, status, *said)


@contextmanager
def _filled_pipe(text: str) -> Iterator[int]:
    reading, writing = os.pipe()
    os.write(writing, text.encode())  # a few lines: they fit
    os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


@cache
def forks() -> ForkServer:
    """Return the server of this process, which starts with its first use and ends with the process. All
    commands see the interpreter's own variables (PYTHONWARNINGS, LANG) as they are at its start."""
    command = [sys.executable, "-P", fork_server.__file__, "talaria"]  # by which `doctor` knows a gateway
    environ = {**os.environ, "PYTHONWARNINGS": "error"}
    with staying():
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(command, env=environ, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ForkServer(ours)


class ForkedGateway:
    """A forked `talaria serve`, as `GatewayProcess` needs it."""

    def __init__(self, process: ForkedProcess, stdout: asyncio.StreamReader) -> None:
        self.pid = process.pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._process = process
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process)
        self.returncode = self._process.wait()
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


async def fork_gateway(environ: Mapping[str, str], folder: Path, log: IO[bytes]) -> ForkedGateway:
    """Launch a gateway of a `GatewayProcess`."""
    process = forks().start_with_pipe(["serve"], environ, log.fileno(), folder)
    stdout = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), process.stdout
    )
    return ForkedGateway(process, stdout)
