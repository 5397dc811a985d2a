"""The pytest plug-in of `./dev mutants`.

Writes one JSON line for each test to MUTANTS_OUT: its id, seconds, result, the reason of a skip, and the
blocks that it entered. A file that cannot be imported gets such a line too. "begin" is written before the
first test and "end" after the last one.
Examples of hypothesis are not shrunk: only whether a test fails matters.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

_MAP = getattr(builtins, "_mutants_hits_", None)
_failed: set[str] = set()
_skipped: dict[str, str] = {}


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    settings.register_profile("mutants", deadline=None, database=None, phases=phases)
    settings.load_profile("mutants")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that are listed in MUTANTS_ONLY, in its order."""
    if path := os.environ.get("MUTANTS_ONLY"):
        order = {node: place for place, node in enumerate(Path(path).read_text().splitlines())}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed and report.nodeid:
        said = str(report.longrepr).strip().splitlines()
        _write([report.nodeid, 0, "failed", said[-1] if said else "", []])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)
    elif report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped[report.nodeid] = reason.removeprefix("Skipped: ") or "no reason"


def pytest_collection_finish() -> None:
    _write("begin")


def pytest_sessionfinish() -> None:
    _write("end")


def _write(line: list[object] | str) -> None:
    with Path(os.environ["MUTANTS_OUT"]).open("a") as out:
        out.write(f"{json.dumps(line)}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _MAP is not None:
        _MAP[:] = bytes(len(_MAP))
    began = time.monotonic()
    done = yield
    entered = [found.start() for found in re.finditer(b"\x01", _MAP[:])] if _MAP is not None else []
    seconds = round(time.monotonic() - began, 3)
    reason = "" if item.nodeid in _failed else _skipped.get(item.nodeid, "")
    result = "failed" if item.nodeid in _failed else "skipped" if reason else "passed"
    _write([item.nodeid, seconds, result, reason, entered])
    return done
