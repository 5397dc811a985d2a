"""Checks and settings for every test."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from database_guard import DatabaseGuard

_guard = DatabaseGuard()


def pytest_configure() -> None:
    _guard.install()
    settings.register_profile("patient", deadline=None)  # a loaded machine may be slow
    settings.load_profile("patient")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT for its background jobs, and children inherit that. They do not inherit a
        # handler: programs under test start with the default, however pytest was started.
        signal.signal(signal.SIGINT, lambda number, frame: None)


def pytest_collection_finish() -> None:
    """The imported modules stay until the end, so `gc.collect` in a test need not walk them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def only_sqlite_opens_the_database() -> Iterator[None]:
    yield
    faults, _guard.faults[:] = list(_guard.faults), []
    assert not faults, faults


@pytest.fixture
def database_guard() -> DatabaseGuard:
    return _guard
