"""Which SQLite this process runs on.

The `pysqlite3` wheel carries a current one. Python's own is the fallback; below 3.51.3 it has the WAL-reset
bug, by which two processes on one file can corrupt it, so that only the holder of the home's lock may open
the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3 as driver
else:
    try:
        from pysqlite3 import dbapi2 as driver
    except ImportError:
        import sqlite3 as driver

__all__ = ["driver", "engine", "is_single_process_only"]

engine = f"sqlite {driver.sqlite_version}"
is_single_process_only: bool = driver.sqlite_version_info < (3, 51, 3)
