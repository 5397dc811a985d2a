"""The folder of `store.files` is checked before a gateway keeps files there."""

from __future__ import annotations

from pathlib import Path

import pytest

from talaria.config.home import Home
from talaria.config.shared_files import MARK, check_shared_files, examine_shared_files
from talaria.core.errors import ConfigError
from talaria.core.problems import Severity
from talaria.store.settings import StoreSettings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    return home


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o700)
    return folder


def refusal(home: Home, shared: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_shared_files(home, shared)
    (finding,) = examine_shared_files(home, StoreSettings(files=str(shared)))
    assert finding.severity is Severity.PROBLEM
    assert caught.value.hint
    return caught.value.user_text


def test_all_homes_find_one_id_in_a_folder(home: Home, shared: Path, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.path.mkdir(mode=0o700)
    found = {check_shared_files(each, shared) for each in (home, other, home)}
    assert len(found) == 1
    assert [each.name for each in shared.iterdir()] == [MARK]
    (finding,) = examine_shared_files(home, StoreSettings(files=str(shared)))
    assert (finding.severity, str(shared) in finding.text) == (Severity.OK, True)


def test_a_folder_that_is_not_mounted_is_refused(home: Home, shared: Path, tmp_path: Path) -> None:
    check_shared_files(home, shared)
    shared.rename(tmp_path / "unmounted")
    assert "There is no folder" in refusal(home, shared)
    shared.mkdir()
    assert "is not the one that this gateway used before" in refusal(home, shared)
    (tmp_path / "new").mkdir(mode=0o700)
    check_shared_files(home, tmp_path / "new")  # the operator names another one


def test_a_folder_that_others_control_or_that_holds_the_home_is_refused(home: Home, shared: Path) -> None:
    shared.chmod(0o777)
    assert "Another user controls" in refusal(home, shared)
    inside = home.path / "files"
    inside.mkdir(mode=0o700)
    assert "lies in it" in refusal(home, inside)
    assert "contains the home" in refusal(home, home.path.parent)


def test_doctor_says_that_chats_stay_where_their_files_are(home: Home) -> None:
    assert not [*examine_shared_files(home, StoreSettings())]
    (finding,) = examine_shared_files(home, StoreSettings(url="postgresql://db/talaria"))
    assert "stays with this gateway" in finding.text
