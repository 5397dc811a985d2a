"""A value in a JSON file: written under a lock, only if it was changed, and only as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from talaria.core.whole_files import JsonFile, stamp_of


def refuse(path: Path, error: Exception) -> NoReturn:
    raise LookupError(path.name) from error


def test_a_value_is_written_if_the_block_has_changed_it_and_raises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "numbers.json"
    file = JsonFile(path, dict[str, int], refuse)
    assert file.read() == {}
    with file.changing() as numbers:
        numbers |= {"b": 2, "a": 1}
    before = stamp_of(path)
    assert file.read() == {"a": 1, "b": 2}
    with file.changing() as numbers:
        numbers["a"] = 1
    with pytest.raises(ZeroDivisionError), file.changing() as numbers:
        numbers["a"] = 1 // 0
    assert stamp_of(path) == before
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_cannot_be_read_is_left_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    for content in (b"{", b'{"a": "text"}', b"\xff"):
        path.write_bytes(content)
        file = JsonFile(path, dict[str, int], refuse)
        with pytest.raises(LookupError), file.changing():
            pass
        assert path.read_bytes() == content
    assert JsonFile(path, dict[str, int], lambda path, error: {"a": 0}).read() == {"a": 0}
