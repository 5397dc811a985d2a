"""The calls of a durable turn, counted exactly: Python functions and C functions, by package.

The number of calls does not depend on the machine or on its other work, so it shows what a small change
costs. It does not show how long a call takes.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.processes import Metered, gateway, model_server
from bench.table import align

TURNS = 15
WARM_UP = 5
RECORDED = Path(__file__).with_name("calls.json")
_OWN = "talaria."
_WAIT_SECONDS = 30.0

Row = tuple[str, str, str, int]  # a source file, a function in it, a C function that it calls or "", a count


class Function(NamedTuple):
    """A Python function, or, if `called` is set, the C function of that name as this function calls it."""

    package: str
    name: str
    called: str


class Calls(NamedTuple):
    """The calls of one turn."""

    functions: Mapping[Function, int]

    def packages(self, *, are_python: bool) -> Counter[str]:
        """Return the calls of Python functions by their package, or of C functions by their caller's."""
        found: Counter[str] = Counter()
        for function, count in self.functions.items():
            if are_python is not bool(function.called):
                found[function.package] += count
        return found

    def own(self) -> dict[str, int]:
        """Return the calls of Talaria's own functions by package."""
        return {
            name: count for name, count in self.packages(are_python=True).items() if name.startswith(_OWN)
        }


def count_calls(python: str = sys.executable) -> Calls:
    """Count the calls of a gateway that `python` runs, in turns without tools, each over its own connection.

    The client and the model server are other processes, so only the gateway's calls count. For each function
    the smallest number of all turns counts: timers and work in the background can only add calls.
    """
    with tempfile.TemporaryDirectory(prefix="talaria-calls-") as folder, model_server() as model:
        counts = Path(folder) / "counts"
        wrapper = [python, "-P", str(Path(__file__).with_name("counted.py")), str(counts)]
        with gateway(model.url, python=python, wrapper=wrapper) as (served, token):
            for _ in range(WARM_UP):
                _run_turn(served, token)
            _read_counts(served, counts)
            written = []
            for _ in range(TURNS):
                _run_turn(served, token)
                written.append(_read_counts(served, counts))
    turns = [_by_function(json.loads(text)) for text in written]
    in_all = set(turns[0]).intersection(*turns)
    return Calls({function: min([turn[function] for turn in turns]) for function in in_all})


def _run_turn(served: Metered, token: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = b'{"text": "How are you today?"}'
    connection.request("POST", "/api/sessions/calls/messages?wait=60", body, headers)
    answer = connection.getresponse()
    turn = json.loads(answer.read())
    connection.sock.shutdown(socket.SHUT_WR)
    connection.sock.recv(1)  # the gateway has closed the connection too
    connection.close()
    if turn.get("state") != "done":
        raise SystemExit(f"a turn failed: {answer.status} {turn}")


def _read_counts(served: Metered, counts: Path) -> str:
    """Return the calls since the last time. See `bench.counted`."""
    counts.unlink(missing_ok=True)
    os.kill(served.pid, signal.SIGUSR1)
    deadline = time.monotonic() + _WAIT_SECONDS
    while not counts.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the gateway did not write its counts")
        time.sleep(0.002)
    return counts.read_text()


def _by_function(rows: list[Row]) -> Counter[Function]:
    found: Counter[Function] = Counter()
    for file, name, called, count in rows:
        found[Function(package_of(file), name, called)] += count
    return found


def package_of(file: str) -> str:
    """Return the package of a source file: `talaria.turns`, `aiohttp`, `asyncio`."""
    parts = Path(file).with_suffix("").parts
    for root, skipped in (("site-packages", 0), ("src", 0), ("lib", 1)):  # the last has python3.11/
        if root in parts:
            rest = parts[len(parts) - parts[::-1].index(root) + skipped :]
            return ".".join(rest[:2]) if rest[0] == "talaria" else rest[0]
    return parts[-1]


def render(calls: Calls, top: int = 0) -> str:
    """Return the calls by package, and the functions that are called most often."""
    python, c = calls.packages(are_python=True), calls.packages(are_python=False)
    names = sorted({*python, *c}, key=lambda name: -python[name] - c[name])
    rows = [[name, f"{python[name]}", f"{c[name]}"] for name in names]
    rows.append(["total", f"{python.total()}", f"{c.total()}"])
    text = align([["calls of a turn", "Python", "C"], *rows])
    if top:
        first = sorted(calls.functions.items(), key=lambda item: -item[1])[:top]
        listed = [[f"{count}", each.package, each.name, each.called] for each, count in first]
        text += "\n\n" + align([["calls", "package", "function", "C function that it calls"], *listed])
    return text


def record(calls: Calls, path: Path = RECORDED) -> None:
    """Write the calls of Talaria's own functions for this version of Python."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known[version()] = calls.own()
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def recorded(path: Path = RECORDED) -> dict[str, int] | None:
    """Return the recorded calls for this version of Python, or None if there are none."""
    known: dict[str, dict[str, int]] = json.loads(path.read_text()) if path.exists() else {}
    return known.get(version())


def version() -> str:
    """Return the version of Python, such as `3.11`. The number of frames depends on it."""
    return "{}.{}".format(*sys.version_info)
