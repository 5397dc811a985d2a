"""What holds for every test: nobody but SQLite opens a live database."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from database_guard import DatabaseGuard

_guard = DatabaseGuard()


def pytest_configure() -> None:
    _guard.install()
    settings.register_profile("patient", deadline=None)  # how fast an example runs is the machine's affair
    settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """What all test modules brought stays to the end: `gc.collect` in a test need not walk it again."""
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
