"""The instructions of a turn, counted by valgrind: this checkout against another.

CPU time depends on the other programs of the machine, the number of instructions hardly does. So this
comparison also holds on a busy machine. It does not see what a cache miss or a system call costs.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.compare import ROOT, python_of
from bench.load import Client, fresh_names
from bench.processes import Metered, gateway, model_server
from bench.turns import SESSIONS

TURNS = 160  # a multiple of SESSIONS
WARM_UP = 5
IDLE_SECONDS = 5  # until a gateway under valgrind has loaded what it loads beside its work
SETTINGS = {"TALARIA_LIMITS__LOOP_LAG": "600s"}  # under valgrind everything takes 50 times as long


async def compare_instructions(
    other: Path, say: Callable[[str], None], turns: int = TURNS
) -> dict[str, tuple[float, float]]:
    """Return thousands of instructions for each figure: this checkout's, and the other's.

    Raises `SystemExit` if valgrind is not installed.
    """
    if shutil.which("callgrind_control") is None:
        raise SystemExit("valgrind is not installed; on Debian: apt-get install valgrind")
    pythons = {"this": python_of(ROOT), "other": python_of(other.resolve())}
    found = {}
    with model_server() as model:
        for name, python in pythons.items():
            say(f"{name} checkout, under valgrind (some minutes)")
            found[name] = await _measure(model.url, python, turns)
    return {figure: (found["this"][figure], found["other"][figure]) for figure in found["this"]}


async def _measure(model_url: str, python: str, turns: int) -> dict[str, float]:
    # The first start would compile the modules.
    subprocess.run([python, "-m", "compileall", "-q", Path(python).parents[2] / "src"], check=True)
    with tempfile.TemporaryDirectory(prefix="talaria-callgrind-") as folder:
        counts = Path(folder) / "counts"
        wrapper = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={counts}"]
        with gateway(model_url, python=python, wrapper=wrapper, settings=SETTINGS) as (served, token):
            start = _count(served, counts)
            client = Client(served.url, token)
            try:
                names = {"alone": fresh_names(1), f"{SESSIONS} sessions": fresh_names(SESSIONS)}
                for group in names.values():
                    await client.run(group, WARM_UP)
                await asyncio.sleep(IDLE_SECONDS)
                found = {"start to ready": start / 1000}
                for name, group in names.items():
                    _count(served, counts)
                    await client.run(group, turns // len(group))
                    found[f"durable turn, {name}"] = _count(served, counts) / turns / 1000
            finally:
                await client.close()
    return found


def _count(served: Metered, counts: Path) -> int:
    """Return the instructions since the last call, of all threads."""
    command = ["callgrind_control", "--dump", str(served.pid)]
    subprocess.run(command, check=True, capture_output=True)
    newest = max(counts.parent.glob(f"{counts.name}.*"), key=lambda path: int(path.suffix[1:]))
    return read_total(newest.read_text())


def read_total(dump: str) -> int:
    """Return the sum of a callgrind dump."""
    return int(dump.rpartition("\ntotals:")[2].split()[0])
