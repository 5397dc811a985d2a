"""Whether the files of an open database are still those at their paths."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from talaria.core.errors import StoreError
from talaria.store.sqlite.database import copy_database, open_reader
from talaria.store.sqlite.rescue import FileIdentity, Loss, copy_into


@pytest.mark.broken_database
def test_each_file_that_is_lost_is_found(tmp_path: Path) -> None:
    path = tmp_path / "talaria.db"
    path.write_text("1")
    files = FileIdentity(path)
    assert files.is_in_place()
    assert files.find_loss() is None
    log = tmp_path / "talaria.db-wal"
    log.write_text("made with the first write")
    assert files.find_loss() is None
    other = tmp_path / "other"
    other.write_text("2")
    other.replace(log)
    assert files.find_loss() == Loss(log, is_replaced=True)
    log.unlink()
    assert files.find_loss() == Loss(log, is_replaced=False)
    assert files.is_in_place()
    path.rename(tmp_path / "moved")
    assert not files.is_in_place()
    assert files.find_loss() == Loss(path, is_replaced=False)
    path.write_text("3")
    assert files.find_loss() == Loss(path, is_replaced=True)
    assert str(Loss(path, is_replaced=True)) == f"{path} was replaced by another file"
    assert str(Loss(path, is_replaced=False)) == f"{path} was deleted"


def test_a_copy_that_fails_leaves_no_file(tmp_path: Path) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE a (b)")
    target = tmp_path / "copy.db"
    copy_into(connection, target)
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        copy_into(connection, target)
    assert target.exists()
    connection.close()
    with pytest.raises(sqlite3.Error):
        copy_into(connection, tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(("should_stop", "words"), [(True, "The copy was not finished"), (False, "")])
@pytest.mark.broken_database
def test_a_copy_that_the_end_of_the_store_stops_says_so(
    tmp_path: Path, should_stop: bool, words: str
) -> None:
    path = tmp_path / "talaria.db"
    path.write_bytes(b"no database at all, but long enough for a header" * 50)
    with pytest.raises(StoreError) as error:
        copy_database(path, tmp_path / "copy.db", lambda: should_stop)
    assert error.value.user_text.startswith(words)
    assert ("not finished" in error.value.user_text) is should_stop


@pytest.mark.broken_database
def test_a_reader_keeps_temporary_tables_in_memory_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "talaria.db"
    made = sqlite3.connect(path)
    made.execute("CREATE TABLE a (b)")
    made.close()
    reader = open_reader(path)
    try:
        values = [reader.execute(f"PRAGMA {name}").fetchone()[0] for name in ("temp_store", "foreign_keys")]
        assert values == [2, 0]
        with pytest.raises(Exception, match="readonly"):
            reader.execute("INSERT INTO a VALUES (1)")
    finally:
        reader.close()
