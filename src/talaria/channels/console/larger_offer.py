"""The offer of the larger built-in model in the terminal chat: a line above the prompt, and its key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from talaria.channels.console.gateway_client import GatewayClient
from talaria.core.errors import TalariaError
from talaria.core.units import format_wait
from talaria.models.local.larger import LargerModel, LargerState
from talaria.models.local.weights import megabytes
from talaria.models.settings import LOCAL

KEY = "Ctrl-G"
LOOK_SECONDS = 1.0  # between two looks at a download
_NEW = "/new"


class LargerOffer:
    """Fetches the larger model when the key is pressed, and knows how far it is.

    `open` returns it; its requests end with the `async with` block. The download goes on in the gateway.
    """

    def __init__(
        self, client: GatewayClient, larger: LargerModel, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._client = client
        self._larger = larger
        self._look_seconds = look_seconds
        self._switch = _NEW
        self._trouble = ""
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_withdrawn = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls, client: GatewayClient, larger: LargerModel, look_seconds: float = LOOK_SECONDS
    ) -> AsyncIterator[Self]:
        offer = cls(client, larger, look_seconds)
        if larger.state is LargerState.FETCHING:
            offer._watch(is_wanted=False)
        elif larger.state is LargerState.READY:
            await offer._choose_switch()
        try:
            yield offer
        finally:
            tasks = [task for task in (offer._watching, offer._looking) if task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def line(self) -> str:
        """Return the line above the prompt; empty if nothing is offered."""
        larger = self._larger
        if self._is_withdrawn:
            return ""
        match larger.state:
            case LargerState.REFUSED:
                return ""
            case LargerState.FETCHING:
                done, left = f"{megabytes(larger.done)}/{megabytes(larger.size)} MB", larger.seconds_left
                return f"Fetching the larger model: {done}" + (f", {format_wait(left)} left" if left else "")
            case LargerState.READY:
                how = "begins a new session with it" if self._switch == _NEW else "uses it in this session"
                return f"The larger model is here. {KEY} {how}."
        why = self._trouble or larger.why
        cost = f"{larger.size / 1e9:.1f} GB download, {larger.memory / 1e9:.0f} GB of memory"
        return f"{why} {KEY} tries again." if why else f"{KEY}: use the larger model ({cost})"

    async def press(self) -> str | None:
        """Handle the key. Returns a message for the chat to send, if there is one.

        There is none if another model was configured meanwhile: the line then says what the key does now.
        """
        if self._is_withdrawn:
            return None
        if self._larger.state is LargerState.READY:
            promised = self._switch
            await self._look_at_switch()
            return self._switch if self._switch == promised else None
        if self._larger.state is LargerState.ABSENT and (self._watching is None or self._watching.done()):
            self._watch(is_wanted=True)
        return None

    def note(self, text: str) -> None:
        """Take in a message that the person sends: a new session may have another model than the tiny one,
        and `/model NAME` chooses one. Nothing is offered then."""
        command, _, name = text.strip().partition(" ")
        if command in (_NEW, "/reset"):
            self._looking = asyncio.create_task(self._look_at_usual(), name="usual model")
        elif command == "/model" and name.strip():
            self._is_withdrawn = True
        elif self._larger.state is LargerState.READY:
            self._looking = asyncio.create_task(self._look_at_switch(), name="switch to the larger model")

    async def _look_at_switch(self) -> None:
        with contextlib.suppress(TalariaError):  # the gateway restarts: the offer stays as it is
            await self._choose_switch()

    async def _look_at_usual(self) -> None:
        with contextlib.suppress(TalariaError):  # the offer stays as it is
            self._is_withdrawn = not (await self._usual()).startswith(f"{LOCAL}/")

    async def _usual(self) -> str:
        """Return the model of new sessions."""
        return next((name for name in await self._client.models() if "/" in name), "")

    def is_taken_by(self, text: str) -> bool:
        """Return whether this message changes to the larger model."""
        return self._larger.state is LargerState.READY and text.strip() in (self._switch, "/reset")

    def _watch(self, *, is_wanted: bool) -> None:
        self._watching = asyncio.create_task(self._follow(is_wanted=is_wanted), name="larger model")

    async def _follow(self, *, is_wanted: bool) -> None:
        """Start the download if it is wanted, then look how far it is until it ends."""
        self._trouble = ""
        try:
            if is_wanted:
                self._larger = await self._client.fetch_model(self._larger.name)
        except TalariaError as error:
            self._trouble = error.user_text
        while self._larger.state is LargerState.FETCHING:
            await asyncio.sleep(self._look_seconds)
            with contextlib.suppress(TalariaError):  # the gateway restarts: it is asked again
                larger = await self._client.larger_model()
                if larger.state is LargerState.READY:
                    await self._choose_switch()
                self._larger = larger

    async def _choose_switch(self) -> None:
        """New sessions get the larger model, unless the configuration names another one."""
        model = f"{LOCAL}/{self._larger.name}"
        self._switch = _NEW if await self._usual() == model else f"/model {model}"
