"""A close look at the database of a home that no gateway runs on."""

from __future__ import annotations

from talaria.config.home import Home
from talaria.core.errors import StoreError
from talaria.core.units import format_size
from talaria.store.home_lock import HomeLock
from talaria.store.sqlite.connection import cannot_open, open_reader
from talaria.store.sqlite.engine import driver
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
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
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
    if verdict != "ok":
        raise StoreError(f"{path} is damaged: {verdict}.", "Restore a backup, or move the file away.")
    state = "" if version == latest else f", to be upgraded to {latest} at the next start"
    return f"{path}: whole, schema {version}{state}, {format_size(path.stat().st_size)}."
