"""The CPU time of one sandboxed `true`: the gateway's share, and that of every process it starts.

    python -m bench.command_cpu [COMMANDS]

The program is a subreaper, so it also counts processes whose parents have ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.commands import call
from bench.load import Client, fresh_names
from bench.processes import Metered, gateway, model_server

_SUBREAPER = 36
_ROUNDS = 3
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def _below(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _below(child)


def _started_cpu(served: Metered, models: Metered) -> float:
    """Return the CPU seconds so far of all processes but the gateway and the model server."""
    with suppress(ChildProcessError):
        for child in {*_children(os.getpid())} - {served.pid, models.pid}:
            os.waitpid(child, os.WNOHANG)  # adds its time to that of this process's children
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = used.ru_utime + used.ru_stime
    for pid in (served.pid, *_below(served.pid), *_children(os.getpid())):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own, ended = fields[11:13], fields[13:15]
            counted = ended if pid in (served.pid, models.pid) else (*own, *ended)
            total += sum(map(int, counted)) * _TICK
    return total


def _children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


async def measure(count: int) -> tuple[float, float]:
    """Return the gateway's and the other processes' CPU seconds for one command, over a call that fails at
    once: the best of three rounds."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    found: dict[str, list[tuple[float, float]]] = {"no_such_tool": [], "terminal": []}
    with model_server() as models, gateway(models.url) as (served, token):
        client = Client(served.url, token)
        try:
            (name,) = fresh_names(1)
            for _ in range(5):
                await client.turn(name, call("terminal", "true"))
            for _ in range(_ROUNDS):
                for tool, costs in found.items():
                    before = served.cpu(), _started_cpu(served, models)
                    for _ in range(count):
                        await client.turn(name, call(tool, "true"))
                    await asyncio.sleep(0.1)
                    after = served.cpu(), _started_cpu(served, models)
                    costs.append(((after[0] - before[0]) / count, (after[1] - before[1]) / count))
        finally:
            await client.close()
    empty, filled = found.values()
    own, others = (min(each[at] for each in filled) - min(each[at] for each in empty) for at in (0, 1))
    return own, others


if __name__ == "__main__":
    own, others = asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
    print(f"gateway {own * 1000:.1f} ms + its processes {others * 1000:.1f} ms", end=" ")
    print(f"= {(own + others) * 1000:.1f} ms of CPU for each command")
