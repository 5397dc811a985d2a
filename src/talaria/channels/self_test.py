"""The live self-test of a chat platform: `talaria connect NAME --check`.

It uses the person's own account, in the chat in which the person writes. It compares what the platform does
with what the gateway relies on, and so shows whether the fake servers of the tests are right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from talaria.channels.incoming import ButtonPress, IncomingMessage
from talaria.channels.live_message import ChatOutlet
from talaria.core.delivery import Button, OutgoingFile, OutgoingMessage
from talaria.core.errors import TalariaError
from talaria.core.ids import new_turn_id

_PRESS = "/status"


class CheckedChat(Protocol):
    """A connection to the platform with the configured account."""

    @property
    def outlet(self) -> ChatOutlet: ...

    async def next_input(self) -> IncomingMessage | ButtonPress:
        """Wait for the next message or button press."""
        ...

    async def reconnect(self) -> None:
        """End the connection, and return when another one works."""
        ...


class InputQueue:
    """The inputs of a `CheckedChat`, which its connection puts here."""

    def __init__(self) -> None:
        self._inputs: asyncio.Queue[IncomingMessage | ButtonPress] = asyncio.Queue()

    def put(self, parsed: object) -> None:
        if isinstance(parsed, IncomingMessage | ButtonPress):
            self._inputs.put_nowait(parsed)

    async def next_input(self) -> IncomingMessage | ButtonPress:
        return await self._inputs.get()


class StepResult(msgspec.Struct, frozen=True):
    """`difference` says what the platform did otherwise; it is empty if all was as expected."""

    name: str
    difference: str = ""


class SelfTest:
    """Runs the steps one after the other. `tell` shows a line to the person, who has `seconds` to act."""

    def __init__(self, chat: CheckedChat, tell: Callable[[str], None], seconds: float) -> None:
        self._chat = chat
        self._tell = tell
        self._seconds = seconds
        self._address = ""
        self._nonce = new_turn_id()
        self._sent = ""
        self.results: list[StepResult] = []

    async def run(self) -> list[StepResult]:
        """Return the results. After a step that the others need, the rest is left out."""
        self._tell("Write a message to the bot in a private chat.")
        if not await self._try("receive", self._receive) or not await self._try("send", self._send):
            return self.results
        await self._try("edit", self._edit)
        await self._try("repeat", self._repeat)
        await self._try("type", lambda: self._chat.outlet.type_in(self._address))
        await self._try("file", self._send_file)
        await self._try("button", self._press)
        await self._try("reconnect", self._reconnect)
        return self.results

    async def _try(self, name: str, step: Callable[[], Awaitable[str | None]]) -> bool:
        try:
            async with asyncio.timeout(self._seconds):
                difference = await step() or ""
        except TimeoutError:
            difference = f"nothing came within {self._seconds:g} seconds"
        except TalariaError as error:
            difference = error.user_text
        self.results.append(StepResult(name, difference))
        self._tell(f"  {name}: {difference or 'as expected'}")
        return not difference

    async def _receive(self) -> str | None:
        while not isinstance(message := await self._chat.next_input(), IncomingMessage):
            pass
        self._address = message.address
        return None if message.actor.user_id and message.text else "the message has no sender or no text"

    async def _send(self) -> str | None:
        self._sent = await self._deliver("Self-test: this message is **edited** next.")
        return None

    async def _edit(self) -> str | None:
        edited = await self._deliver("Self-test: this message was edited.", edits=self._sent)
        return None if edited == self._sent else "the edit became another message"

    async def _repeat(self) -> str | None:
        """A message with the same nonce is the same one, or it is a second one that the outlet marks."""
        first = await self._deliver("Self-test: this message is sent twice.", nonce=f"{self._nonce}.r")
        post = OutgoingMessage(self._address, "Self-test: this message is sent twice.", f"{self._nonce}.r")
        second = await self._chat.outlet.deliver(msgspec.structs.replace(post, is_repeat=True))
        if second != first:
            self._tell("  (the repeat came as a second message; it should begin with a mark)")
        return None

    async def _send_file(self) -> str | None:
        file = OutgoingFile("self-test.txt", b"This file is a test.\n")
        post = OutgoingMessage(self._address, "Self-test: a file.", f"{self._nonce}.f", file=file)
        await self._chat.outlet.deliver(post)
        return None

    async def _press(self) -> str | None:
        buttons = (Button("Press me", _PRESS),)
        post = OutgoingMessage(
            self._address, "Self-test: press the button.", f"{self._nonce}.b", buttons=buttons
        )
        await self._chat.outlet.deliver(post)
        self._tell("Press the button in the chat.")
        while not isinstance(press := await self._chat.next_input(), ButtonPress):
            pass
        return None if press.command == _PRESS else f"the button means {press.command!r} and not {_PRESS!r}"

    async def _reconnect(self) -> str | None:
        await self._chat.reconnect()
        self._tell("Write another message to the bot.")
        while not isinstance(message := await self._chat.next_input(), IncomingMessage):
            pass
        return None if message.address == self._address else "the chat has another address now"

    async def _deliver(self, body: str, *, edits: str | None = None, nonce: str = "") -> str:
        post = OutgoingMessage(self._address, body, nonce or f"{self._nonce}.s", edits)
        return await self._chat.outlet.deliver(post)
