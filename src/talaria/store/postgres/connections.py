"""Opening connections: how long anything may take there, and what the database must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from talaria.core.errors import StoreError
from talaria.store.postgres.faults import unreachable
from talaria.store.postgres.pipeline import Pipe

CONNECT_SECONDS = 5
OLDEST_VERSION = 14

# A gateway that is stopped in the middle of an order must not keep its locks: the server ends its session.
_LIMITS = {
    "statement_timeout": "20s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
}
_WRITER = {"default_transaction_isolation": "read committed"}
# All statements up to the end of a query see one moment.
_READER = {"default_transaction_isolation": "repeatable read", "default_transaction_read_only": "on"}
_SET = "SELECT " + ", ".join(["set_config(%s, %s, false)"] * (len(_LIMITS) + 3))


def connect(url: str) -> psycopg.Connection[Any]:
    """Return a connection as libpq makes it. Raises `StoreError` if there is no server."""
    try:
        return psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            application_name="talaria",
            client_encoding="utf8",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=15_000,
        )
    except psycopg.Error as error:
        raise unreachable(error) from error


def open_pipe(url: str, *, is_reader: bool = False) -> Pipe:
    connection = connect(url)
    try:
        settings = _LIMITS | (_READER if is_reader else _WRITER)
        settings |= {} if is_reader else {"default_transaction_read_only": "off"}
        values = [part for pair in settings.items() for part in pair]
        # A number as text is the same on each server; and plans of prepared statements are made once.
        connection.execute(_SET, [*values, "plan_cache_mode", "force_generic_plan"])
        return Pipe(connection)
    except psycopg.Error as error:
        connection.close()
        raise unreachable(error) from error
    except BaseException:
        connection.close()
        raise


def version_of(connection: psycopg.Connection[Any]) -> str:
    """Return the server's version. Raises `StoreError` for one that is too old."""
    number = connection.info.server_version
    version = f"{number // 10000}.{number % 10000}"
    if number < OLDEST_VERSION * 10000:
        raise StoreError(
            f"The database runs on PostgreSQL {version}, and Talaria needs {OLDEST_VERSION} or newer.",
            "Upgrade the server, or name another in [store] url.",
        )
    return version


Connect = Callable[[], Pipe]
