"""The contract of a channel: run by each with a fake server of its platform."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from talaria.app import open_gateway
from talaria.channels.descriptor import Channel
from talaria.channels.supervisor import open_channels
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ledger import Accept, Accepted
from talaria.core.settings import NoSettings
from talaria.gateway import Gateway
from talaria.store.in_memory import MemoryStore
from talaria.store.part import StorePart, StoreScope
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.contracts.outlet_suite import SendTrouble
from talaria.testing.model_server import ModelServer

_CONFIG = """\
[model]
provider = "scripted"
[providers.scripted]
base_url = "{url}"
[tools]
enabled = []
[shutdown]
deadline = "1s"
"""


@asynccontextmanager
async def open_channel(
    channel: Channel[Any], folder: Path, store: Store, clock: Clock, config: str = ""
) -> AsyncIterator[Gateway]:
    """Open a gateway with this channel, over this store and with the scripted model. `config` is added to its
    config.toml: the channel's own table."""

    @asynccontextmanager
    async def opening(scope: StoreScope, settings: NoSettings) -> AsyncIterator[Store]:
        yield store  # it outlives the gateway

    engine = StorePart(name="store", settings=NoSettings, serves=lambda url: True, open=opening)
    async with ModelServer() as model:
        (folder / "config.toml").write_text(_CONFIG.format(url=model.base_url) + config)
        parts = (engine, channel)
        loaded = load(folder, {}, parts)
        async with (
            open_gateway(Home(folder), loaded, {}, clock, parts=parts) as gateway,
            open_channels(gateway, parts),
        ):
            yield gateway


class Talk(Protocol):
    """A channel at work with its platform, and one allowed person who uses it. The clock is a `FakeClock`."""

    def say(self, text: str) -> None: ...

    def say_as_stranger(self, text: str) -> None: ...

    def repeat_last(self) -> None:
        """The platform hands out its last update once more."""
        ...

    def unconfirmed(self) -> int:
        """Updates that the platform would hand out again after a restart."""
        ...

    def next_send(self, trouble: SendTrouble) -> None: ...

    def shown(self) -> list[str]:
        """Return the agent's messages as the person sees them now, oldest first."""
        ...

    def is_marked(self, text: str) -> bool:
        """Whether this is visibly a repeat."""
        ...

    @property
    def drops_repeats(self) -> bool:
        """Whether the platform drops a second message with the same nonce that comes at once."""
        ...

    async def pass_time_until(self, seen: int) -> None:
        """Let time go by until so many finished messages are shown."""
        ...


