"""Commands as forks of a process that has loaded the libraries `talaria` depends on, and nothing of its own.

Importing them is most of what a command costs. Each command still is a process with arguments, environment,
streams and an exit of its own, and imports all of `talaria` itself.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

LIBRARIES = "aiohttp", "click", "msgspec", "prometheus_client", "pysqlite3", "starlette", "uvicorn", "uvloop"
_ANSWER = struct.Struct("i")


class Warm:
    """Runs one command at a time."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], stdin: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        request = json.dumps([arguments, dict(env), os.getcwd()]).encode() + b"\n"
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, _pipe(stdin) as given:
            socket.send_fds(self._server, [request], [given, out.fileno(), err.fileno()])
            pid = self._answer()
            try:
                self._server.settimeout(timeout)
                status = self._answer()
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                self._server.settimeout(None)
                self._answer()
                raise
            said = [file.read() for file in (out, err) if not file.seek(0)]
        return subprocess.CompletedProcess(arguments, status, *said)

    def _answer(self) -> int:
        """First the command's process id, then, when it has ended, its status."""
        (number,) = _ANSWER.unpack(self._server.recv(_ANSWER.size))
        return int(number)


@contextmanager
def warmed(env: Mapping[str, str]) -> Iterator[Warm]:
    """All commands see the interpreter's own variables (PYTHONWARNINGS, LANG) as they are in this `env`."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-P", __file__]
        with subprocess.Popen(command, env=env, stdin=theirs.fileno(), stdout=subprocess.DEVNULL):
            theirs.close()
            yield Warm(ours)
            ours.close()


@contextmanager
def _pipe(text: str) -> Iterator[int]:
    reading, writing = os.pipe()
    os.write(writing, text.encode())  # a few lines: they fit
    os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


def _serve(client: socket.socket) -> None:
    """Returns in the forks only, each with its command to run. Ends when the client is gone."""
    while True:
        said, streams, _, _ = socket.recv_fds(client, 1 << 16, 3)
        while said and not said.endswith(b"\n"):
            said += client.recv(1 << 16)
        if not said:
            sys.exit()
        pid = os.fork()
        if not pid:
            _become(json.loads(said), streams)
            return
        for fd in streams:
            os.close(fd)
        client.send(_ANSWER.pack(pid))
        _, status = os.waitpid(pid, 0)
        client.send(_ANSWER.pack(os.waitstatus_to_exitcode(status)))


def _become(request: tuple[list[str], dict[str, str], str], streams: list[int]) -> None:
    arguments, environ, folder = request
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[1:] = arguments


if __name__ == "__main__":
    for name in LIBRARIES:
        with suppress(ImportError):  # one that this system has no need of
            importlib.import_module(name)
    with socket.socket(fileno=os.dup(0)) as client:
        _serve(client)
    runpy.run_module("talaria", run_name="__main__", alter_sys=True)
