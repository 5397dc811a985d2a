"""A home has one place id for ever, and a copy of it gets another."""

from __future__ import annotations

import shutil
from pathlib import Path

from talaria.cluster.places import find_place


def test_a_place_keeps_its_id_and_a_copy_of_the_home_gets_another(tmp_path: Path) -> None:
    home, moved = tmp_path / "home", tmp_path / "moved"
    home.mkdir()
    place = find_place(home)
    assert find_place(home) == place
    home.rename(moved)
    assert find_place(moved) == place
    shutil.copytree(moved, home)
    assert find_place(home) != place
    assert find_place(moved) == place
