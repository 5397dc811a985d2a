"""Checks and settings for every test."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support import complexity
from support.database_guard import DatabaseGuard
from support.leftovers import Leftovers
from support.programs import missing_programs

_guard = DatabaseGuard()


_AGAIN_SECONDS = 30.0
_SLOW = frozenset({"browser", "scenarios", "trial"})  # folders of tests that take seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that are marked `long`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long tests unless they are asked for. `./dev soak --only tests` runs them.

    With several workers, each begins with its share of the slow files, so that none is begun last. Workers
    get equal parts of the list, in its order."""
    long = [item for item in items if item.get_closest_marker("long")]
    if long and not config.getoption("long"):
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        items[:] = _spread(items, workers)


def _spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the items in an order in which each worker's part begins with slow files. Those of a browser
    stay together, because each worker would start one."""
    slow: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (folder := item.path.parent.name) in _SLOW:
            slow.setdefault(folder if folder == "browser" else str(item.path), []).append(item)
    first: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for n, group in enumerate(slow.values()):
        first[n % workers] += group
    rest = iter([item for item in items if item.path.parent.name not in _SLOW])
    spread: list[pytest.Item] = []
    for n, part in enumerate(first):
        size = len(items) // workers + (n < len(items) % workers)
        spread += [*part, *itertools.islice(rest, max(0, size - len(part)))]
    return [*spread, *rest]


def pytest_configure(config: pytest.Config) -> None:
    _guard.install()
    # What tests leave here is theirs: several processes run tests beside each other.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix="t-")  # short: sockets are in it
    Path(folder.name).chmod(0o711)  # PostgreSQL has another user
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name
    config.add_cleanup(folder.cleanup)
    config.pluginmanager.register(Leftovers())  # hooks of this file see no fixtures of sessions
    # Texts name commands as they are typed: `talaria`, if that is on the path.
    os.environ["PATH"] = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Nothing is reached but loopback. Each process would read the certificates of the system, for 50 ms.
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("certificates.pem"))
    os.environ["SSL_CERT_DIR"] = "/nonexistent"
    complexity.FORM = "long" if config.getoption("long") else "short"
    settings.register_profile("patient", deadline=None)  # a loaded machine may be slow
    settings.load_profile("patient")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT for its background jobs, and children inherit that. They do not inherit a
        # handler: programs under test start with the default, however pytest was started.
        signal.signal(signal.SIGINT, lambda number, frame: None)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, object, object]:
    """Repeat the alarm at the time limit of a test.

    If it comes while the event loop itself runs, the loop only logs the error and the test hangs on.
    """
    is_set = yield
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, _AGAIN_SECONDS)
    return is_set


def pytest_collection_finish() -> None:
    """The imported modules stay until the end, so `gc.collect` in a test need not walk them."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the missing programs once, after all results."""
    if missing := missing_programs():
        terminalreporter.write_line(
            f"Not installed: {', '.join(missing)}. Tests that need them were skipped. "
            f"To install them: sudo apt-get install {' '.join(missing.values())}"
        )


@pytest.fixture(autouse=True)
def only_sqlite_opens_the_database() -> Iterator[None]:
    yield
    faults, _guard.faults[:] = list(_guard.faults), []
    assert not faults, faults


@pytest.fixture
def database_guard() -> DatabaseGuard:
    return _guard
