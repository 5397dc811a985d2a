"""The import from homes of a real hermes-agent: its gateway, its commands and its own requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clients.hermes import RealHermes
from imports.accounts import check_accounts
from imports.test_hermes import World, of_kind, rows_in
from support.gateway import in_process, real_process
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.core.ledger import Page
from talaria.imports.item import ImportKind, ImportReport, ImportState
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
        items = msgspec.json.decode(done.stdout, type=ImportReport).items
        check_accounts(hermes.home, items)
        imported = [item.kind for item in items if item.state is ImportState.IMPORTED]
        wanted = {ImportKind.JOB: 1, ImportKind.MEMORY: 1, ImportKind.PERSON: 1}
        assert {kind: imported.count(kind) for kind in wanted} == wanted and ImportKind.SESSION in imported
        settings = {"CHANNELS__TELEGRAM__API_URL": telegram.url}
        async with real_process(tmp_path, model, settings, name="talaria"):
            await ask("What is my cat called?", "You said: What is my cat called?")
    sent = json.loads(model.bodies[-1])["messages"]
    assert "My cat is Quark" in [each["content"] for each in sent]


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


def awkward() -> Iterator[dict[str, Any]]:
    """Rows that hermes-agent repairs when it sends them."""
    calls = [
        {"id": key, "type": "function", "function": {"name": "terminal", "arguments": '{"b": 1, "a": "ü"}'}}
        for key in ("c1", "c2")
    ]
    yield {"role": "user", "content": "  spaced \n"}
    yield {"role": "assistant", "content": " \n on it \n", "tool_calls": calls}
    yield {"role": "tool", "content": "  second\n\n", "tool_call_id": "c2", "tool_name": "terminal"}
    yield {"role": "tool", "content": "\tfirst", "tool_call_id": "c1", "tool_name": "terminal"}
    yield {"role": "assistant", "content": " answer \n"}
    yield {"role": "tool", "content": "stray", "tool_call_id": "c9", "tool_name": "terminal"}
    yield {"role": "user", "content": "with <memory-context>[System note: x] y</memory-context> memory"}
    yield {"role": "assistant", "content": "one"}
    yield {"role": "assistant", "content": "and another"}
    yield {"role": "user", "content": "interrupted"}
    yield {"role": "user", "content": "and again"}
    yield {"role": "assistant", "content": "fine"}
    yield {"role": "user", "content": "Review the conversation above and consider saving to memory if"}
    yield {"role": "assistant", "content": "Nothing to save"}


def context(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """What messages say. hermes-agent joins those of one role that follow each other, and has the results of
    one message in any order."""
    for role, group in groupby(map(seen, messages), key=itemgetter(0)):
        together = [*group]
        if role == "tool":
            yield from sorted(together, key=itemgetter(3))
        else:
            space = "\n" if role == "assistant" else "\n\n"
            texts = space.join(each[1] for each in together if each[1])
            yield role, texts, [call for each in together for call in each[2]]


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
    rows = [*awkward(), *conversation(count)]
    await hermes.append("20261101_100000_abcdef01", rows)
    await hermes.run("chat", "-Q", "-q", "What next?", "--resume", "20261101_100000_abcdef01")
    theirs = next(json.loads(body)["messages"] for body in model.bodies if b"What next?" in body)
    home = tmp_path / "home"
    home.mkdir()
    async with open_store(home / "talaria.db", SystemClock()) as store:
        report = await World(home, store).run(hermes.home, ImportKind.SESSION)
        (item,) = of_kind(report, ImportKind.SESSION).values()
        assert item.state is ImportState.IMPORTED and item.messages == len(rows) + 2
        stored, after = sum(item.left_out.values()), None
        while True:
            page = await store.entries(SessionId(item.target), Page(500, after=after))
            stored += rows_in(list(page.entries))
            if (after := page.next) is None:
                break
        assert stored == item.messages
        reviews = "reviews that hermes-agent asks itself for"
        assert item.left_out == {"tool results without a call": 1, reviews: 2}
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
    expected, found = [*context([*theirs[1:-1], *answered])], [*context(ours[1:-1])]
    assert len(found) == len(expected) > count
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == other, index
