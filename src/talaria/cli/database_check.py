"""A close look at a database that no gateway uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from talaria.cli.columns import count
from talaria.config.home import Home
from talaria.core.units import format_size
from talaria.store.home_lock import HomeLock
from talaria.store.rules import UNSETTLED
from talaria.store.sqlite.connection import open_reader
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import cannot_open
from talaria.store.sqlite.integrity import refuse_damaged
from talaria.store.sqlite.queries import counts
from talaria.store.sqlite.schema import check_version, latest_version


@contextmanager
def checked_reader(path: Path) -> Iterator[tuple[driver.Connection, int]]:
    """A connection to what is whole, ours, and not newer than this program; and the version of its schema.
    Raises `StoreError`."""
    try:
        connection = open_reader(path)
        try:
            version = check_version(connection, path, latest_version())
            refuse_damaged(connection, path)
            yield connection, version
        finally:
            connection.close()
    except driver.Error as error:
        raise cannot_open(path, error) from error


def check_database(home: Home) -> str:
    """What the database is, in a sentence. Raises `StoreError` for one that cannot be used as it is.

    Reads only, under the home's lock, so that no gateway starts meanwhile.
    """
    path, latest, owed = home.database, latest_version(), ""
    with HomeLock(home.path), checked_reader(path) as (connection, version):
        if version == latest:
            _, turns, replies, _ = counts(connection, None)
            unsettled = sum(turns[state] for state in UNSETTLED)
            if unsettled or replies:
                taken = f"{count(unsettled, 'turn')} and {count(replies, 'reply', 'replies')}"
                owed = f"; the next start takes up {taken}"
    state = "" if version == latest else f", to be upgraded to {latest} at the next start"
    return f"{path}: whole, schema {version}{state}, {format_size(path.stat().st_size)}{owed}."
