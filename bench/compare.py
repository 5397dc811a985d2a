"""This checkout against another: the costs of turns, measured in alternation on the same machine.

Each round starts a gateway of both, one after the other, and the next round begins with the other one. The
client and the model server are this checkout's. Of the rounds the median counts.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.load import Client
from bench.processes import gateway, model_server
from bench.table import align
from bench.turns import SESSIONS, SHORT, TurnLoad, measure_turns

ROUNDS = 5
LOAD = TurnLoad(rounds=1, alone=300, each=60, length=200)
ROOT = Path(__file__).parent.parent
IDLE_SECONDS = 2  # until a gateway has loaded what it loads beside its work

Measured = dict[str, float]


def python_of(checkout: Path) -> str:
    """The interpreter of a checkout. Raises `SystemExit` when it does not run that checkout's own code."""
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{checkout} has no .venv: run `./dev pytest --version` there once")
    code = "import talaria; print(talaria.__file__)"
    done = subprocess.run([python, "-c", code], cwd=checkout, capture_output=True, text=True, check=True)
    if not Path(done.stdout.strip()).is_relative_to(checkout):
        raise SystemExit(f"{python} runs {done.stdout.strip()}, which is not in {checkout}")
    return str(python)


async def compare(
    other: Path, say: Callable[[str], None], rounds: int = ROUNDS, load: TurnLoad = LOAD
) -> dict[str, tuple[float, float]]:
    """The medians of every figure: this checkout's, and the other's."""
    pythons = {"this": python_of(ROOT), "other": python_of(other.resolve())}
    found: dict[str, list[Measured]] = {name: [] for name in pythons}
    with model_server() as model:
        for number in range(rounds):
            for name in pythons if number % 2 == 0 else reversed(pythons):
                say(f"round {number + 1} of {rounds}, {name} checkout")
                found[name].append(await _measure(model.url, pythons[name], load))
    return {
        figure: (median(one[figure] for one in found["this"]), median(one[figure] for one in found["other"]))
        for figure in found["this"][0]
    }


async def _measure(model_url: str, python: str, load: TurnLoad) -> Measured:
    with gateway(model_url, python=python) as (served, token):
        start = served.cpu()
        await asyncio.sleep(IDLE_SECONDS)
        rss = served.rss()
        client = Client(served.url, token)
        try:
            costs = await measure_turns(client, served, load)
        finally:
            await client.close()
    return {
        "durable turn, alone, ms CPU": costs.alone * 1000,
        f"durable turn, {SESSIONS} sessions at once, ms CPU": costs.crowd * 1000,
        f"durable turn at {SHORT} messages, ms CPU": costs.short * 1000,
        f"durable turn at {load.length} messages, ms CPU": costs.long * 1000,
        "start to ready, s CPU": start,
        "idle RSS, MB": rss / 1e6,
    }


def render(medians: dict[str, tuple[float, float]], heading: str = "median of the rounds") -> str:
    """A ratio below 1: this checkout costs less than the other."""
    rows = [
        [name, f"{ours:.3g}", f"{theirs:.3g}", f"{ours / theirs:.3f}"]
        for name, (ours, theirs) in medians.items()
    ]
    return align([[heading, "this", "other", "ratio"], *rows])
