"""The contract of `turns.outlet.Outlet`, which sends replies to a platform."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from typing import Protocol

import pytest

from talaria.channels.live_message import ChatOutlet
from talaria.core.delivery import (
    Button,
    DeliveryDelayed,
    DeliveryError,
    DeliveryRefused,
    DeliveryUnknown,
    OutgoingFile,
    OutgoingMessage,
)
from talaria.turns.delivery import Outlet


class SendTrouble(Enum):
    """The fate of the next call of the platform."""

    LATER = auto()
    NEVER = auto()
    SILENT = auto()  # it takes it and gives no answer


class Wall(Protocol):
    """An outlet with one chat behind it."""

    @property
    def outlet(self) -> Outlet: ...

    @property
    def address(self) -> str: ...

    @property
    def drops_repeats(self) -> bool:
        """Whether the platform drops a second message with the same nonce that comes at once."""
        ...

    def shown(self) -> list[str]: ...

    def next_send(self, trouble: SendTrouble) -> None: ...


class ChatWall(Wall, Protocol):
    """A `ChatOutlet` with one chat behind it."""

    @property
    def outlet(self) -> ChatOutlet: ...

    def files(self) -> list[tuple[str, bytes]]:
        """Return the names and contents of the files in the chat, oldest first."""
        ...

    def labels(self) -> list[str]:
        """Return the labels of the buttons below the last message."""
        ...


class OutletSuite:
    def open(self) -> AbstractAsyncContextManager[Wall]:
        raise NotImplementedError

    async def test_a_post_is_shown_and_an_edit_takes_its_place(self) -> None:
        async with self.open() as wall:
            first = await wall.outlet.deliver(OutgoingMessage(wall.address, "one", "n1"))
            second = await wall.outlet.deliver(OutgoingMessage(wall.address, "two", "n2"))
            assert first != second
            assert (
                await wall.outlet.deliver(OutgoingMessage(wall.address, "other", "n3", edits=first)) == first
            )
            assert wall.shown() == ["other", "two"]

    async def test_the_same_edit_again_is_done(self) -> None:
        async with self.open() as wall:
            first = await wall.outlet.deliver(OutgoingMessage(wall.address, "one", "n1"))
            for _ in range(2):
                assert (
                    await wall.outlet.deliver(OutgoingMessage(wall.address, "two", "n2", edits=first))
                    == first
                )
            assert wall.shown() == ["two"]

    async def test_an_edit_of_what_is_gone_is_a_send(self) -> None:
        async with self.open() as wall:
            sent = await wall.outlet.deliver(OutgoingMessage(wall.address, "one", "n1", edits="987654"))
            assert sent != "987654"
            assert wall.shown() == ["one"]

    @pytest.mark.parametrize(
        ("trouble", "error", "is_shown"),
        [
            (SendTrouble.LATER, DeliveryDelayed, False),
            (SendTrouble.NEVER, DeliveryRefused, False),
            (SendTrouble.SILENT, DeliveryUnknown, True),
        ],
    )
    async def test_a_failure_says_what_is_known(
        self, trouble: SendTrouble, error: type[DeliveryError], is_shown: bool
    ) -> None:
        async with self.open() as wall:
            wall.next_send(trouble)
            with pytest.raises(error):
                await wall.outlet.deliver(OutgoingMessage(wall.address, "one", "n1"))
            assert wall.shown() == (["one"] if is_shown else [])
            await wall.outlet.deliver(OutgoingMessage(wall.address, "two", "n2"))
            assert wall.shown()[-1] == "two"

    async def test_a_repeat_is_dropped_or_visible(self) -> None:
        async with self.open() as wall:
            await wall.outlet.deliver(OutgoingMessage(wall.address, "one", "n1"))
            await wall.outlet.deliver(
                OutgoingMessage(wall.address, "one", "n1", is_repeat=not wall.outlet.takes_nonce)
            )
            first, *more = wall.shown()
            assert first == "one"
            assert len(more) == (0 if wall.drops_repeats else 1)
            assert all(text != "one" and text.endswith("one") for text in more)

    async def test_pieces_hold_the_whole_reply_in_order(self) -> None:
        async with self.open() as wall:
            reply = "\n".join(f"line {number}" for number in range(2000))
            pieces = [piece for piece in wall.outlet.split(reply, wall.address) if piece]
            assert len(pieces) > 1
            assert "".join("".join(pieces).split()) == "".join(reply.split())
            for number, piece in enumerate(pieces):
                await wall.outlet.deliver(OutgoingMessage(wall.address, piece, f"n{number}"))
            assert len(wall.shown()) == len(pieces)


class ChatOutletSuite(OutletSuite):
    """The contract of a `ChatOutlet`, besides that of every outlet."""

    def open(self) -> AbstractAsyncContextManager[ChatWall]:
        raise NotImplementedError

    async def test_a_file_is_sent_with_its_caption(self) -> None:
        async with self.open() as wall:
            file = OutgoingFile("notes.txt", b"all is well")
            await wall.outlet.deliver(OutgoingMessage(wall.address, "here", "n1", file=file))
            assert wall.files() == [("notes.txt", b"all is well")]
            assert wall.shown() == ["here"]

    async def test_in_place_of_a_file_that_is_not_taken_comes_a_note(self) -> None:
        async with self.open() as wall:
            too_large = OutgoingFile("large.bin", bytes(wall.outlet.max_file(wall.address) + 1))
            for number, file in enumerate((OutgoingFile("empty.txt", b""), too_large)):
                await wall.outlet.deliver(OutgoingMessage(wall.address, "", f"n{number}", file=file))
            assert wall.files() == []
            empty, large = wall.shown()
            assert "empty.txt is empty" in empty and "large.bin has" in large

    async def test_buttons_are_shown_until_an_edit_without_them(self) -> None:
        async with self.open() as wall:
            labels = [f"choice {number}" for number in range(8)]
            # A command may be longer than the platform's field for it.
            buttons = tuple(Button(label, f"/status {label * 20}") for label in labels)
            sent = await wall.outlet.deliver(OutgoingMessage(wall.address, "one", "n1", buttons=buttons))
            assert wall.labels() == labels
            await wall.outlet.deliver(OutgoingMessage(wall.address, "two", "n1", edits=sent))
            assert (wall.shown(), wall.labels()) == (["two"], [])

    async def test_to_type_raises_nothing(self) -> None:
        async with self.open() as wall:
            await wall.outlet.type_in(wall.address)
            assert wall.shown() == []
