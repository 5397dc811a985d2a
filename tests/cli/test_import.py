"""`talaria import` as people run it, with a gateway and without."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from pathlib import Path

from cli.conftest import Serve, Talaria
from cli.terminal import Terminal
from imports import openclaw_world
from imports.hermes_world import ordinary
from support.programs import needs


def test_a_dry_run_writes_nothing_and_an_import_saves_the_home_first(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path
) -> None:
    source = ordinary(tmp_path / "hermes").close().path
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    shown = talaria("import", "hermes", str(source), "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    planned = json.loads(shown.stdout)["items"]
    assert {item["state"] for item in planned} == {"planned", "skipped"}
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before

    gateway = serve()
    assert talaria("ask", "Hello").returncode == 0
    refused = talaria("import", "hermes", str(source), "--yes")
    assert refused.returncode == 1 and "Stop it first" in refused.stderr
    gateway.terminate()
    gateway.wait(30)

    unasked = talaria("import", "hermes", str(source))
    assert unasked.returncode == 2 and "--yes" in unasked.stderr
    done = talaria("import", "hermes", str(source), "--yes", "--only", "session", "--json")
    assert done.returncode == 0, done.stderr
    items = json.loads(done.stdout)["items"]
    assert [item["id"] for item in items] == [item["id"] for item in planned if item["kind"] == "session"]
    assert "imported" in {item["state"] for item in items}
    assert len(list(home.glob("before-import-*.tar.gz"))) == 1
    again = talaria("import", "hermes", str(source), "--yes", "--only", "session")
    assert again.returncode == 0 and "PLANNED" not in again.stdout
    assert len(list(home.glob("before-import-*.tar.gz"))) == 1
    listed = talaria("sessions", "list")
    assert "Tea" in listed.stdout


def test_a_home_without_a_database_is_saved_too(talaria: Talaria, home: Path, tmp_path: Path) -> None:
    """An import changes its settings, so they have to be in the backup."""
    source = ordinary(tmp_path / "hermes")
    source.write("config.yaml", "timezone: Europe/Berlin\n")
    source.write(".env", "OPENROUTER_API_KEY=sk-or-0123456789\n")
    (home / "config.toml").write_text("# mine\n[agent]\nname = 'main'\n")
    options = (str(source.close().path), "--only", "setting", "--only", "secret", "--yes")
    kept = talaria("import", "hermes", *options)
    assert kept.returncode == 0 and "--secrets" in kept.stdout, kept.stderr
    (saved,) = home.glob("before-import-*.tar.gz")
    with tarfile.open(saved) as archive:
        (name,) = [each for each in archive.getnames() if each.endswith("config.toml")]
        member = archive.extractfile(name)
        assert member is not None and "# mine" in (text := member.read().decode()) and "Berlin" not in text
    assert not (home / "secrets.env").exists()
    done = talaria("import", "hermes", *options, "--secrets")
    assert done.returncode == 0 and "sk-or" not in done.stdout + done.stderr
    assert "sk-or-0123456789" in (home / "secrets.env").read_text()


@needs("tmux")
def test_in_a_terminal_secrets_are_asked_about_apart(terminal: Terminal, home: Path, tmp_path: Path) -> None:
    source = ordinary(tmp_path / "hermes")
    source.write(".env", "OPENROUTER_API_KEY=sk-or-0123456789\n")
    command = (
        sys.executable,
        "-m",
        "talaria",
        "import",
        "hermes",
        str(source.close().path),
        "--home",
        str(home),
    )
    terminal.start(*command, "--only", "secret", "--only", "session")
    terminal.until("Copy these secrets", "OPENROUTER_API_KEY", "[y/N]")
    terminal.send("y")
    terminal.until("Import 5 items", "N]:")  # a long path wraps the line
    terminal.send("y")
    screen = terminal.until("IMPORTED", "LEFT WITH 0")
    assert re.search(r"^ +IMPORTED", screen, re.MULTILINE), "the progress is gone"
    assert "sk-or-0123456789" in (home / "secrets.env").read_text()


def test_openclaw_is_imported_by_the_same_command(talaria: Talaria, tmp_path: Path) -> None:
    source = openclaw_world.ordinary(tmp_path / "openclaw").close().path
    done = talaria("import", "openclaw", str(source), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    states = {item["id"]: item["state"] for item in json.loads(done.stdout)["items"]}
    assert states["session:main:dm"] == "imported" and states["session:main:child"] == "skipped"
    wrong = talaria("import", "openclaw", str(tmp_path))
    assert wrong.returncode == 1 and "is not a home of openclaw" in wrong.stderr
