"""Messages that are sent to chats outside of their turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.fake_outlet import FakeOutlet
from support.rig import Rig, chat
from support.waiting import until
from talaria.core.clock import SystemClock
from talaria.core.entries import Announcement
from talaria.core.errors import BadRequest, IdempotencyConflict, NotFound, ToolError
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.ledger import ChatMessage
from talaria.core.messages import AssistantMessage, UserMessage
from talaria.core.redaction import Secret, SecretRegistry
from talaria.core.shown import ShownLog
from talaria.core.turns import Sender
from talaria.store.store import Store
from talaria.turns.sending import MAX_TEXT, ChatSender
from talaria.turns.settings import TurnSettings
from talaria.workspace.places import ChatFolders

ME = Sender("tester")
PULL = ChatKey("agent:main:http:api:home")


def find_address(address: ChatAddress) -> str | None:
    if address.channel == "nowhere":
        raise BadRequest("There is no channel 'nowhere'.")
    return None if address.channel == "http" else f"at {address.chat}"


@asynccontextmanager
async def sender_of(
    rig: Rig, folder: Path, secrets: SecretRegistry | None = None
) -> AsyncIterator[ChatSender]:
    settings = TurnSettings("main", 20, 0.0)
    folders = ChatFolders(folder)
    sender = ChatSender(
        rig.store,
        settings,
        find_address,
        folders,
        secrets=secrets or SecretRegistry(),
        clock=SystemClock(),
        live=rig.live,
        wake=rig.delivery.wake,
    )
    tasks = [asyncio.create_task(work) for work in (sender.run(), rig.delivery.run())]
    try:
        yield sender
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def kinds(store: Store, key: ChatKey) -> list[str]:
    session = await store.current_session(key)
    assert session is not None
    bodies = [entry.body for entry in await store.log(session.id, 0)]
    return [
        type(body).__name__
        for body in bodies
        if isinstance(body, (UserMessage, AssistantMessage, Announcement))
    ]


async def test_message_arrives_and_the_next_turn_knows_of_it(rig: Rig, tmp_path: Path) -> None:
    outlet = FakeOutlet()
    rig.delivery.attach("test", outlet)
    async with sender_of(rig, tmp_path) as sender:
        await rig.say("hello")
        sent = await sender.send(ChatMessage(chat(), "the build is red", ME))
        await until(lambda: bool(outlet.messages))
        assert outlet.texts("at one") == ["the build is red"]
        turn = await rig.say("why?")
        assert turn.session_id == sent.turn.session_id
    assert b"[This was sent to the chat:]\\nthe build is red" in rig.model.bodies[-1]
    assert await kinds(rig.store, chat()) == [
        "UserMessage", "AssistantMessage", "Announcement", "UserMessage", "AssistantMessage",
    ]  # fmt: skip


async def test_message_during_a_turn_is_sent_at_once_and_logged_after_it(rig: Rig, tmp_path: Path) -> None:
    outlet = FakeOutlet()
    rig.delivery.attach("test", outlet)
    async with sender_of(rig, tmp_path) as sender:
        live = await rig.submit("[[hang]]")
        await until(lambda: rig.model.busy > 0)
        sent = await sender.send(ChatMessage(chat(), "news", ME))
        await until(lambda: bool(outlet.messages))
        assert not sent.is_logged
        await rig.turns.cancel(live)
        while await rig.store.unannounced():
            await asyncio.sleep(0)
        assert (await kinds(rig.store, chat()))[-1] == "Announcement"


async def test_message_that_waited_for_a_turn_is_logged_by_the_next_process(rig: Rig, tmp_path: Path) -> None:
    async with sender_of(rig, tmp_path) as sender:
        live = await rig.submit("[[hang]]")
        await until(lambda: rig.model.busy > 0)
        await sender.send(ChatMessage(chat(), "news", ME))
    await rig.turns.cancel(live)
    assert await rig.store.unannounced()
    async with sender_of(rig, tmp_path):
        while await rig.store.unannounced():
            await asyncio.sleep(0)
    assert (await kinds(rig.store, chat()))[-1] == "Announcement"


async def test_chat_that_fetches_finds_the_message_in_its_log(rig: Rig, tmp_path: Path) -> None:
    async with sender_of(rig, tmp_path) as sender:
        sent = await sender.send(ChatMessage(PULL, "news", ME))
        record = await rig.store.turn_record(sent.turn.id)
    assert record is not None
    assert record.replies == ()
    assert await kinds(rig.store, PULL) == ["Announcement"]


async def test_key_makes_a_repeat_one_message(rig: Rig, tmp_path: Path) -> None:
    async with sender_of(rig, tmp_path) as sender:
        first = await sender.send(ChatMessage(chat(), "news", ME, key="k"))
        again = await sender.send(ChatMessage(chat(), "news", ME, key="k"))
        assert (again.turn.id, again.is_duplicate) == (first.turn.id, True)
        with pytest.raises(IdempotencyConflict):
            await sender.send(ChatMessage(chat(), "other news", ME, key="k"))
    assert await kinds(rig.store, chat()) == ["Announcement"]


async def test_content_from_outside_taints_the_chat(rig: Rig, tmp_path: Path) -> None:
    async with sender_of(rig, tmp_path) as sender:
        sent = await sender.send(ChatMessage(chat(), "said by a person", ME))
        session_id = sent.turn.session_id
        assert not ShownLog(await rig.store.shown_log(session_id)).has_untrusted()
        await sender.send(ChatMessage(chat(), "read on a page", ME, is_untrusted=True))
        assert ShownLog(await rig.store.shown_log(session_id)).has_untrusted()


async def test_secret_of_the_gateway_is_neither_sent_nor_logged(rig: Rig, tmp_path: Path) -> None:
    secrets = SecretRegistry([Secret("the key", "hunter2-hunter2")])
    async with sender_of(rig, tmp_path, secrets) as sender:
        sent = await sender.send(ChatMessage(chat(), "it is hunter2-hunter2", ME))
        assert "hunter2" not in (sent.turn.reply or "")
        folder = ChatFolders(tmp_path)(chat())
        folder.mkdir(parents=True)
        (folder / "key.txt").write_text("hunter2-hunter2")
        with pytest.raises(ToolError, match="secret of the gateway"):
            await sender.send(ChatMessage(chat(), "a file", ME, files=("key.txt",)))


async def test_file_goes_out_as_it_was_when_it_was_sent(rig: Rig, tmp_path: Path) -> None:
    folder = ChatFolders(tmp_path)(chat())
    folder.mkdir(parents=True)
    (folder / "report.txt").write_text("all is well")
    async with sender_of(rig, tmp_path) as sender:
        sent = await sender.send(ChatMessage(chat(), "", ME, files=("report.txt",)))
        (folder / "report.txt").write_text("changed")
    (file,) = sent.turn.files
    assert (file.name, (folder / file.copy_path).read_text()) == ("report.txt", "all is well")
    record = await rig.store.turn_record(sent.turn.id)
    assert record is not None
    assert [row.file for row in record.replies] == [file.copy_path]


@pytest.mark.parametrize("text", ["", " \n", "x" * (MAX_TEXT + 1)], ids=["empty", "blank", "long"])
async def test_message_without_a_fitting_text_is_refused(rig: Rig, tmp_path: Path, text: str) -> None:
    async with sender_of(rig, tmp_path) as sender:
        with pytest.raises(BadRequest):
            await sender.send(ChatMessage(chat(), text, ME))
    assert await rig.store.current_session(chat()) is None


async def test_chat_is_found_by_key_session_and_name(rig: Rig, tmp_path: Path) -> None:
    async with sender_of(rig, tmp_path) as sender:
        sent = await sender.send(ChatMessage(PULL, "news", ME))
        assert await sender.find_chat("home") == PULL
        assert await sender.find_chat(PULL) == PULL
        assert await sender.find_chat(sent.turn.session_id) == PULL
        assert await sender.find_chat(chat("stranger")) == chat("stranger")
        for unknown in ("hoem", "ses_0", "agent:main:http:api:hoem"):
            with pytest.raises(NotFound):
                await sender.find_chat(unknown)
        for wrong in ("agent:main", "a b", "agent:main:nowhere:dm:1"):
            with pytest.raises(BadRequest):
                await sender.find_chat(wrong)
