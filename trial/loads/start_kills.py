"""Kills of gateways at random moments while a sandbox starts: no process of it may be left.

A program of its own, because it forks its gateways and, as a subreaper, inherits what they leave.

    python -m trial.loads.start_kills KILLS SEED

It prints the command lines of the processes that were left, one in a line.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from talaria.workspace.network_holder import start_holder
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.command import SandboxCommand, command_user, hand_over
from talaria.workspace.sandbox.process import run
from trial.report import Check, Figure, none_of

SUBREAPER = 36
_START = 0.02  # seconds that a command takes to start, on an idle machine
_NETWORK = 0.004  # seconds until the network of a session has told the number of its first process
_NETWORKS = 6  # every so many gateways start a network instead of a command
_SPAWNER = 0.04  # seconds that the spawner takes to start, which is killed with its gateway
_SPAWNERS = 4  # every so many gateways have no spawner before
_BEGINNINGS = ("subprocess.Popen", "socket.sendmsg")
_PATIENCE = 5.0  # a network ends within two seconds


class StartKillRun:
    def __init__(self, kills: int, seed: int = 1) -> None:
        self._kills = kills
        self._seed = seed

    async def run(self) -> list[Figure]:
        program = [sys.executable, "-m", "trial.loads.start_kills", str(self._kills), str(self._seed)]
        child = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        said, _ = await child.communicate()
        if child.returncode != 0:
            raise RuntimeError(f"trial.loads.start_kills ended with {child.returncode}")
        name = f"{self._kills:,} kills while a sandbox starts: processes left"
        return [none_of(name, said.decode().splitlines(), Check.LEFTOVERS)]


def main(kills: int, seed: int) -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    random = Random(f"starts {seed}")
    with tempfile.TemporaryDirectory(prefix="talaria-starts-") as name:
        places = (Path(name, "folder"), Path(name, "home"), Path(name, "tmp"))
        for place in places:
            place.mkdir()
        Path(name).chmod(0o711)
        hand_over(places)
        sandbox, command = BubblewrapSandbox(), SandboxCommand(("/bin/sleep", "1000"), *places)

        def run_true() -> None:
            ending = asyncio.run(run(sandbox, replace(command, argv=("/bin/true",)))).ending
            assert ending.code == 0, ending

        def start_command() -> None:
            asyncio.run(run(sandbox, command))

        def start_network() -> None:
            start_holder(Path(name), command_user(places[0]), ())

        for number in range(kills):
            if number % _NETWORKS == _NETWORKS - 1:
                _kill_while(start_network, random.uniform(0, _NETWORK))
            elif number % _SPAWNERS == _SPAWNERS - 1:
                _kill_while(start_command, random.uniform(0, _SPAWNER + _START))
            else:
                _kill_while(start_command, random.uniform(0, _START), prepare=run_true)
            for left in _remains():
                print(left, flush=True)


def _kill_while(
    start: Callable[[], None], seconds: float, *, prepare: Callable[[], None] = lambda: None
) -> None:
    """Kill a process so many seconds after it has begun to start another one, or has asked its spawner to."""
    heard, begun = os.pipe()
    gateway = os.fork()
    if gateway == 0:
        try:
            prepare()
            sys.addaudithook(lambda event, _: event in _BEGINNINGS and os.write(begun, b"+"))
            start()
            signal.pause()
        finally:
            os._exit(1)
    os.close(begun)
    assert os.read(heard, 1), "the gateway has ended before it started anything"
    time.sleep(seconds)
    os.kill(gateway, signal.SIGKILL)
    os.waitpid(gateway, 0)
    os.close(heard)


def _remains() -> list[str]:
    """Wait until everything that this process has inherited has ended. Return what has not, and end it."""
    until = time.monotonic() + _PATIENCE
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
    children = Path("/proc/self/task") / str(os.getpid()) / "children"
    left: list[str] = []
    while found := [int(pid) for pid in children.read_text().split()]:
        for pid in found:
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
            left.append(" ".join([*words[:1], *words[-5:]]))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return left


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
