"""A home whose database is gone while the files of its chats are there: told, and nothing is begun anew."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import Talaria


def test_a_lost_database_is_told_with_the_command_that_restores(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    written = talaria("ask", '[[call write_file {"path": "a.txt", "content": "hi"}]] write')
    assert written.returncode == 0, written.stderr
    assert talaria("backup", str(tmp_path / "a.tar.gz")).returncode == 0
    for path in home.glob("talaria.db*"):
        path.unlink()
    for command in (["serve", "--port", "0"], ["ask", "hi"], ["why"]):
        done = talaria(*command)
        assert done.returncode == 1
        assert f"The database {home / 'talaria.db'} is gone, but {home / 'files'} holds files of 1 chat." in (
            done.stderr
        )
        assert "`talaria restore FILE` brings a backup back" in done.stderr
        assert not (home / "talaria.db").exists()
    looked = talaria("doctor")
    assert looked.returncode == 1
    assert "is gone, but" in looked.stdout and "restore" in looked.stdout
    assert talaria("restore", str(tmp_path / "a.tar.gz")).returncode == 0
    assert "write" in talaria("why").stdout


def test_without_its_files_a_home_begins_anew(talaria: Talaria, home: Path) -> None:
    assert talaria("ask", '[[call write_file {"path": "a.txt", "content": "hi"}]] write').returncode == 0
    (home / "talaria.db").unlink()
    (home / "files").rename(home / "files-before")
    assert talaria("ask", "hi").stdout == "You said: hi\n"
