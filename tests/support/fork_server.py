"""The process behind `support/forks.py`: it imports `talaria`, and then forks for each command.

Only the standard library is imported at the top, so that the process starts without the tests on its path.
"""

from __future__ import annotations

import atexit
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
import sys
import threading

STATUS = struct.Struct("i")


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
        statuses.send(STATUS.pack(pid))


def _report_ended(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as statuses:
                statuses.send(STATUS.pack(os.waitstatus_to_exitcode(status)))


def _become(request: tuple[list[str], dict[str, str], str], streams: list[int]) -> None:
    arguments, environ, folder = request
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    os.setsid()  # Ctrl-C is meant for the test run
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


def _leave(status: int) -> None:
    """End as the interpreter does, but keep the modules: taking them down copies all pages that are shared
    with the server, which costs more than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # reports what was not closed
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _import_all()
    with socket.socket(fileno=os.dup(0)) as client:
        _serve(client)
    try:
        runpy.run_module("talaria", run_name="__main__", alter_sys=True)
    except SystemExit as left:
        _leave(int(left.code or 0))
