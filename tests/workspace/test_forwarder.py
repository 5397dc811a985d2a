"""The program that leads out of a session's network."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.ports import port_of, reserve_port
from talaria.workspace import forwarder

DEADLINE = 60.0


@contextmanager
def forwarding(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, int]]:
    """Yield a forwarder, the socket that it leads to, and its port."""
    with socket.socket(socket.AF_UNIX) as host, reserve_port() as place:
        host.bind(str(folder / "host"))
        host.listen()
        port = port_of(place)
        lock, held = (os.open(folder / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
        fcntl.flock(held, fcntl.LOCK_SH)
        heard, ready = os.pipe()
        words = (str(lock), str(ready), str(port), str(folder / "host"))
        program = [sys.executable, "-I", "-S", forwarder.__file__, *words]
        process = subprocess.Popen(program, pass_fds=(lock, ready))
        os.close(ready)
        try:
            assert os.read(heard, 5) == b"ready"
            yield process, host, port
        finally:
            process.kill()
            process.wait()
            for fd in (lock, held, heard):
                os.close(fd)


def connect(host: socket.socket, port: int) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(("127.0.0.1", port), DEADLINE)
    there, _ = host.accept()
    there.settimeout(DEADLINE)
    return client, there


def is_asleep(process: subprocess.Popen[bytes]) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
    return stat.rpartition(")")[2].split()[0] == "S"


def test_a_client_that_does_not_read_costs_no_time_and_loses_nothing(tmp_path: Path) -> None:
    with forwarding(tmp_path) as (process, host, port):
        client, there = connect(host, port)
        with client, there:
            client.sendall(b"go")
            assert there.recv(2) == b"go"
            there.setblocking(False)
            sent = fill(there, process)
            there.close()
            other, beyond = connect(host, port)
            with other, beyond:  # by its answer the forwarder has seen the end of the first one
                other.sendall(b"a")
                assert beyond.recv(1) == b"a"
            until = time.monotonic() + DEADLINE
            while not is_asleep(process):  # it would never sleep
                assert time.monotonic() < until
            got = 0
            while piece := client.recv(1 << 20):
                got += len(piece)
            assert got == sent


def fill(there: socket.socket, process: subprocess.Popen[bytes]) -> int:
    """Send until nothing more is taken, and return how much it was."""
    sent = 0
    while True:
        try:
            sent += there.send(b"x" * 65_536)
        except BlockingIOError:
            if is_asleep(process):
                try:
                    sent += there.send(b"x")
                except BlockingIOError:
                    return sent


def test_a_client_is_told_that_the_gateway_is_away(tmp_path: Path) -> None:
    with forwarding(tmp_path) as (_, host, port):
        host.close()
        with socket.create_connection(("127.0.0.1", port), DEADLINE) as client:
            answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 503 Talaria is not running\r\n")
    assert answer.endswith(b"nothing can be reached.\n")
