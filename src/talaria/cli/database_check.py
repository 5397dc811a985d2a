"""A close look at the database of a home that no gateway runs on."""

from __future__ import annotations

from talaria.config.home import Home
from talaria.core.errors import StoreError
from talaria.core.units import format_size
from talaria.store.home_lock import HomeLock
from talaria.store.rules import UNSETTLED
from talaria.store.sqlite.connection import open_reader
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import cannot_open
from talaria.store.sqlite.integrity import refuse_damaged
from talaria.store.sqlite.queries import counts
from talaria.store.sqlite.schema import APPLICATION_ID, latest_version


def check_database(home: Home) -> str:
    """What the database is, in a sentence. Raises `StoreError` for one that cannot be used as it is.

    Reads only, under the home's lock, so that no gateway starts meanwhile.
    """
    path, latest = home.database, latest_version()
    with HomeLock(home.path):
        try:
            connection = open_reader(path)
        except driver.Error as error:
            raise cannot_open(path, error) from error
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            refuse_damaged(connection, path)
            owed = _owed(connection) if version == latest else ""
        except driver.Error as error:
            raise cannot_open(path, error) from error
        finally:
            connection.close()
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program.", "Move it away.")
    if version > latest:
        raise StoreError(
            f"{path} was written by a newer Talaria (schema {version}; this one knows {latest}).",
            "Upgrade this program, or restore a backup from before the upgrade.",
        )
    state = "" if version == latest else f", to be upgraded to {latest} at the next start"
    return f"{path}: whole, schema {version}{state}, {format_size(path.stat().st_size)}{owed}."


def _owed(connection: driver.Connection) -> str:
    """What the next start takes up."""
    _, turns, replies, _ = counts(connection, None)
    unsettled = sum(turns[state] for state in UNSETTLED)
    if not unsettled and not replies:
        return ""
    return f"; the next start takes up {unsettled} turns and {replies} replies"
