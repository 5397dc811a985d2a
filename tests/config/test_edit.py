"""Editing config.toml: what is set is set, and nothing else moves."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from talaria.config.edit import set_keys, write_secret
from talaria.core.errors import ConfigError

TABLE = ("channels", "telegram")


@pytest.mark.parametrize(
    "before",
    [
        "",
        "# only a comment\n",
        "[pool]\nmax_agents = 9  # enough\n",
        '[channels.telegram]\nallowed = [7]  # me\ntoken = "old"\n\n[pool]\nmax_agents = 9\n',
        "[channels.telegram]\n# who\nallowed = [\n  7, # me\n]\n[channels.other]\nx = 1\n",
        "channels.telegram.allowed = [7]\n",
    ],
)
def test_keys_are_set_and_the_rest_stays(tmp_path: Path, before: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(before)
    set_keys(path, TABLE, {"token_file": "telegram.token", "token": None})
    text = path.read_text()
    wanted = tomllib.loads(before)
    table = wanted.setdefault("channels", {}).setdefault("telegram", {})
    table.pop("token", None)
    table["token_file"] = "telegram.token"
    assert tomllib.loads(text) == wanted
    for comment in ("# only a comment", "# enough", "# me", "# who"):
        assert (comment in text) is (comment in before)


def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    set_keys(path, TABLE, {"progress": "full"})
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    set_keys(path, TABLE, {"progress": "off"})
    assert path.stat().st_mode & 0o777 == 0o640
    write_secret(tmp_path / "token", "secret")
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.toml", "token"]


def test_what_cannot_be_edited_is_left_and_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[broken\n")
    with pytest.raises(ConfigError):
        set_keys(path, TABLE, {"progress": "full"})
    assert path.read_text() == "[broken\n"


def test_a_key_that_is_there_twice_is_told_with_one_full_stop(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[pool]\nx = 1\nx = 2\n")
    with pytest.raises(ConfigError, match='Key "x" already exists') as caught:
        set_keys(path, TABLE, {"progress": "full"})
    assert ".." not in caught.value.user_text.removeprefix(str(path))