class FailingStore(MemoryStore):
    """Accepts nothing for as long as it is sick."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.is_sick = False
        self.refused = 0

    async def accept(self, order: Accept) -> Accepted:
        if self.is_sick:
            self.refused += 1
            raise StoreError("The disk is full.", "Make room.")
        return await super().accept(order)


class ChannelSuite:
    """Subclass it and say how a life of the channel is opened over a store, for example by `open_channel`."""

    def open(self, folder: Path, store: Store, clock: FakeClock) -> AbstractAsyncContextManager[Talk]:
        raise NotImplementedError

    async def test_a_message_is_answered_and_confirmed(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.open(tmp_path, MemoryStore(clock), clock) as talk:
            talk.say("hello")
            await talk.pass_time_until(1)
            assert talk.shown() == ["You said: hello"]
            assert talk.unconfirmed() == 0

    async def test_a_message_that_comes_twice_is_one_turn(self, tmp_path: Path) -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with self.open(tmp_path, store, clock) as talk:
            talk.say("one")
            await talk.pass_time_until(1)
            talk.repeat_last()
            talk.say("two")
            await talk.pass_time_until(2)
            assert talk.shown() == ["You said: one", "You said: two"]
            assert sum((await store.stats()).turns.values()) == 2

    async def test_nothing_is_confirmed_before_it_is_durable(self, tmp_path: Path) -> None:
        clock = FakeClock()
        store = FailingStore(clock)
        store.is_sick = True
        async with self.open(tmp_path, store, clock) as talk:
            talk.say("hello")
            while not store.refused:
                clock.advance(1)
                await clock.settle()
            assert talk.unconfirmed() == 1
            store.is_sick = False
            await talk.pass_time_until(1)
            assert talk.shown() == ["You said: hello"]
            assert talk.unconfirmed() == 0

    async def test_a_restart_neither_loses_nor_repeats(self, tmp_path: Path) -> None:
        clock = FakeClock()
        store = FailingStore(clock)
        async with self.open(tmp_path, store, clock) as talk:
            talk.say("one")
            await talk.pass_time_until(1)
            store.is_sick = True
            talk.say("two")
            while not store.refused:
                clock.advance(1)
                await clock.settle()
        store.is_sick = False
        async with self.open(tmp_path, store, clock) as talk:
            await talk.pass_time_until(2)
            assert talk.shown() == ["You said: one", "You said: two"]

    async def test_a_stranger_gets_no_turn(self, tmp_path: Path) -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with self.open(tmp_path, store, clock) as talk:
            talk.say_as_stranger("hello")
            talk.say("and me?")
            await talk.pass_time_until(1)
            assert talk.shown() == ["You said: and me?"]
            assert sum((await store.stats()).turns.values()) == 1

    async def test_a_send_that_may_have_arrived_is_deduped_or_marked(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.open(tmp_path, MemoryStore(clock), clock) as talk:
            talk.next_send(SendTrouble.SILENT)
            talk.say("hello")
            await talk.pass_time_until(1 if talk.drops_repeats else 2)
            first, *more = talk.shown()
            assert first == "You said: hello"
            assert all(talk.is_marked(text) for text in more)

    async def test_a_send_that_was_refused_for_now_is_made_once_and_unmarked(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.open(tmp_path, MemoryStore(clock), clock) as talk:
            talk.next_send(SendTrouble.LATER)
            talk.say("hello")
            await talk.pass_time_until(1)
            assert talk.shown() == ["You said: hello"]

    async def test_a_send_that_was_refused_for_good_holds_nothing_up(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.open(tmp_path, MemoryStore(clock), clock) as talk:
            talk.next_send(SendTrouble.NEVER)
            talk.say("one")
            talk.say("two")
            await talk.pass_time_until(1)
            assert talk.shown() == ["You said: two"]

    async def test_long_replies_come_whole_and_in_order(self, tmp_path: Path) -> None:
        clock = FakeClock()
        words = " ".join(f"w{number}" for number in range(3000))
        async with self.open(tmp_path, MemoryStore(clock), clock) as talk:
            talk.say(f"[[reply {words}]]")
            await talk.pass_time_until(2)
            while " ".join(talk.shown()).split() != words.split():
                clock.advance(0.5)
                await clock.settle()


class GroupTalk(Talk, Protocol):
    """A platform on which people edit messages and write in groups."""

    @property
    def person_id(self) -> str: ...

    def edit_last(self, text: str) -> None:
        """Edit the last message that the person has sent in private."""
        ...

    @property
    def tells_deletions(self) -> bool:
        """Whether the platform tells the bot of deleted messages."""
        ...

    def delete_last(self) -> None:
        """Delete the last message that the person has sent in private."""
        ...

    def send_file(self, name: str, data: bytes) -> None:
        """Send a file in private."""
        ...

    def say_in_group(self, text: str, *, is_addressed: bool = True) -> None: ...

    def say_in_group_as_stranger(self, text: str) -> None: ...

    def shown_in_group(self) -> list[str]: ...

    async def pass_time_until_shown_in_group(self, seen: int) -> None: ...


class ChatPlatformSuite:
    """The contract of a platform with private chats and groups. Run it together with `ChannelSuite`."""

    def open_platform(
        self, folder: Path, store: Store, clock: FakeClock, unknown: str = "pair"
    ) -> AbstractAsyncContextManager[GroupTalk]:
        raise NotImplementedError

    async def test_an_edit_of_a_message_that_waits_is_what_is_answered(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.open_platform(tmp_path, MemoryStore(clock), clock) as talk:
            talk.say("[[chunks 6]][[chunk-delay 0.05]][[reply first]]")
            talk.say("second")
            talk.edit_last("corrected")
            await talk.pass_time_until(2)
            assert talk.shown() == ["first", "You said: corrected"]
            talk.edit_last("again")
            await talk.pass_time_until(3)
            assert talk.shown()[2] == "You said: [This corrects an earlier message.]\nagain"

    async def test_a_message_that_is_deleted_while_it_waits_is_not_answered(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.open_platform(tmp_path, MemoryStore(clock), clock) as talk:
            if not talk.tells_deletions:
                pytest.skip("the platform tells of no deletions")
            talk.say("[[chunks 6]][[chunk-delay 0.05]][[reply first]]")
            talk.say("second")
            talk.delete_last()
            talk.say("third")
            await talk.pass_time_until(2)
            assert talk.shown() == ["first", "You said: third"]

    async def test_a_file_of_a_person_is_in_the_chat_folder(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.open_platform(tmp_path, MemoryStore(clock), clock) as talk:
            talk.send_file("notes.txt", b"buy milk")
            await talk.pass_time_until(1)
            assert "notes.txt" in talk.shown()[0]
            assert _contents(tmp_path, "notes.txt") == [b"buy milk"]

    async def test_in_a_group_the_addressed_message_is_answered_and_its_speaker_named(
        self, tmp_path: Path
    ) -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with self.open_platform(tmp_path, store, clock) as talk:
            talk.say_in_group("nobody asked", is_addressed=False)
            talk.say_in_group_as_stranger("let me in")
            talk.say_in_group("hello")
            await talk.pass_time_until_shown_in_group(1)
            [shown] = talk.shown_in_group()
            assert shown.startswith("You said: ") and shown.endswith(f"({talk.person_id}) says:\nhello")
            assert sum((await store.stats()).turns.values()) == 1

    async def test_an_unknown_sender_is_ignored_if_that_is_wanted(self, tmp_path: Path) -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with self.open_platform(tmp_path, store, clock, "ignore") as talk:
            talk.say_as_stranger("hello")
            talk.say("and me?")
            await talk.pass_time_until(1)
            assert (await store.pairings.listing()).requests == ()


def _contents(folder: Path, name: str) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob(name) if path.is_file()]
