"""What holds for every test: nobody but SQLite opens a live database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from database_guard import DatabaseGuard

_guard = DatabaseGuard()


def pytest_configure() -> None:
    _guard.install()


@pytest.fixture(autouse=True)
def only_sqlite_opens_the_database() -> Iterator[None]:
    yield
    faults, _guard.faults[:] = list(_guard.faults), []
    assert not faults, faults


@pytest.fixture
def database_guard() -> DatabaseGuard:
    return _guard
