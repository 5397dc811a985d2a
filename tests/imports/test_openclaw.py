"""The import from openclaw: every event, job, memory and skill is accounted for."""

from __future__ import annotations

import json
import sqlite3
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from imports.openclaw_world import NOON, OpenclawHome, ordinary, user
from imports.test_hermes import World, of_kind, rows_in, said, tree
from talaria.config.home import read_secrets_file
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatKey, JobId, SessionId
from talaria.core.jobs import JobState
from talaria.core.ledger import Page
from talaria.core.messages import Image, ToolOutcome, ToolResults, is_untrusted
from talaria.core.shown import ShownLog
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.openclaw import open_openclaw
from talaria.store.in_memory import MemoryStore


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "home").mkdir()
    async with MemoryStore(SystemClock()) as store:
        yield World(tmp_path / "home", store, open_openclaw)


async def imported(world: World, source: OpenclawHome) -> dict[str, ImportItem]:
    return of_kind(await world.run(source.close().path, ImportKind.SESSION), ImportKind.SESSION)


async def test_every_event_is_in_a_log_or_listed_with_a_reason(tmp_path: Path, world: World) -> None:
    source = ordinary(tmp_path / "openclaw").close()
    before = tree(source.path)
    items = await imported(world, source)
    found = 0
    for key, item in items.items():
        if item.state is ImportState.IMPORTED:
            page = await world.store.entries(SessionId(item.target), Page(500))
            assert rows_in(list(page.entries)) + sum(item.left_out.values()) == item.messages, key
        else:
            assert item.state is ImportState.SKIPPED and item.reason
        found += item.messages
    stored = 0
    for path in source.path.glob("agents/*/agent/*.sqlite"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            stored += database.execute("SELECT count(*) FROM transcript_events").fetchone()[0]
    assert found == stored
    assert {key for key, item in items.items() if item.state is ImportState.SKIPPED} == {
        *("main:child", "main:cold", "main:nowhere"),
    }
    assert items["main:odd"].left_out == {"damaged, or larger than 8 MB": 2}
    assert items["main:topic"].left_out == {"on a branch that was left": 1}
    assert all(path.exists() for path in map(Path, before))
    assert (await world.run(source.path, ImportKind.SESSION)).planned == 0


async def test_the_model_sees_what_follows_the_reset_and_the_compaction(tmp_path: Path, world: World) -> None:
    items = await imported(world, ordinary(tmp_path / "openclaw"))
    session = SessionId(items["main:dm"].target)
    log = ShownLog(await world.store.shown_log(session))
    summary, *seen = [said(each.message) for each in log.messages()]
    assert summary.endswith("They spoke of tea.") and log.has_untrusted()
    assert seen == ["kept question", "kept answer", "a packed message"]
    entries = [entry.body for entry in (await world.store.entries(session, Page(50))).entries]
    assert [said(body) for body in entries][:4] == [
        "before the reset",
        "forgotten",
        "old question",
        "old answer",
    ]
    (results,) = [body for body in entries if isinstance(body, ToolResults)]
    assert results.results[0].outcome is ToolOutcome.ERROR
    assert Image("data:image/png;base64,AA==") in results.results[0].parts


async def test_chats_continue_and_the_shared_session_is_the_owners_only(tmp_path: Path, world: World) -> None:
    items = await imported(world, ordinary(tmp_path / "openclaw"))
    for chat, key in (("dm:7", "main:dm"), ("group:-5:3", "main:topic")):
        current = await world.store.current_session(ChatKey(f"agent:main:telegram:{chat}"))
        assert current is not None and current.id == items[key].target
    plain = ChatKey("agent:main:http:api:openclaw")
    for key in ("main:shared", "work:other", "main:odd"):
        session = await world.store.session(SessionId(items[key].target))
        assert session is not None and session.chat_key == plain and items[key].note
    current = await world.store.current_session(plain)
    assert current is not None and current.id == items["main:odd"].target
    page = await world.store.entries(SessionId(items["main:shared"].target), Page(50))
    said_by = [entry.message for entry in page.entries if entry.message is not None]
    assert [is_untrusted(message) for message in said_by] == [False, True, True]
    page = await world.store.entries(SessionId(items["work:other"].target), Page(50))
    alone = [entry.message for entry in page.entries if entry.message is not None]
    assert not any(map(is_untrusted, alone)), "one person wrote all of it"


async def test_jobs_memory_skills_and_people(tmp_path: Path, world: World) -> None:
    home = OpenclawHome(tmp_path / "openclaw")
    turn = {"payload": {"kind": "agentTurn", "message": "Tell the news", "model": "x"}, "createdAtMs": NOON}
    to = {"mode": "announce", "channel": "telegram", "to": "-5", "threadId": "3"}
    home.job(
        "cron", **turn, schedule={"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Berlin"}, delivery=to
    )
    home.job(
        "every", **turn, enabled=False, schedule={"kind": "every", "everyMs": 3_600_000, "anchorMs": NOON}
    )
    home.job(
        "at",
        **turn,
        schedule={"kind": "at", "at": "2028-01-01T09:00:00"},
        delivery={"mode": "announce", "channel": "last"},
    )
    home.job(
        "script", payload={"kind": "script", "script": "x"}, schedule={"kind": "every", "everyMs": 3_600_000}
    )
    home.job("exit", **turn, schedule={"kind": "on-exit", "command": "x"})
    for entry in ("7", "tg:8", "@ada", "*"):
        home.state.execute(
            "INSERT INTO channel_pairing_allow_entries VALUES ('telegram', 'default', ?)", (entry,)
        )
    home.write("openclaw.json", "{channels: {slack: {allowFrom: ['U012AB']}, signal: {allowFrom: ['+49']}}}")
    home.write("workspace/MEMORY.md", "# Memory\n\n- Ada likes tea\nThe cat is Quark.\n")
    home.write(
        "workspace/USER.md",
        "# U\nWrite so:\n- Begin each\n## Directives\nIf so\n- Prefer short\n- Prefer ...\n## Related\n- x\n",
    )
    home.write("workspace/memory/2026-11-01.md", "a day")
    home.write("skills/own/SKILL.md", "---\nname: own\ndescription: Own.\n---\nDo.\n")
    home.write("workspace/skills/more/SKILL.md", "---\nname: more\ndescription: More.\n---\nDo.\n")
    (home.path / "workspace/skills/away").symlink_to("/etc")
    report = await world.run(home.close().path)
    jobs = of_kind(report, ImportKind.JOB)
    assert {key: item.state.value for key, item in jobs.items()} == {
        **dict.fromkeys(("cron", "every", "at"), "imported"), **dict.fromkeys(("script", "exit"), "skipped")
    }  # fmt: skip
    found = await world.store.jobs.find(JobId(jobs["cron"].target))
    assert found is not None and found.state is JobState.PAUSED and found.plan.zone == "Europe/Berlin"
    assert found.plan.to == "agent:main:telegram:group:-5:3" and "model" in jobs["cron"].note
    assert "last" in jobs["at"].note and "disabled in openclaw too" in jobs["every"].note
    memory = [item.title for item in report.items if item.kind is ImportKind.MEMORY]
    assert memory == ["Ada likes tea", "The cat is Quark.", "Prefer short"]
    assert "file:workspace/memory/2026-11-01.md" in {item.id for item in report.items}
    skills = of_kind(report, ImportKind.SKILL)
    assert {key: item.state.value for key, item in skills.items()} == {
        "own": "imported", "more": "imported", "away": "skipped"
    }  # fmt: skip
    paired = {
        (each.person.channel, each.person.user_id) for each in (await world.store.pairings.listing()).paired
    }
    assert paired == {("telegram", "7"), ("telegram", "8"), ("slack", "U012AB")}
    left = {
        key for key, item in of_kind(report, ImportKind.PERSON).items() if item.state is ImportState.SKIPPED
    }
    assert left == {"telegram:@ada", "telegram:*", "signal:+49"}


async def test_the_configuration_is_json5_and_its_secrets_need_consent(tmp_path: Path, world: World) -> None:
    home = OpenclawHome(tmp_path / "openclaw")
    home.write(
        "openclaw.json",
        """{
  // the model
  agents: {defaults: {model: {primary: 'mine/big', fallbacks: ["anthropic/claude", 'odd/x']},
    userTimezone: "Europe/Berlin"}},
  models: {providers: {
    mine: {baseUrl: "http://127.0.0.1:9/v1", api: "openai-completions", apiKey: "sk-mine-0123456789",},
    odd: {baseUrl: "http://127.0.0.1:9", api: "ollama"}}}, /* servers */
  mcp: {servers: {docs: {url: "https://docs.example/mcp",
    headers: {Authorization: "Bearer tok-0123456789abc"}}}},
  channels: {telegram: {botToken: "${TELEGRAM}"}, discord: {token: {source: "env", id: "X"}}},
  gateway: {auth: {token: "secret-of-the-gateway"}}, "$include": "more.json",
}""",
    )
    home.write(".env", "TELEGRAM=12:abc\n")
    key = {"type": "api_key", "provider": "anthropic", "key": "sk-ant-0123456789"}
    login = {"type": "oauth", "provider": "openai", "refresh": "r-0123456789"}
    store = {"profiles": {"anthropic:a": key, "openai:b": login}}
    home.agents["main"].execute("INSERT INTO auth_profile_store VALUES ('primary', ?)", (json.dumps(store),))
    kinds = (ImportKind.SETTING, ImportKind.SERVER, ImportKind.SECRET)
    report = await world.run(home.close().path, *kinds)
    states = {item.id: item.state.value for item in report.items}
    for name in ("channels.discord.token", "gateway", "$include", "model odd/x"):
        assert states[f"setting:{name}"] == "skipped"
    config = tomllib.loads((world.home / "config.toml").read_text())
    assert config["model"]["name"] == "big" and config["model"]["fallback"] == [
        {"provider": "anthropic", "name": "claude"}
    ]
    assert config["agent"]["timezone"] == "Europe/Berlin" and "docs" in config["mcp"]["servers"]
    told = "".join(path.read_text() for path in world.home.rglob("*") if path.is_file()) + str(report)
    secrets = ("sk-mine", "sk-ant", "12:abc", "tok-0123", "secret-of", "r-0123")
    assert not any(each in told for each in secrets)
    await world.run(home.path, *kinds, with_secrets=True)
    found = read_secrets_file(world.home)
    assert found["MINE_API_KEY"] == "sk-mine-0123456789" and found["ANTHROPIC_API_KEY"] == "sk-ant-0123456789"
    assert found["TELEGRAM_BOT_TOKEN"] == "12:abc" and "r-0123456789" not in found.values()


@pytest.mark.parametrize(
    "config",
    [
        '"' + '\\"' * 1_000_000 + "\\",
        "/*" * 1_000_000,
        "[" * 1_000_000,
        '{agents: {defaults: {workspace: "~nobody/\\u0000"}}}',
    ],
)
async def test_a_hostile_configuration_does_not_stop_the_import(
    tmp_path: Path, world: World, config: str
) -> None:
    home = OpenclawHome(tmp_path / "openclaw")
    home.session("s", "agent:main:main")
    home.events("s", user("hello"))
    home.write("openclaw.json", config)
    report = await world.run(home.close().path)
    states = {item.id: item.state for item in report.items}
    assert states["session:main:s"] is ImportState.IMPORTED
    assert ("workspace" in config) is ("file:openclaw.json" not in states)


async def test_values_of_any_kind_do_not_stop_the_import(tmp_path: Path, world: World) -> None:
    jobs: list[dict[str, Any]] = [
        {
            "payload": {"kind": "agentTurn", "message": "x"},
            "schedule": {"kind": "at", "at": "0001-01-01T00:00+14:00"},
        },
        {"payload": {"kind": "agentTurn", "message": "x"}, "schedule": {"kind": "every", "everyMs": 10**30}},
        {
            "payload": {"kind": "agentTurn", "message": "x"},
            "schedule": {"kind": "every", "everyMs": 3_600_000, "anchorMs": 10**400},
        },
    ]
    for number, workspace in enumerate(("~nobody/x", "x" * 5000, "a\0b")):
        home = OpenclawHome(tmp_path / f"openclaw-{number}")
        for index, job in enumerate(jobs):
            home.job(f"{number}-{index}", **job)
        home.session("s", "agent:main:main")
        home.events("s", user("hello", timestamp=10**400))
        home.write("openclaw.json", json.dumps({"agents": {"defaults": {"workspace": workspace}}}))
        report = await world.run(home.close().path)
        assert all(item.state is ImportState.IMPORTED or item.reason for item in report.items)
        assert len(of_kind(report, ImportKind.JOB)) == len(jobs)


async def test_an_older_openclaw_is_named_with_what_to_do(tmp_path: Path, world: World) -> None:
    source = tmp_path / "openclaw"
    for name in ("agents/main/sessions/sessions.json", "cron/jobs.json"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}")
    report = await world.run(source)
    reasons = {item.id: item.reason for item in report.items}
    assert set(reasons) == {"file:agents/main/sessions", "file:cron/jobs.json"}
    assert all("Update openclaw" in reason for reason in reasons.values())


async def test_without_the_extra_a_compressed_session_waits_for_it(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ordinary(tmp_path / "openclaw")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    items = await imported(world, source)
    assert items["main:dm"].state is ImportState.SKIPPED and "extra openclaw" in items["main:dm"].reason
    assert items["main:topic"].state is ImportState.IMPORTED
    monkeypatch.undo()
    again = of_kind(await world.run(source.path, ImportKind.SESSION), ImportKind.SESSION)
    assert again["main:dm"].state is ImportState.IMPORTED
