"""A home that another user owns, writes or could replace is refused, with the command that mends it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from talaria.config.home import Home, UntrustedHome, check_trusted, find_distrust
from talaria.config.load import load

OTHER = 65_533
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "shelf" / "home")
    home.path.mkdir(mode=0o700, parents=True)
    for file in (home.config, home.token_file, home.database):
        file.touch(0o600)
    return home


def refusal(home: Home) -> UntrustedHome:
    with pytest.raises(UntrustedHome) as caught:
        check_trusted(home)
    return caught.value


def test_a_home_of_ones_own_is_trusted_and_so_is_one_that_is_not_there(home: Home, tmp_path: Path) -> None:
    check_trusted(home)
    check_trusted(Home(tmp_path / "not" / "there"))
    home.path.chmod(0o755)  # others may read it: a warning elsewhere
    check_trusted(home)


@pytest.mark.parametrize("name", [".", "config.toml", "http.token", "talaria.db", ".."])
def test_what_others_can_write_is_refused_and_the_command_mends_it(home: Home, name: str) -> None:
    path = Path(os.path.normpath(home.path / name))
    path.chmod(0o777)
    error = refusal(home)
    kind = "The home" if name == "." else "The folder" if name == ".." else "The file"
    told = f"{kind} {path} can be written by other users (mode 0777), who could send keys elsewhere."
    assert error.user_text == told
    assert error.hint.endswith("or name a home of your own with --home or TALARIA_HOME.")
    command = error.command
    assert command == f"chmod go-w {shlex.quote(str(path))}"
    assert command in error.hint
    subprocess.run(shlex.split(command), check=True)
    check_trusted(home)


def test_a_folder_with_the_sticky_bit_may_be_open(home: Home) -> None:
    home.path.parent.chmod(0o1777)
    check_trusted(home)


@root_only
@pytest.mark.parametrize("name", [".", "config.toml", "http.token", "talaria.db", ".."])
def test_what_another_user_owns_is_refused(home: Home, name: str) -> None:
    path = Path(os.path.normpath(home.path / name))
    os.chown(path, OTHER, -1)
    error = refusal(home)
    assert f"{path} belongs to another user (uid {OTHER})" in error.user_text
    assert "sudo -u" in error.hint
    subprocess.run(shlex.split(error.command), check=True)
    check_trusted(home)


@root_only
def test_a_group_with_other_members_may_not_write(home: Home) -> None:
    os.chown(home.path, -1, 1)  # `daemon` everywhere
    home.path.chmod(0o770)
    assert "can be written by other users" in refusal(home).user_text
    os.chown(home.path, -1, os.getegid())
    check_trusted(home)


@root_only
@pytest.mark.broken_database
def test_a_link_of_another_user_is_refused(home: Home, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home.path)
    check_trusted(Home(link))
    os.chown(link, OTHER, -1, follow_symlinks=False)
    assert str(link) in refusal(Home(link)).user_text


@root_only
def test_a_user_may_run_on_a_volume_of_its_own() -> None:
    """As in a container: another user than root, whose volume its own group may write."""
    code = (
        "import os, sys; from pathlib import Path; from talaria.config.home import Home\n"
        "from talaria.config.home import find_distrust\n"
        "os.setgroups([]); os.setgid(10001); os.setuid(10001)\n"
        "home = Home(Path(sys.argv[1])); home.config.lstat()\n"
        "print([reason.user_text for reason in find_distrust(home)])"
    )
    with TemporaryDirectory() as folder:
        volume = Path(folder)
        (volume / "config.toml").touch(0o644)
        os.chown(volume, 10001, 10001)
        volume.chmod(0o2770)
        found = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == "[]"
        os.chown(volume, OTHER, 10001)
        found = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
        )
        assert "belongs to another user" in found.stdout


@root_only
def test_a_container_that_runs_as_any_user_may_write_by_the_group_of_root() -> None:
    code = (
        "import os, sys; from pathlib import Path; from talaria.config.home import Home\n"
        "from talaria.config.home import find_distrust\n"
        "os.setgroups([]); os.setgid(0); os.setuid(int(sys.argv[2]))\n"
        "print([reason.user_text for reason in find_distrust(Home(Path(sys.argv[1])))])"
    )
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o775)
        found = subprocess.run(
            [sys.executable, "-c", code, folder, str(OTHER)], capture_output=True, text=True, check=True
        )
    assert found.stdout.strip() == "[]"


def test_nothing_is_read_from_a_home_that_others_can_write(home: Home) -> None:
    home.config.write_text("[model]\nprovider = 'openai'\nname = 'x'\n")
    home.path.chmod(0o777)
    with pytest.raises(UntrustedHome):
        load(home.path, {}, ())
    assert len([*find_distrust(home)]) == 1
