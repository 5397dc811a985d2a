"""The contract of `turns.outlet.Outlet`, which sends replies to a platform."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from typing import Protocol

import pytest

from talaria.core.delivery import (
    DeliveryDelayed,
    DeliveryError,
    DeliveryRefused,
    DeliveryUnknown,
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
