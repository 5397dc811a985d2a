"""What a home of hermes-agent holds, counted without the importer, and the comparison with its report."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from talaria.imports.item import ImportItem, ImportKind, ImportState


def check_accounts(home: Path, items: Iterable[ImportItem]) -> None:
    """Every message, job, fact and skill is in the report once. What is not imported has a reason."""
    found = {kind: [item for item in items if item.kind is kind] for kind in ImportKind}
    assert all(item.state is ImportState.IMPORTED or item.reason for each in found.values() for item in each)
    names = {item.title for item in found[ImportKind.FILE]}
    with closing(sqlite3.connect(home / "state.db")) as database:
        (messages,) = database.execute("SELECT count(*) FROM messages").fetchone()
    assert sum(item.messages for item in found[ImportKind.SESSION]) == messages
    jobs = _jobs(home / "cron/jobs.json")
    assert jobs is not None or "cron/jobs.json" in names
    assert sorted(item.id for item in found[ImportKind.JOB]) == sorted(f"job:{each}" for each in jobs or ())
    assert len(found[ImportKind.MEMORY]) == sum(
        _facts(home / "memories" / page) for page in ("MEMORY.md", "USER.md")
    )
    marks = [
        path for path in (home / "skills").rglob("*") if path.name.upper() == "SKILL.MD" or path.is_symlink()
    ]
    folders = {path if path.is_dir() else path.parent for path in marks}
    own = [each for each in folders if not folders.intersection(each.parents)]
    assert sorted(item.id for item in found[ImportKind.SKILL]) == sorted(
        f"skill:{folder.relative_to(home / 'skills').as_posix()}" for folder in own
    )


def _jobs(path: Path) -> list[str] | None:
    """The ids of the jobs; None for a file that is not a list of jobs."""
    if not path.exists():
        return []
    content = json.loads(path.read_text("utf-8-sig"))
    jobs = content["jobs"] if isinstance(content, dict) else content
    if not isinstance(jobs, list):
        return None
    return [job["id"] if isinstance(job, dict) else f"number-{index}" for index, job in enumerate(jobs)]


def _facts(path: Path) -> int:
    """How many different entries a page has."""
    if not path.exists() or path.is_symlink():
        return 0
    entries = path.read_bytes().decode(errors="replace").split("\n§\n")
    return len({entry.strip() for entry in entries if entry.strip()})
