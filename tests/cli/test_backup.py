"""`talaria backup`, `restore` and `why` as people run them, with a gateway and without."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cli.conftest import Serve, Talaria


def test_a_backup_of_a_running_gateway_is_restored_when_it_has_stopped(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path
) -> None:
    (home / ".snapshot-left-by-a-kill.db").touch()
    gateway = serve()
    turn = msgspec.json.decode(talaria("ask", "Hello", "--session", "one", "--json").stdout)
    archive = tmp_path / "a.tar.gz"
    done = talaria("backup", str(archive))
    assert done.returncode == 0, done.stderr
    assert f"talaria restore {archive}" in done.stdout
    assert not list(home.glob(".snapshot*"))

    refused = talaria("restore", str(archive))
    assert refused.returncode == 1
    assert "Stop it first" in refused.stderr and "Traceback" not in refused.stderr

    gateway.terminate()
    gateway.wait(30)
    (home / "talaria.db").unlink()
    restored = talaria("restore", str(archive))
    assert restored.returncode == 0, restored.stderr
    assert "replaced-" in restored.stdout
    told = talaria("why", turn["id"])
    assert told.returncode == 0, told.stderr
    assert "Done" in told.stdout and "Accepted" in told.stdout


def test_why_tells_the_same_with_a_gateway_and_without(talaria: Talaria, serve: Serve) -> None:
    gateway = serve()
    turn = msgspec.json.decode(talaria("ask", "Hello", "--json").stdout)
    running = talaria("why", turn["id"], "--json")
    gateway.terminate()
    gateway.wait(30)
    assert running.returncode == 0, running.stderr
    assert talaria("why", turn["id"], "--json").stdout == running.stdout
    missing = talaria("why", "turn_nothing")
    assert missing.returncode == 1
    assert missing.stderr.startswith("talaria: There is no turn turn_nothing.")


def test_there_is_nothing_to_save_in_an_empty_home(talaria: Talaria, tmp_path: Path) -> None:
    done = talaria("backup", str(tmp_path / "a.tar.gz"))
    assert done.returncode == 1
    assert "nothing to save" in done.stderr
    bad = tmp_path / "notes.txt"
    bad.write_text("notes")
    done = talaria("restore", str(bad))
    assert done.returncode == 1
    assert "no whole backup" in done.stderr and "Traceback" not in done.stderr
