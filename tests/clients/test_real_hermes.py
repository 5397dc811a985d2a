"""The import from homes of a real hermes-agent: its gateway, its commands and its own requests."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clients.hermes import RealHermes
from imports.test_hermes import World, of_kind, rows_in
from support.gateway import in_process, real_process
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.core.ledger import Page
from talaria.imports.item import ImportKind, ImportState
from talaria.store.part import open_store
from talaria.testing.model_server import ModelServer
from talaria.testing.telegram_server import TelegramServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ADA = 7
WAIT = 60.0


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as model:
        yield model


def real_hermes(folder: Path, model: ModelServer, telegram: TelegramServer | None = None) -> RealHermes:
    if (python := RealHermes.installed()) is None:
        pytest.skip("hermes-agent is not installed: ./dev clients --install hermes")
    bot = (telegram.url, telegram.token) if telegram is not None else ()
    return RealHermes(folder / ".hermes", python, model.base_url.removesuffix("/v1"), *bot)


async def test_after_the_import_the_next_message_on_telegram_continues(
    tmp_path: Path, model: ModelServer
) -> None:
    """As a new user would try it. Every message, job, fact and skill is accounted for."""
    async with TelegramServer() as telegram:
        hermes = real_hermes(tmp_path, model, telegram)
        hermes.write(".env", f"TELEGRAM_ALLOWED_USERS={ADA}\nTELEGRAM_BOT_TOKEN={telegram.token}\n")
        hermes.write(
            "skills/tea/SKILL.md", "---\nname: tea\ndescription: How to make tea.\n---\nBoil water.\n"
        )
        ada = telegram.person(ADA)
        chat = telegram.platform.private(ada)

        async def ask(text: str, answer: str) -> None:
            before = len(chat.replies)
            ada.says(text)
            assert await telegram.until(
                lambda: any(answer in each for each in chat.replies[before:]), WAIT
            ), text

        async with hermes.gateway():
            assert await telegram.until(lambda: telegram.polls > 0, WAIT)
            await ask("Hello, I am Ada", "You said")
            await ask("/new", "")
            remember = json.dumps({"action": "add", "target": "memory", "content": "Ada likes tea"})
            await ask(f"[[call memory {remember}]] keep it", "success")
            await ask("My cat is Quark", "You said: My cat is Quark")
            assert await telegram.until(lambda: telegram.polls > 0, WAIT)
        await hermes.run(
            "cron", "create", "0 9 * * 1-5", "Tell the news", "--name", "news", "--deliver", f"telegram:{ADA}"
        )
        home = tmp_path / "talaria"
        home.mkdir(mode=0o700)
        command = [sys.executable, "-m", "talaria", "import", "hermes", str(hermes.home), "--home", str(home)]
        done = subprocess.run(
            [*command, "--yes", "--secrets", "--json"], capture_output=True, text=True, check=True
        )
        items = json.loads(done.stdout)["items"]
        check_accounts(hermes.home, items)
        settings = {"CHANNELS__TELEGRAM__API_URL": telegram.url}
        async with real_process(tmp_path, model, settings, name="talaria"):
            await ask("What is my cat called?", "You said: What is my cat called?")
    sent = json.loads(model.bodies[-1])["messages"]
    assert "My cat is Quark" in [each["content"] for each in sent]


def check_accounts(home: Path, items: list[dict[str, Any]]) -> None:
    """Count what the home has without the importer, and compare it with the report."""
    with closing(sqlite3.connect(f"file:{home}/state.db?mode=ro", uri=True)) as database:
        (stored,) = database.execute("SELECT count(*) FROM messages").fetchone()
    sessions = [item for item in items if item["kind"] == "session"]
    assert stored > 5 and sum(item.get("messages", 0) for item in sessions) == stored
    jobs = json.loads((home / "cron/jobs.json").read_text())["jobs"]
    assert {f"job:{job['id']}" for job in jobs} == {item["id"] for item in items if item["kind"] == "job"}
    facts = (home / "memories/MEMORY.md").read_text().split("\n§\n")
    assert facts == [item["title"] for item in items if item["kind"] == "memory"]
    skills = {path.parent.relative_to(home / "skills").as_posix() for path in home.glob("skills/**/SKILL.md")}
    assert skills == {item["id"].removeprefix("skill:") for item in items if item["kind"] == "skill"}
    assert all(item["state"] == "imported" or item.get("reason") for item in items)
    wanted = {"job": 1, "memory": 1, "person": 1}
    imported = [item["kind"] for item in items if item["state"] == "imported"]
    assert {kind: imported.count(kind) for kind in wanted} == wanted and imported.count("session") >= 1


def conversation(count: int) -> Iterator[dict[str, Any]]:
    """Rows as hermes-agent's own functions take them: questions, calls with results, answers."""
    for index in range(count // 4):
        yield {"role": "user", "content": f"Question {index}: “ü” \n\twhat?"}
        call: dict[str, Any] = {"id": f"call_{index}", "type": "function"}
        call |= {"function": {"name": "terminal", "arguments": json.dumps({"command": f"echo {index}"})}}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        result = json.dumps({"output": str(index), "exit_code": 0})
        yield {"role": "tool", "content": result, "tool_call_id": f"call_{index}", "tool_name": "terminal"}
        yield {"role": "assistant", "content": f"  Answer {index}.  "}


def seen(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a message says, without how it is written: hermes-agent sorts the keys of arguments."""
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return message["role"], message.get("content") or "", calls, message.get("tool_call_id")


@pytest.mark.parametrize("count", [20_000])
async def test_the_model_sees_what_hermes_would_send(tmp_path: Path, model: ModelServer, count: int) -> None:
    hermes = real_hermes(tmp_path, model)
    await hermes.append("20261101_100000_abcdef01", conversation(count))
    await hermes.run("chat", "-Q", "-q", "What next?", "--resume", "20261101_100000_abcdef01")
    theirs = next(json.loads(body)["messages"] for body in model.bodies if b"What next?" in body)
    home = tmp_path / "home"
    home.mkdir()
    async with open_store(home / "talaria.db", SystemClock()) as store:
        report = await World(home, store).run(hermes.home, ImportKind.SESSION)
        (item,) = of_kind(report, ImportKind.SESSION).values()
        assert item.state is ImportState.IMPORTED and item.messages == count + 2
        stored, after = 0, None
        while True:
            page = await store.entries(SessionId(item.target), Page(500, after=after))
            stored += rows_in(list(page.entries))
            if (after := page.next) is None:
                break
        assert stored == item.messages and not item.left_out
    tables = {
        "context": {"max_tokens": 50_000_000},
        "models": {"scripted/scripted": {"context": 100_000_000}},
        "model": {"provider": "scripted", "name": "scripted"},
    }
    async with in_process(home, model, tables=tables) as api:
        turn = await api.say("hermes", "And then?")
        assert turn["reply"] == "You said: And then?"
    ours = json.loads(model.bodies[-1])["messages"]
    answered = [
        {"role": "user", "content": "What next?"},
        {"role": "assistant", "content": "You said: What next?"},
    ]
    expected = [*map(seen, theirs[1:-1]), *map(seen, answered)]
    found = [*map(seen, ours[1:-1])]
    assert len(found) == len(expected) == count + 2
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == other, index
