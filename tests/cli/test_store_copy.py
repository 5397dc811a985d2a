"""`talaria store copy` names the database that it copies, and the way back to it."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import Talaria


def test_a_home_without_a_database_is_not_copied(talaria: Talaria, home: Path, tmp_path: Path) -> None:
    done = talaria("store", "copy", "--to", f"sqlite:{tmp_path}/copy.db")
    assert done.returncode == 1
    assert f"{home / 'talaria.db'} does not exist" in done.stderr
    assert not (home / "talaria.db").exists() and not (tmp_path / "copy.db").exists()


def test_a_copy_onto_the_homes_own_database_names_the_way_back_to_its_original(
    talaria: Talaria, tmp_path: Path
) -> None:
    """The user has set store.url before an interrupted copy was complete."""
    assert talaria("ask", "hi").returncode == 0
    url = f"sqlite:{tmp_path}/copy.db"
    assert talaria("config", "set", "store.url", url).returncode == 0
    refused = talaria("store", "copy", "--to", url)
    assert refused.returncode == 1
    assert "talaria config unset store.url" in refused.stderr
    assert talaria("config", "unset", "store.url").returncode == 0
    assert "compared" in talaria("store", "copy", "--to", url).stdout
