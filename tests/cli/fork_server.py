"""Commands as forks of one process that has imported `talaria` and its libraries.

Importing is most of what a command costs. Each fork is a process with arguments, environment, streams and an
exit status of its own. `test_main.py` starts the program from nothing, and so does each test with a
`GatewayProcess`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

_STATUS = struct.Struct("i")


class ForkedProcess:
    """A command that runs. Has the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, statuses: socket.socket, stdout: TextIO | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._statuses = statuses

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
            (self.returncode,) = _STATUS.unpack(self._statuses.recv(_STATUS.size))
            self._statuses.close()
        return self.returncode


class ForkServer:
    """Starts commands. Arguments, environment and streams go to the server process through a socket."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], *, stdin: int, stdout: int, stderr: int
    ) -> ForkedProcess:
        """The three streams are file descriptors, which the caller closes."""
        request = json.dumps([arguments, dict(env), os.getcwd()]).encode() + b"\n"
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._server, [request], [stdin, stdout, stderr, theirs.fileno()])
        (pid,) = _STATUS.unpack(ours.recv(_STATUS.size))
        return ForkedProcess(pid, ours, None)

    def start_with_pipe(self, arguments: Sequence[str], env: Mapping[str, str], stderr: int) -> ForkedProcess:
        """Nothing to read, and what the command prints is the text of `stdout`."""
        reading, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        process = self.start(arguments, env, stdin=nothing, stdout=writing, stderr=stderr)
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
            streams = {"stdin": given, "stdout": out.fileno(), "stderr": err.fileno()}
            process = self.start(arguments, env, **streams)
            try:
                status = process.wait(timeout)
            except BaseException:
                process.kill()
                process.wait()
                raise
            said = [file.read() for file in (out, err) if not file.seek(0)]
        return subprocess.CompletedProcess(arguments, status, *said)


@contextmanager
def fork_server(env: Mapping[str, str]) -> Iterator[ForkServer]:
    """All commands see the interpreter's own variables (PYTHONWARNINGS, LANG) as they are in this `env`."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-P", __file__, "talaria"]  # the word by which `doctor` knows a gateway
        with subprocess.Popen(command, env=env, stdin=theirs.fileno(), stdout=subprocess.DEVNULL):
            theirs.close()
            yield ForkServer(ours)
            ours.close()


@contextmanager
def _filled_pipe(text: str) -> Iterator[int]:
    reading, writing = os.pipe()
    os.write(writing, text.encode())  # a few lines: they fit
    os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


# -- the server process -----------------------------------------------------------------------------------


def _serve(client: socket.socket) -> None:
    """Returns in the forks only, each with its command to run. Exits when the client is gone."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno())
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([client, woken], [], [])
        if woken in ready:
            woken.recv(1 << 10)
            _report_ended(running)
        if client not in ready:
            continue
        request, streams, _, _ = socket.recv_fds(client, 1 << 16, 4)
        while request and not request.endswith(b"\n"):
            request += client.recv(1 << 16)
        if not request:
            woken.close()
            wake.close()
            sys.exit()
        statuses = socket.socket(fileno=streams.pop())
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for unused in (woken, wake, statuses, *running.values()):
                unused.close()
            _become(json.loads(request), streams)
            return
        for fd in streams:
            os.close(fd)
        running[pid] = statuses
        statuses.send(_STATUS.pack(pid))


def _report_ended(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as statuses:
                statuses.send(_STATUS.pack(os.waitstatus_to_exitcode(status)))


def _become(request: tuple[list[str], dict[str, str], str], streams: list[int]) -> None:
    arguments, environ, folder = request
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[1:] = arguments


def _import_all() -> None:
    import talaria
    from talaria.core.program import this_version

    for module in pkgutil.walk_packages(talaria.__path__, "talaria."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    this_version()
    gc.collect()
    gc.freeze()  # so that the forks share it


if __name__ == "__main__":
    _import_all()
    with socket.socket(fileno=os.dup(0)) as client:
        _serve(client)
    runpy.run_module("talaria", run_name="__main__", alter_sys=True)
