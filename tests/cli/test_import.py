"""`talaria import` as people run it, with a gateway and without."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Serve, Talaria
from imports.hermes_world import ordinary


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
