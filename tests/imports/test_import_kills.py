"""`talaria import` is killed anywhere and run again, and imports a large home in bounded time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from imports.hermes_world import HermesHome, ordinary
from imports.test_hermes import cron_job
from support.ledger_rules import check_databases
from talaria.core.clock import SystemClock
from talaria.core.ledger import Page
from talaria.store.part import open_store

# Runs the command, and kills it at its n-th call of a function that imports or writes.
_KILLED = """
import os, signal, sys, threading
left = count = int(sys.argv[1])
parts = ("imports", "store", "skills", "memory", "config")
def note(frame, event, argument):
    global left
    name = frame.f_code.co_filename
    if event == "call" and any(f"/{part}/" in name for part in parts):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
from talaria.cli.main import run
sys.argv = ["talaria", *sys.argv[2:]]
threading.setprofile(note)
sys.setprofile(note)
try:
    run()
finally:
    sys.setprofile(None)
    print("calls:", count - left)
"""


def run_import(source: Path, home: Path, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        _KILLED,
        str(kill_at),
        "import",
        "hermes",
        str(source),
        "--yes",
        "--secrets",
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TALARIA_")}
    environ |= {"TALARIA_HOME": str(home), "TMPDIR": str(home.parent)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def whole_home(path: Path) -> HermesHome:
    """A home with an item of each kind."""
    home = ordinary(path)
    for number in range(5):
        home.session(f"s{number}", *(f"said {index}" for index in range(40)))
    home.write("cron/jobs.json", json.dumps([cron_job(), cron_job(id="b", name="b")]))
    home.write("memories/MEMORY.md", "one\n§\ntwo\n§\nthree")
    home.write("skills/own/SKILL.md", "---\nname: own\ndescription: Own.\n---\nDo.\n")
    home.write("pairing/telegram-approved.json", '{"77": {"user_name": "Anna"}}')
    home.write(
        "config.yaml", "timezone: Europe/Berlin\nmcp_servers: {docs: {url: 'https://docs.example/mcp'}}\n"
    )
    home.write(".env", "OPENROUTER_API_KEY=sk-or-0123456789\n")
    return home.close()


def used_home(path: Path) -> Path:
    """A home that has something to save before the import."""
    path.mkdir()
    (path / "config.toml").write_text("# mine\n")
    return path


async def state_of(home: Path) -> object:
    """Return everything that an import has brought, without times."""
    async with open_store(home / "talaria.db", SystemClock()) as store:
        sessions = (await store.sessions(Page(500))).items
        logs = {
            each.id: (
                each.revision,
                each.title,
                [entry.body for entry in (await store.entries(each.id, Page(500))).entries],
            )
            for each in sessions
        }
        current = await store.current_session(sessions[0].chat_key)
        jobs = {(job.id, job.state, job.plan.name) for job in (await store.jobs.listing(Page(500))).items}
        people = [each.person for each in (await store.pairings.listing()).paired]
    memory = [line.partition(" (")[0] for line in (home / "memory/main/MEMORY.md").read_text().splitlines()]
    files = {
        name: (home / name).read_text() for name in ("config.toml", "secrets.env", "skills/own/SKILL.md")
    }
    skills = sorted(path.name for path in (home / "skills").iterdir() if not path.name.startswith("."))
    return logs, current and current.id, jobs, people, sorted(memory), files, skills


@pytest.mark.parametrize("points", [1, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_an_import_that_is_killed_anywhere_is_completed_without_duplicates(
    tmp_path: Path, points: int
) -> None:
    source = whole_home(tmp_path / "hermes").path
    whole = used_home(tmp_path / "whole")
    done = run_import(source, whole)
    assert done.returncode == 0, done.stderr
    calls = int(done.stdout.rpartition("calls: ")[2])
    expected, killed = await state_of(whole), 0
    for point in range(points):
        home = used_home(tmp_path / f"home-{point}")
        killed += run_import(source, home, kill_at=calls * (point + 1) // (points + 1)).returncode == -9
        again = run_import(source, home)
        assert again.returncode == 0, again.stderr
        check_databases(home)
        assert await state_of(home) == expected, point
        backups = [*home.glob("before-import-*.tar.gz")]
        for path in backups:
            with tarfile.open(path) as archive:
                assert any(name.endswith("config.toml") for name in archive.getnames())
        assert backups
    assert killed == points and not list(tmp_path.glob("talaria-import-*"))


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_large_home_is_imported_in_bounded_time_and_memory(tmp_path: Path) -> None:
    """760,000 messages: one conversation of 200,000, and many small ones."""
    home = HermesHome(tmp_path / "hermes")
    home.database.execute("BEGIN")
    for number in range(561):
        key = home.session(f"s{number:04}", source="cli")
        for index in range(200_000 if number == 0 else 1000):
            home.message(key, "assistant" if index % 2 else "user", f"message {index} of {key} " * 8)
    home.database.execute("COMMIT")
    home.close()
    target = tmp_path / "home"
    target.mkdir()
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "talaria",
        "import",
        "hermes",
        str(home.path),
        "--home",
        str(target),
        "--yes",
    ]
    shown = tmp_path / "shown.json"
    with shown.open("wb") as output, subprocess.Popen([*command, "--json"], stdout=output) as process:
        _, status, usage = os.wait4(process.pid, 0)  # of this process only
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds, peak = time.monotonic() - began, usage.ru_maxrss / 1024
    assert process.returncode == 0
    items = json.loads(shown.read_text())["items"]
    count = sum(item.get("messages", 0) for item in items if item["state"] == "imported")
    print(f"{count} messages in {seconds:.0f} s, {peak:.0f} MiB")
    assert count == 760_000 and seconds <= 600 and peak <= 300
