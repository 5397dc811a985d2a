"""Errors of PostgreSQL, and what an order makes of them."""

from __future__ import annotations

from enum import Enum, auto

import psycopg
from psycopg import errors

from talaria.core.errors import StoreError
from talaria.store.postgres.pipeline import ConnectionCut

LOOK = "`talaria doctor` looks closer; the gateway continues by itself."


class OrderFault(Enum):
    """The kinds of failure, by what the order is to do then."""

    CUT = auto()  # connect again; whether a commit under way was carried out is read back
    FORGOTTEN = auto()  # run again: the database does not know the order before, which it had confirmed
    AGAIN = auto()  # run again: another order was in its way
    TAKEN = (
        auto()
    )  # run again, a few times: another order wrote the key first, or this one can never be stored
    REFUSED = auto()  # the order's own values cannot be stored
    BUSY = auto()  # another order kept a lock for too long
    OTHER = auto()


_CONNECTION_CLASS = "08"  # a pooler says so that it lost the server
_UNKNOWN_OUTCOME = "40003"


def ends_session(error: Exception) -> bool:
    """Return whether the session is over with this error, whether libpq has noticed or not. A commit that was
    under way may have been carried out."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, ConnectionCut)
    code = error.sqlstate or ""
    is_fatal = error.diag.severity_nonlocalized in ("FATAL", "PANIC")
    return is_fatal or code.startswith(_CONNECTION_CLASS) or code == _UNKNOWN_OUTCOME


# In this order. What is no error of psycopg's is one of the order itself.
_KINDS: tuple[tuple[OrderFault, tuple[type[Exception], ...]], ...] = (
    # A server that only reads may have been the one that writes before a fail-over.
    (OrderFault.CUT, (errors.ReadOnlySqlTransaction,)),
    (OrderFault.FORGOTTEN, (errors.DivisionByZero,)),  # see `link.MARK`
    (OrderFault.AGAIN, (errors.SerializationFailure, errors.DeadlockDetected)),
    (OrderFault.TAKEN, (errors.UniqueViolation,)),
    (OrderFault.REFUSED, (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError)),
    (OrderFault.BUSY, (errors.LockNotAvailable, errors.QueryCanceled)),
    (OrderFault.OTHER, (psycopg.Error,)),
)


def kind_of(error: Exception) -> OrderFault:
    if ends_session(error):
        return OrderFault.CUT
    return next((kind for kind, types in _KINDS if isinstance(error, types)), OrderFault.REFUSED)


def text_of(error: Exception) -> str:
    """Return the first line of what the server or libpq said."""
    return str(error).strip().partition("\n")[0].rstrip(".")


def failed(error: Exception) -> StoreError:
    """Return the error for an order that was not carried out."""
    what = text_of(error)
    match kind_of(error):
        case OrderFault.REFUSED | OrderFault.TAKEN:
            failure = StoreError(f"This cannot be stored: {what}.", "The gateway's log has the whole error.")
        case OrderFault.BUSY | OrderFault.AGAIN:
            failure = StoreError(
                f"The database is too busy, and nothing was written: {what}.",
                "Look for long transactions in pg_stat_activity; the gateway continues by itself.",
            )
        case OrderFault.CUT:
            failure = StoreError(f"The database cannot be reached: {what}.", LOOK)
        case _:
            failure = StoreError(f"The database failed, and nothing was written: {what}.", LOOK)
    failure.__cause__ = error
    return failure


def unreachable(error: Exception) -> StoreError:
    failure = StoreError(
        f"The database cannot be reached: {text_of(error)}.",
        "Start PostgreSQL, or change [store] url; the gateway continues by itself when it answers.",
    )
    failure.__cause__ = error
    return failure


def unprepared(error: psycopg.Error) -> StoreError:
    """Return the error for a database whose tables cannot be read or made."""
    hint = LOOK
    if isinstance(error, errors.InsufficientPrivilege):
        hint = "Let the user of [store] url own the database: ALTER DATABASE … OWNER TO …, or GRANT CREATE."
    return StoreError(f"The tables of the database cannot be read or made: {text_of(error)}.", hint)


class ServerFull(StoreError):
    """The server takes no more connections. Nothing was written."""


def server_full(error: Exception) -> ServerFull:
    failure = ServerFull(
        f"The database has no free connection: {text_of(error)}.",
        "Lower store.connections of the gateways, or raise max_connections of the server.",
    )
    failure.__cause__ = error
    return failure


def in_doubt() -> StoreError:
    return StoreError(
        "The database was lost in the middle of a commit and is not back: whether the last write was carried "
        "out is not known.",
        "The gateway reads what there is when the database is back.",
    )


class PoolFull(StoreError):
    """All connections of this gateway were in use for too long. Nothing was written."""


def no_connection(seconds: float, connections: int) -> PoolFull:
    return PoolFull(
        f"The database is too slow: all {connections} connections were in use for {seconds:.0f} s, and "
        "nothing was written.",
        "Look at the load of PostgreSQL, or raise store.connections.",
    )


def hanging(seconds: float, what: str = "a write") -> StoreError:
    return StoreError(
        f"The database does not answer: {what} has been waiting for {seconds:.0f} s.",
        "Look at the load and the locks of PostgreSQL; the gateway continues by itself when it answers.",
    )
