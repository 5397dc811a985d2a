"""`talaria uninstall`: what it ends, what it keeps, and what it deletes."""

from __future__ import annotations

import os
import signal
import sys
from io import StringIO
from pathlib import Path

import pytest

from cli.conftest import DEADLINE, Serve, Talaria
from support.trees import nested
from talaria.cli.main import main
from talaria.core.installation import remove_command
from talaria.workspace.processes import find_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="background processes are for Linux")
BACKGROUND = '[[call terminal {"command": "sleep 4321", "background": true}]]'


def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def start_process(talaria: Talaria, home: Path) -> int:
    """Let an agent start a process in the background. Gives its pid."""
    done = talaria("ask", BACKGROUND)
    assert "Started in the background" in done.stdout, done.stderr
    (record,) = find_running(home)
    return record.pid


def is_running(pid: int) -> bool:
    try:
        return b"Z" not in Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2][:3]
    except OSError:
        return False


def of_home(home: Path) -> list[str]:
    """The processes whose command line names this home."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [text] if str(home) in text and line.parent.name != str(os.getpid()) else []
    return found


def test_everything_that_runs_ends_and_the_data_stays(
    serve: Serve, talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    gateway = serve()
    pid = start_process(talaria, home)
    unit = tmp_path / "c" / "systemd" / "user"
    talaria("service", "install", "--no-start", env=env(tmp_path))
    assert list(unit.iterdir())
    done = talaria("uninstall", "--yes", env=env(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"pid {gateway.pid}" in done.stdout
    assert "1 background process" in done.stdout and "sleep 4321" in done.stdout
    assert f"Kept: {home}" in done.stdout
    assert done.stdout.splitlines()[-1] == f"To remove the program: {remove_command()}"
    gateway.wait(DEADLINE)
    assert not is_running(pid)
    assert of_home(home) == []
    assert not list(unit.iterdir())
    assert (home / "talaria.db").exists()


def test_processes_of_a_killed_gateway_end_and_the_data_is_deleted(
    serve: Serve, talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    gateway = serve()
    pid = start_process(talaria, home)
    gateway.kill()
    gateway.wait(DEADLINE)
    assert is_running(pid)
    models = tmp_path / "cache" / "talaria"
    models.mkdir(parents=True)
    (models / "mine.txt").touch()
    done = talaria("uninstall", "--yes", "--delete-data", env=env(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "not running" in done.stdout
    assert f"Deleted: {home}" in done.stdout
    assert f"Kept, because it has other files: {models}" in done.stdout
    assert not is_running(pid)
    assert not home.exists()
    assert (models / "mine.txt").exists()


def test_a_home_behind_a_link_is_deleted_with_the_link_and_not_what_links_in_it_lead_to(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    real, other = tmp_path / "disk", tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("kept")
    home.rename(real)
    home.symlink_to(real)
    (real / "talaria.lock").touch()
    (real / "link").symlink_to(other)
    done = talaria("uninstall", "--yes", "--delete-data", env=env(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert not real.exists() and not home.is_symlink()
    assert (other / "kept").read_text() == "kept"


def test_a_home_with_folders_that_are_nested_deeply_is_deleted(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    (home / "talaria.lock").touch()
    (home / "files").mkdir(exist_ok=True)
    with nested(home / "files", 3000):
        done = talaria("uninstall", "--yes", "--delete-data", env=env(tmp_path))
        assert (done.returncode, done.stderr, home.exists()) == (0, "", False)


def test_without_a_terminal_it_needs_a_yes(serve: Serve, talaria: Talaria, home: Path) -> None:
    gateway = serve()
    done = talaria("uninstall", "--delete-data")
    assert done.returncode == 2
    assert "add --yes" in done.stderr
    assert is_running(gateway.pid)
    assert home.exists()


def test_without_a_home_there_is_nothing_to_delete(talaria: Talaria, tmp_path: Path) -> None:
    gone = {**env(tmp_path), "TALARIA_HOME": str(tmp_path / "none")}
    done = talaria("uninstall", "--yes", "--delete-data", env=gone)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("marked", [False, True])
def test_a_folder_with_other_things_is_not_deleted(talaria: Talaria, tmp_path: Path, marked: bool) -> None:
    (tmp_path / "notes.txt").touch()
    if marked:
        (tmp_path / "talaria.lock").touch()
    given = {**env(tmp_path), "TALARIA_HOME": str(tmp_path)}  # it is $HOME here
    done = talaria("uninstall", "--yes", "--delete-data", env=given)
    assert done.returncode == 1
    assert "was not deleted" in done.stderr
    assert (tmp_path / "notes.txt").exists()


def test_a_gateway_that_stops_names_the_processes_that_still_run(
    serve: Serve, talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    gateway = serve()
    pid = start_process(talaria, home)
    gateway.send_signal(signal.SIGTERM)
    gateway.wait(DEADLINE)
    log = (tmp_path / "serve.log").read_text()
    assert f"1 background process still running: sleep 4321. To end: kill {pid}" in log
    os.kill(pid, signal.SIGTERM)
    talaria("uninstall", "--yes", env=env(tmp_path))
    assert not is_running(pid)


@pytest.mark.parametrize(
    ("said", "is_stopped", "is_kept"), [("n\n", False, True), ("y\n\n", True, True), ("y\ny\n", True, False)]
)
def test_in_a_terminal_data_is_deleted_only_after_a_second_yes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_stopped: bool, is_kept: bool
) -> None:
    class Typed(StringIO):
        def isatty(self) -> bool:
            return True

    (home / "talaria.lock").touch()
    for name, value in {**env(tmp_path), "TALARIA_HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", Typed(said))
    assert main(["uninstall"]) == (0 if is_stopped else 130)
    assert home.exists() is is_kept


def test_looking_for_processes_does_not_touch_one_that_is_being_started(tmp_path: Path) -> None:
    starting = tmp_path / "sessions" / "s" / "processes" / "p1"
    starting.mkdir(parents=True)
    assert find_running(tmp_path) == []
    assert starting.exists()


def test_a_database_on_a_server_is_named_and_kept(talaria: Talaria, home: Path, tmp_path: Path) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[store]\nurl = "postgresql://me:secret@db.example/talaria"\n')
    done = talaria("uninstall", "--yes", env=env(tmp_path))
    assert "db.example/talaria (always kept)" in done.stdout
    assert "secret" not in done.stdout
