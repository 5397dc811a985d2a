"""The import from a state folder that a real openclaw has made."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from clients.openclaw import RealOpenclaw
from imports.test_hermes import World, of_kind, said
from talaria.core.clock import SystemClock
from talaria.core.entries import Entry
from talaria.core.ids import ChatKey, JobId, SessionId
from talaria.core.ledger import Page
from talaria.core.messages import is_untrusted
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.openclaw import open_openclaw
from talaria.store.in_memory import MemoryStore
from talaria.testing.model_server import ModelServer
from talaria.testing.telegram_server import TelegramServer

ADA = 7
WAIT = 90.0


def is_tainted(entries: Sequence[Entry]) -> bool:
    return any(entry.message is not None and is_untrusted(entry.message) for entry in entries)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_everything_of_a_real_openclaw_is_accounted_for(tmp_path: Path) -> None:
    if (command := RealOpenclaw.installed()) is None:
        pytest.skip("openclaw is not installed: ./dev clients --install openclaw")
    async with ModelServer() as model, TelegramServer() as telegram:
        address = model.base_url.removesuffix("/v1")
        openclaw = RealOpenclaw(tmp_path / ".openclaw", command, address, telegram.url, telegram.token, ADA)
        for text in ("My cat is Quark", "What is it called?"):
            await openclaw.run("agent", "--local", "--session-id", "first", "--message", text)
        async with openclaw.gateway() as reach:
            assert await telegram.until(lambda: telegram.polls > 0, WAIT)
            ada = telegram.person(ADA)
            ada.says("Hello from Telegram")
            assert await telegram.until(lambda: bool(telegram.platform.private(ada).replies), WAIT)
            schedule = (
                "--cron",
                "0 9 * * 1-5",
                "--tz",
                "Europe/Berlin",
                "--session",
                "isolated",
                "--no-deliver",
            )
            await openclaw.run(
                "cron", "add", "--name", "news", "--message", "Tell the news", *schedule, *reach
            )
        (openclaw.home / "workspace/MEMORY.md").write_text("- Ada likes tea\n")
        skill = openclaw.home / "workspace/skills/tea/SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text("---\nname: tea\ndescription: Tea.\n---\nBoil water.\n")
    (tmp_path / "home").mkdir()
    async with MemoryStore(SystemClock()) as store:
        report = await World(tmp_path / "home", store, open_openclaw).run(openclaw.home)
        (session,) = (
            each for key, each in of_kind(report, ImportKind.SESSION).items() if key == "main:first"
        )
        entries = (await store.entries(SessionId(session.target), Page(100))).entries
        texts = [said(entry.body) for entry in entries]
        assert texts[0] == "My cat is Quark" and "What is it called?" in texts and len(texts) - 1 == 4
        current = await store.current_session(ChatKey(f"agent:main:telegram:dm:{ADA}"))
        assert current is not None
        chat = (await store.entries(current.id, Page(10))).entries
        assert said(chat[0].body) == "Hello from Telegram" and not is_tainted(chat)
        (job,) = (each for each in of_kind(report, ImportKind.JOB).values() if each.title == "news")
        found = await store.jobs.find(JobId(job.target))
        assert found is not None and found.plan.zone == "Europe/Berlin" and found.plan.text == "Tell the news"
    check_accounts(openclaw.home, report.items)


def check_accounts(home: Path, items: tuple[ImportItem, ...]) -> None:
    """Count what the folder has without the importer, and compare it with the report."""
    with closing(sqlite3.connect(home / "agents/main/agent/openclaw-agent.sqlite")) as database:
        (events,) = database.execute("SELECT count(*) FROM transcript_events").fetchone()
    assert sum(item.messages for item in items if item.kind is ImportKind.SESSION) == events
    with closing(sqlite3.connect(home / "state/openclaw.sqlite")) as database:
        jobs = [json.loads(text)["id"] for (text,) in database.execute("SELECT job_json FROM cron_jobs")]
    assert {f"job:{job}" for job in jobs} == {item.id for item in items if item.kind is ImportKind.JOB}
    assert [item.title for item in items if item.kind is ImportKind.MEMORY] == ["Ada likes tea"]
    assert [item.title for item in items if item.kind is ImportKind.SKILL] == ["tea"]
    assert all(item.state is ImportState.IMPORTED or item.reason for item in items)
