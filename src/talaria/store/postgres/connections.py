"""Opening connections: how long anything may take there, and what the database must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from talaria.core.errors import StoreError
from talaria.store.postgres.faults import server_full, unprepared, unreachable
from talaria.store.postgres.pipeline import ConnectionCut, Pipe

GATEWAY = "talaria"  # the name of a gateway's connections at the server
CONNECT_SECONDS = 5
OLDEST_VERSION = 14

# A gateway that is stopped or cut off in the middle of an order must not keep its locks: the server ends its
# session.
_LIMITS = {
    "statement_timeout": "20s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# Also one that is stopped while it sends an order, which is not idle then.
_LIMITS_17 = {"transaction_timeout": "30s"}
_WRITER = {"default_transaction_isolation": "read committed", "default_transaction_read_only": "off"}
# A backup reads for as long as it takes, and its server must notice when it has died.
_SNAPSHOT = {"idle_in_transaction_session_timeout": "10min"}
_SNAPSHOT_17 = {"transaction_timeout": "0"}
# All statements up to the end of a query see one moment.
_READER = {"default_transaction_isolation": "repeatable read", "default_transaction_read_only": "on"}
# A server that loses what it has confirmed, while the gateway lives on, would give a fence twice.
_DURABLE = """
SELECT set_config('synchronous_commit', 'local', false) WHERE current_setting('synchronous_commit') = 'off'
"""
# A start waits for the migration of another gateway, and its own may take long.
_MIGRATION = _WRITER | {"lock_timeout": "60s", "statement_timeout": "0"}
_PASSING = ("terminating connection", "closed the connection", "is starting up", "recovery mode")
_FULL = ("too many clients", "too many connections", "connection slots are reserved")
_SET = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS setting (name, value)"
_PLANS = {"plan_cache_mode": "force_generic_plan"}  # made once for each statement


def _arguments(url: str, name: str) -> dict[str, Any]:
    return {
        "target_session_attrs": conninfo_to_dict(url).get("target_session_attrs") or "primary",
        "autocommit": True,
        "connect_timeout": CONNECT_SECONDS,
        "application_name": name,
        "client_encoding": "utf8",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    }


async def connect_listener(url: str, name: str) -> psycopg.AsyncConnection[Any]:
    """Return a connection that waits for notifications on the event loop. Raises `psycopg.Error`."""
    connection = await psycopg.AsyncConnection.connect(url, **_arguments(url, name))
    await connection.execute(_SET, [list(_LIMITS), list(_LIMITS.values())])
    return connection


def connect(url: str, name: str = GATEWAY) -> psycopg.Connection[Any]:
    """Return a connection as libpq makes it.

    Raises `StoreError` if there is no server, `ServerFull` if it takes no more connections, `ConnectionCut`
    if it is about to serve again.
    """
    try:
        return psycopg.connect(url, **_arguments(url, name))
    except psycopg.ProgrammingError:
        # libpq quotes the part that it cannot read, which may be the password.
        raise StoreError(
            "[store] url is not an address that PostgreSQL's library can read.",
            "Look at its parameters behind the question mark, and write special characters as %XX.",
        ) from None
    except psycopg.Error as error:
        if any(words in str(error) for words in _PASSING):
            raise ConnectionCut(str(error)) from error
        if any(words in str(error) for words in _FULL):
            raise server_full(error) from error
        raise unreachable(error) from error


def open_pipe(
    url: str,
    *,
    name: str = GATEWAY,
    is_reader: bool = False,
    is_snapshot: bool = False,
    seconds: float = CONNECT_SECONDS,
) -> Pipe:
    """Return a connection for orders, for queries, or for one long transaction that only reads.

    Raises as `connect` does, and `ConnectionCut` if the server does not accept its settings within `seconds`.
    """
    connection = connect(url, name)
    try:
        settings = _LIMITS | (_READER if is_reader or is_snapshot else _WRITER) | _PLANS
        if connection.info.server_version >= 170000:
            settings |= _LIMITS_17
            settings |= _SNAPSHOT_17 if is_snapshot else {}
        settings |= _SNAPSHOT if is_snapshot else {}
        pipe = Pipe(connection)
        pipe.begin(seconds)
        values = [part for pair in settings.items() for part in pair]
        pipe.execute(f"SELECT {', '.join(['set_config(?, ?, false)'] * len(settings))}", values)
        pipe.execute(_DURABLE)
        pipe.commit()
    except psycopg.Error as error:
        connection.close()
        raise ConnectionCut(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return pipe


@contextmanager
def preparing(url: str, name: str = GATEWAY) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection that makes and migrates tables. Raises `StoreError`, also for errors of the server in
    the block."""
    try:
        with connect(url, name) as connection:
            connection.execute(_SET, [list(_MIGRATION), list(_MIGRATION.values())])
            yield connection
    except ConnectionCut as cut:
        raise unreachable(cut) from cut
    except psycopg.Error as error:
        raise unprepared(error) from error


def version_of(connection: psycopg.Connection[Any]) -> str:
    """Return the server's version. Raises `StoreError` for one that is too old, and for a database that
    cannot hold every text."""
    if (encoding := connection.info.parameter_status("server_encoding")) not in (None, "UTF8"):
        raise StoreError(
            f"The database holds texts as {encoding}, which has no place for many characters.",
            "Make another with `createdb -E UTF8 -T template0 talaria`.",
        )
    number = connection.info.server_version
    version = f"{number // 10000}.{number % 10000}"
    if number < OLDEST_VERSION * 10000:
        raise StoreError(
            f"The database runs on PostgreSQL {version}, and Talaria needs {OLDEST_VERSION} or newer.",
            "Upgrade the server, or name another in [store] url.",
        )
    return version


Connect = Callable[[], Pipe]
