"""A close look at a database that no gateway uses."""

from __future__ import annotations

from talaria.cli.text import count
from talaria.config.home import Home
from talaria.core.units import format_size
from talaria.store.engines import describe_engine, inspect_database
from talaria.store.home_lock import HomeLock


def check_database(home: Home) -> str:
    """Return in a sentence what the database is. Raises `StoreError` for one that cannot be used as it is.

    Read-only. The home's lock is held, so that no gateway starts meanwhile.
    """
    path, latest = home.database, describe_engine().schema
    with HomeLock(home.path):
        database = inspect_database(path)
    owed = ""
    if database.unsettled or database.unsent:
        taken = f"{count(database.unsettled, 'turn')} and {count(database.unsent, 'reply', 'replies')}"
        owed = f"; the next start takes up {taken}"
    state = "" if database.schema == latest else f", to be upgraded to {latest} at the next start"
    return f"{path}: whole, schema {database.schema}{state}, {format_size(path.stat().st_size)}{owed}."
