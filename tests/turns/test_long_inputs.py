"""Messages that are longer than what fits: kept whole, and begun for the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.rig import Rig, chat, inbound, start
from talaria.agent.settings import ContextSettings
from talaria.core.clock import SystemClock
from talaria.core.files import MESSAGES
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import File, Text, UserMessage
from talaria.core.redaction import Secret, SecretRegistry
from talaria.core.turns import Turn, TurnState
from talaria.core.units import Size
from talaria.models.known import Abilities
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.turns.histories import SentExchange
from talaria.workspace.quota import FolderQuota
from talaria.workspace.uploads import Uploads, UploadTooLarge

SMALL: Mapping[str, Abilities] = {"scripted/scripted": Abilities(context=16_000, tools=True)}
LONG = "".join(f"[[reply fine]] line {number} of a long message\n" for number in range(2000))


@pytest.fixture
def store() -> Store:
    """One engine is enough: what the store does has suites of its own."""
    return MemoryStore(SystemClock())


def kept(folder: Path) -> list[Path]:
    return sorted((folder / MESSAGES).glob("*"))


def told(rig: Rig, at: int = -1) -> str:
    """Return the last message that the model was sent with a request."""
    body: dict[str, Any] = msgspec.json.decode(rig.model.bodies[at])
    content: str = body["messages"][-1]["content"]
    return content


async def said(store: Store, turn: Turn) -> UserMessage:
    entries = await store.log(turn.session_id, 0)
    return next(entry.body for entry in entries if isinstance(entry.body, UserMessage))


async def test_a_long_message_is_kept_whole_and_the_model_can_read_on(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, abilities=SMALL) as rig:
        turn = await rig.say(LONG)
        assert turn.reply == "fine"
        [path] = kept(tmp_path)
        assert path.read_text() == LONG
        beginning, file = (await said(store, turn)).parts
        assert isinstance(beginning, Text)
        assert isinstance(file, File)
        assert LONG.startswith(beginning.text)
        assert 2000 < len(beginning.text) <= 2048
        lines = beginning.text.count("\n")
        goes_on = f'read_file("{file.path}", offset={lines + 1}) reads on from here.]'
        assert f"message of {len(LONG)} bytes" in told(rig)
        assert told(rig).endswith(goes_on)
        assert (tmp_path / file.path) == path
        call = f'[[call read_file {{"path":"{file.path}","offset":{lines + 1},"limit":1}}]]'
        await rig.say(call)
        assert LONG.split("\n")[lines] in told(rig)


async def test_a_message_that_fits_stays_as_it_is(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, abilities=SMALL) as rig:
        text = "[[reply fine]]" + "x" * 7000
        assert (await said(store, await rig.say(text))).parts == (Text(text),)
        unknown = "[[reply fine]]" + "x" * 60_000  # a model of unknown size
        assert (await said(store, await rig.say(unknown, "two", model="fast"))).parts == (Text(unknown),)
    assert not kept(tmp_path)


async def test_the_window_counts_as_far_as_it_may_be_used(store: Store, tmp_path: Path) -> None:
    thrifty = ContextSettings(max_tokens=16_000)
    large = {"scripted/scripted": Abilities(context=400_000, tools=True)}
    async with start(store, tmp_path, abilities=large, context=thrifty) as rig:
        await rig.say("[[reply fine]]" + "x" * 8000)
    assert len(kept(tmp_path)) == 1


async def test_a_long_message_that_is_sent_again_is_kept_once(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, abilities=SMALL) as rig:
        first = await rig.say(LONG, key="k1")
        again = await rig.say(LONG, key="k1")
        assert (again.id, len(kept(tmp_path))) == (first.id, 1)
        await rig.say(LONG, key="k2")
        assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize("command", ["/queue ", "/steer "])
async def test_a_command_that_is_a_message_is_shortened_too(
    store: Store, tmp_path: Path, command: str
) -> None:
    async with start(store, tmp_path, abilities=SMALL) as rig:
        await rig.say(command + LONG)
    assert kept(tmp_path)[0].read_text() == LONG.strip()


async def test_a_message_that_no_person_wrote_is_shortened_too(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, abilities=SMALL) as rig:
        live = await rig.turns.receive(inbound(LONG), ())
        assert (await rig.turns.wait(live)).reply == "fine"
    assert kept(tmp_path)[0].read_text() == LONG


async def test_a_model_without_tools_hears_that_it_cannot_read_on(store: Store, tmp_path: Path) -> None:
    plain = {"scripted/scripted": Abilities(context=16_000, tools=False)}
    async with start(store, tmp_path, abilities=plain) as rig:
        await rig.say(LONG)
        assert "there is no tool here to read the rest with" in told(rig)
        assert "read_file" not in told(rig)
    assert kept(tmp_path)


async def test_a_secret_is_kept_nowhere(store: Store, tmp_path: Path) -> None:
    key = "sk-Q7rT2vX9bL4mN8pW3zK6yH1c"
    secrets = SecretRegistry([Secret("KEY", key)])
    async with start(store, tmp_path, abilities=SMALL, secrets=secrets) as rig:
        await rig.say(LONG + key)
    assert kept(tmp_path)[0].read_text().endswith("[secret KEY]")


async def test_without_room_the_message_is_refused_and_nothing_is_left(store: Store, tmp_path: Path) -> None:
    quota = FolderQuota(Limits(LimitSettings(chat_files=Size(1000))))
    async with start(store, tmp_path, abilities=SMALL, quota=quota) as rig:
        with pytest.raises(UploadTooLarge, match="folder is full"):
            await rig.say(LONG)
        assert (await rig.say("[[reply here]]")).state is TurnState.DONE
    assert not kept(tmp_path)


async def test_a_front_ends_chat_goes_on_after_a_long_message(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, abilities=SMALL) as rig:
        first = await rig.say(LONG)
        sent = [SentExchange(UserMessage((Text(LONG),)), first.reply)]
        second = await rig.turns.wait(await rig.turns.submit(inbound("And now?"), history=sent))
        assert second.session_id == first.session_id
        other = [SentExchange(UserMessage((Text("[[reply fine]] other" + LONG),)), first.reply)]
        third = await rig.turns.wait(await rig.turns.submit(inbound("And now?"), history=other))
        assert third.session_id != first.session_id


async def test_a_deleted_session_takes_its_long_messages_along(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, abilities=SMALL) as rig:
        first = await rig.say(LONG)
        await rig.say("/branch")
        deletions = rig.gateway(tmp_path, folder_of=lambda key: tmp_path).deletions
        await deletions.delete(first.session_id)
        assert len(kept(tmp_path)) == 1, "the branch shows it"
        branch = await store.current_session(chat())
        assert branch is not None
        await deletions.delete(branch.id)
    assert not kept(tmp_path)


async def test_a_large_text_file_brings_its_beginning(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        uploads = Uploads(tmp_path / "uploads", lambda key: tmp_path, rig.clock)
        [file] = await uploads.put(chat(), "log.txt", "text/plain", LONG.encode())
        message = msgspec.structs.replace(inbound("[[reply fine]]"), parts=(Text("[[reply fine]]"), file))
        await rig.turns.wait(await rig.turns.submit(message))
        assert isinstance(file, File)
        assert LONG.startswith(str(file.beginning))
        head = f"[file log.txt (text/plain, {len(LONG)} bytes) at log.txt begins:]\n{LONG[:100]}"
        assert head in told(rig)
        assert told(rig).rstrip().endswith("reads on from here.]")
        [binary] = await uploads.put(chat(), "data.bin", "application/x-data", b"\0\1" * 5000)
        [latin] = await uploads.put(chat(), "old.txt", "text/plain", "grün ".encode("latin-1") * 2000)
        assert (binary.rest, latin.rest) == (msgspec.UNSET, msgspec.UNSET)  # type: ignore[union-attr]
