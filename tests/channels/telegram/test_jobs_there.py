"""Jobs over Telegram, in a whole gateway: made, shown, run once over a restart, paused and removed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from channels.telegram.test_gateway import TOKEN, call, gateway
from talaria.channels.http.server import HttpServer
from talaria.core.jobs import At, EditJob, Job, JobState
from talaria.core.ledger import Page
from talaria.gateway import Gateway
from talaria.testing.model_server import ModelServer
from talaria.testing.telegram_platform import PlatformChat, ShownMessage, TelegramUser
from talaria.testing.telegram_server import TelegramServer

WEEKDAYS = "every weekday at 9 [[usage 1000 0 10 0]][[reply two files are new]]"


class Trial:
    """Ada in her chat with a gateway."""

    def __init__(self, opened: Gateway, http: HttpServer, server: TelegramServer, ada: TelegramUser) -> None:
        self.gateway = opened
        self.http = http
        self.server = server
        self.ada = ada
        self.chat: PlatformChat = server.platform.private(ada)

    async def reply(self, part: str, after: int = 0) -> ShownMessage:
        """The last message of the bot, once it has this part and so many came before it."""

        def is_there() -> bool:
            return len(self.chat.replies) > after and part in self.chat.replies[-1]

        await self.server.until(is_there)
        return [shown for shown in self.chat.messages.values() if shown.by_bot][-1]

    async def say(self, text: str, part: str) -> str:
        """Say something, and return the answer that has this part."""
        before = len(self.chat.replies)
        self.ada.says(text)
        return (await self.reply(part, before)).text

    async def job(self) -> Job:
        (job,) = (await self.gateway.store.jobs.listing(Page())).items
        return job

    async def let_it_come(self) -> None:
        """Let the next instant of the only job be now."""
        job, then = await self.job(), self.gateway.clock.now() - 1
        plan = replace(job.plan, schedule=At(then)) if isinstance(job.plan.schedule, At) else job.plan
        await self.gateway.store.jobs.edit(EditJob(job.id, job.version, plan, JobState.ACTIVE, then))


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as model:
        yield model


@asynccontextmanager
async def trial(home: Path, model: ModelServer, server: TelegramServer) -> AsyncIterator[Trial]:
    telegram = (
        f'token_env = "BOT"\nallowed = [7]\napi_url = "{server.url}"\n'
        '[prices."scripted/*"]\ninput = 10\noutput = 10\n[agent]\ntimezone = "Europe/Berlin"'
    )
    async with gateway(home, model, telegram, {"BOT": server.token}) as (opened, http):
        yield Trial(opened, http, server, server.person(7))


async def test_a_job_in_words_is_shown_saved_and_arrives_once_over_a_restart(
    tmp_path: Path, model: ModelServer, server: TelegramServer
) -> None:
    async with trial(tmp_path, model, server) as here:
        await here.say("/jobs", "no jobs yet")
        shown = await here.say(f"/jobs add {WEEKDAYS}", "Nothing is saved yet")
        assert shown.count("09:00 CET") + shown.count("09:00 CEST") == 3
        await here.say("/jobs", "no jobs yet")
        await here.say(f"/jobs add {WEEKDAYS}", "Nothing is saved yet")
        here.ada.presses(await here.reply("Nothing is saved yet"), "Save")
        await here.reply("Saved.")
        assert "next" in await here.say("/jobs", "cron 0 9 * * 1-5")
        job = await here.job()
        await here.say(f"/jobs pause {job.id}", "Paused")
        await here.say(f"/jobs resume {job.id}", "next")
    async with trial(tmp_path, model, server) as here:
        await here.let_it_come()
        told = await here.reply("two files are new")
        assert "(job [[usage" in told.text and "$0.01" in told.text
        await here.say(f"/jobs show {job.id}", "done")
        assert sum("two files are new\n" in text for text in here.chat.replies) == 1
    async with trial(tmp_path, model, server) as here:
        await here.say(f"/jobs remove {job.id}", "Removed")
        await here.say("/jobs", "no jobs yet")
        assert sum("two files are new\n" in text for text in here.chat.replies) == 1, "it came once"


async def test_a_model_makes_a_reminder_that_the_person_confirms(
    tmp_path: Path, model: ModelServer, server: TelegramServer
) -> None:
    arguments = {"action": "add", "text": "Stretch!", "when": "remind me in ten minutes"}
    async with trial(tmp_path, model, server) as here:
        here.ada.says(f"[[call jobs {json.dumps(arguments)}]][[reply I will.]]")
        asked = await here.reply("Save this?")
        assert "Reminder: Stretch!" in asked.text and "Next:" in asked.text
        here.ada.presses(asked, "Approve once")
        await here.reply("I will.")
        job = await here.job()
        assert job.plan.is_reminder and job.next_at is not None
        await here.let_it_come()
        assert (await here.reply("Stretch!")).text == "Stretch!"
        assert (await here.job()).state is JobState.DONE
        status, found = await call(here.http, "GET", f"/api/jobs/{job.id}/runs")
        assert (status, [run["state"] for run in found["items"]]) == (200, ["done"])


async def test_a_program_sends_a_message_and_a_file(
    tmp_path: Path, model: ModelServer, server: TelegramServer
) -> None:
    async with trial(tmp_path, model, server) as here:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as client,
            client.post(f"{here.http.address}/api/files?name=report.txt", data=b"all is well") as answer,
        ):
            upload = (await answer.json())["id"]
        chat = "agent:main:telegram:dm:7"
        body = {"chat": chat, "text": "Here is the report.", "files": [upload]}
        status, sent = await call(here.http, "POST", "/api/send", body)
        assert status == 202
        await here.server.until(lambda: any(shown.file for shown in here.chat.messages.values()))
        assert "Here is the report." in here.chat.replies
        (found,) = [shown for shown in here.chat.messages.values() if shown.file]
        assert (found.file_name, found.file) == ("report.txt", b"all is well")
        turn = (await call(here.http, "GET", f"/api/turns/{sent['id']}"))[1]
        assert (turn["state"], turn["files"][0]["name"]) == ("done", "report.txt")
        assert not model.bodies, "no agent sees it before"
