"""One process to a home and to a database, and what the others are told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from talaria.core.errors import StoreError, StoreLocked
from talaria.store.home_lock import HomeLock, database_lock, lock_database


def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    first, second = HomeLock(tmp_path), HomeLock(tmp_path)
    with first:
        first.acquire()  # it has it already
        with pytest.raises(StoreLocked) as error:
            second.acquire()
        assert f"Another process (pid {os.getpid()}) is using the home {tmp_path}" in error.value.user_text
        assert error.value.hint.startswith(f"Stop it first (kill {os.getpid()}), or name another home")
        (lock,) = tmp_path.iterdir()
        lock.write_text("")
        with pytest.raises(StoreLocked, match="Another process is using the home"):
            second.acquire()
    with second:
        assert lock.read_text() == f"{os.getpid()}\n"
    assert lock.read_text() == ""
    second.release()  # it is released already


def test_a_lock_with_content_follows_a_crash_until_the_database_is_checked(tmp_path: Path) -> None:
    with HomeLock(tmp_path) as lock:
        assert not lock.follows_crash
        (path,) = tmp_path.iterdir()
    path.write_text("4711\n")
    with HomeLock(tmp_path) as lock:
        assert lock.follows_crash
    crashed = HomeLock(tmp_path)
    crashed.acquire()
    assert crashed.follows_crash, "it was not checked"
    crashed.mark_checked()
    crashed.release()
    with HomeLock(tmp_path) as lock:
        assert not lock.follows_crash


@pytest.mark.parametrize(
    ("number", "how", "database", "text", "hint"),
    [
        (errno.ENOSPC, "used", None, "The disk of the home H is full", "Make room on that disk"),
        (errno.ENOSPC, "used", Path("D"), "The disk of the database D is full", "Make room on that disk"),
        (errno.EROFS, "used", None, "The home H cannot be used", "Make its disk writable"),
        (errno.EACCES, "used", None, "The home H cannot be used", "Make the folder writable for this user"),
        (errno.ENOLCK, "locked", None, "The home H cannot be locked", "Put the home on a local disk"),
        (errno.EACCES, "used", Path("D"), "The database D cannot be used", "Check that its folder exists"),
    ],
)
def test_a_home_that_cannot_be_locked_says_what_to_do(
    number: int, how: str, database: Path | None, text: str, hint: str
) -> None:
    lock = HomeLock(Path("H"), database=database)
    error = lock._unusable(OSError(number, "reason"), how)
    assert error.user_text.startswith(text)
    assert "reason" in error.user_text
    assert error.hint.startswith(hint)


def test_a_home_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used: No such file or directory"):
        HomeLock(tmp_path / "none").acquire()


def test_a_database_elsewhere_has_a_lock_of_its_own(tmp_path: Path) -> None:
    home, database = tmp_path / "home", tmp_path / "shared" / "data.db"
    home.mkdir()
    database.parent.mkdir()
    assert database_lock(database) == tmp_path / "shared" / "data.lock"
    assert database_lock(tmp_path / "data.lock") == tmp_path / "data.lock.lock"
    with lock_database(database, home) as is_ours:
        assert is_ours
        with lock_database(database, tmp_path, is_required=False) as is_second:
            assert not is_second
        with pytest.raises(StoreLocked, match="serves the database"), lock_database(database, tmp_path):
            raise AssertionError("two have it")
    with lock_database(database, tmp_path, is_required=False) as is_ours:
        assert is_ours
    with lock_database(home / "talaria.db", home) as is_ours, HomeLock(home):
        assert is_ours, "the lock of the home is enough"
