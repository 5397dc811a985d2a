"""The plug-in of pytest in the runs of `./dev mutants`.

Writes one line of JSON for each test to MUTANTS_OUT: its id, its seconds, whether it passed, and the blocks
that it entered. Examples of hypothesis are not shrunk: only whether a test fails matters.
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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _MAP is not None:
        _MAP[:] = bytes(len(_MAP))
    began = time.monotonic()
    result = yield
    entered = [found.start() for found in re.finditer(b"\x01", _MAP[:])] if _MAP is not None else []
    seconds = round(time.monotonic() - began, 3)
    line = json.dumps([item.nodeid, seconds, item.nodeid not in _failed, entered])
    with Path(os.environ["MUTANTS_OUT"]).open("a") as out:
        out.write(f"{line}\n")
    return result
