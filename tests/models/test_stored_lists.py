"""The file that keeps the lists of models between starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from talaria.models.discovery import MAX_FILE_BYTES, ModelList, _load, _save


def test_lists_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    assert _load(path) == {}
    lists = {"p": ModelList("http://x/v1", 5.0, {}, "it failed")}
    _save(path, lists)
    assert _load(path) == lists
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["models.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"p": 5}', b"\xff"])
def test_a_file_that_is_broken_has_no_lists(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "models.json"
    path.write_bytes(content)
    assert _load(path) == {}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    for size, found in ((MAX_FILE_BYTES, 1), (MAX_FILE_BYTES + 1, 0)):
        _save(path, {"p": ModelList("u", 1.0, {})})
        data = path.read_bytes()
        path.write_bytes(data + b" " * (size - len(data)))
        assert len(_load(path)) == found


def test_a_file_that_cannot_be_written_is_told_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "models.json"
    path.mkdir()
    (path / "inside").touch()
    _save(path, {"p": ModelList("u", 1.0, {})})
    assert "cannot be written" in caplog.text
    assert [each.name for each in tmp_path.iterdir()] == ["models.json"]
