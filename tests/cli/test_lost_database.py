"""A home whose database is gone while the files of its chats are there: told, and nothing is begun anew."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from cli.conftest import DEADLINE, Serve, Talaria
from talaria.store.sqlite.rescue import new_rescue, restore_command


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


def test_every_command_refuses_a_home_whose_database_waits_to_be_restored(
    talaria: Talaria, home: Path
) -> None:
    assert talaria("ask", "remember me").returncode == 0
    database = home / "talaria.db"
    rescued = new_rescue(database)
    database.rename(rescued)
    for command in ("why", "why x", "sessions list", "pair list", "token list", "backup"):
        done = talaria(*command.split())
        assert done.returncode == 1, command
        assert f"The database {database} is missing." in done.stderr
        assert f"`{restore_command(rescued, database)}`" in done.stderr
    subprocess.run(["sh", "-c", restore_command(rescued, database)], check=True)
    assert "remember me" in talaria("why").stdout


def test_the_doctors_command_restores_a_database_that_was_moved_under_a_gateway(
    talaria: Talaria, home: Path, serve: Serve, environ: dict[str, str], tmp_path: Path
) -> None:
    gateway = serve()
    assert talaria("ask", "remember me").returncode == 0
    for path in home.glob("talaria.db*"):
        path.unlink()
    while True:  # until the content is saved; the test's own limit ends it
        looked = msgspec.json.decode(talaria("doctor", "--json").stdout)
        store: dict[str, str] = next((each for each in looked["findings"] if each["name"] == "store"), {})
        if "saved in" in store.get("text", ""):
            break
    assert store["fix"].startswith("This stops the gateway and restores it")
    assert "continues" not in store["fix"] and "This restores it" not in store["text"]
    subprocess.run(["bash", "-c", store["command"]], check=True, env=environ, timeout=DEADLINE)
    gateway.wait(DEADLINE)
    assert "remember me" in talaria("why").stdout
