"""Errors of PostgreSQL, and what an order makes of them."""

from __future__ import annotations

from enum import Enum, auto

import psycopg
from psycopg import errors

from talaria.core.errors import StoreError
from talaria.store.postgres.pipeline import ConnectionCut

LOOK = "`talaria doctor` looks closer; the gateway goes on by itself."


class OrderFault(Enum):
    """The kinds of failure, by what the order is to do then."""

    CUT = auto()  # connect again; whether a commit under way was carried out is read back
    AGAIN = auto()  # run again: another order was in its way
    TAKEN = (
        auto()
    )  # run again, a few times: another order wrote the key first, or this one can never be stored
    REFUSED = auto()  # the order's own values cannot be stored
    BUSY = auto()  # another order kept a lock for too long
    OTHER = auto()


_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)
# The session is over with these, whether libpq has noticed or not.
_CUT = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
)
_BUSY = (errors.LockNotAvailable, errors.QueryCanceled)


def kind_of(error: Exception) -> OrderFault:
    if isinstance(error, (ConnectionCut, *_CUT)):
        return OrderFault.CUT
    if isinstance(error, _AGAIN):
        return OrderFault.AGAIN
    if isinstance(error, errors.UniqueViolation):
        return OrderFault.TAKEN
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError | psycopg.ProgrammingError):
        # A read-only server says so by an internal error of class 25.
        return OrderFault.REFUSED
    if isinstance(error, _BUSY):
        return OrderFault.BUSY
    return OrderFault.OTHER if isinstance(error, psycopg.Error) else OrderFault.REFUSED


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
                "Look for long transactions in pg_stat_activity; the gateway goes on by itself.",
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
        "Start PostgreSQL, or change [store] url; the gateway goes on by itself when it answers.",
    )
    failure.__cause__ = error
    return failure


def in_doubt() -> StoreError:
    return StoreError(
        "The database was lost in the middle of a commit, and the store was closed before it came back: "
        "whether the last write was carried out is not known.",
        "The next start reads what there is.",
    )


def no_connection(seconds: float, connections: int) -> StoreError:
    return StoreError(
        f"The database is too slow: all {connections} connections were in use for {seconds:.0f} s, and "
        "nothing was written.",
        "Look at the load of PostgreSQL, or raise store.connections.",
    )


def hanging(seconds: float) -> StoreError:
    return StoreError(
        f"The database does not answer: a write has been waiting for {seconds:.0f} s.",
        "Look at the load and the locks of PostgreSQL; the gateway goes on by itself when it answers.",
    )
