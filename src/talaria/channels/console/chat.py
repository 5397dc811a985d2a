"""The terminal chat: a prompt, one turn at a time, and what happens when the gateway goes away meanwhile."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from pathlib import Path

import msgspec

from talaria.channels.console.client import GatewayClient, GatewayGone, Patience
from talaria.channels.console.prompt import Interrupted, Lines
from talaria.channels.console.render import TurnView, error_text
from talaria.commands.slash import parse_command
from talaria.core.errors import TalariaError
from talaria.core.events import FINAL_EVENTS, Event, Failed

_VERB = re.compile(r"`talaria (\w+)")


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat is held with. `views` makes the view of one turn, `say` prints a line of the chat's own,
    `guard` is held while a turn is on the screen."""

    lines: Lines
    views: Callable[[bool], TurnView]
    say: Callable[[str], None]
    guard: Callable[[], AbstractContextManager[None]] = nullcontext


class Chat:
    """`command_line` is how a person runs a verb of this program here, `files` go with the first message.

    Ctrl-C cancels the running turn; a second one stops waiting for it, and its reply is shown before the next
    message is sent. Nothing but leaving the prompt ends the chat.
    """

    def __init__(
        self,
        client: GatewayClient,
        session: str,
        screen: Screen,
        command_line: Callable[[str], str] = "talaria {}".format,
        files: tuple[Path, ...] = (),
    ) -> None:
        self._client = client
        self._session = session
        self._screen = screen
        self._command_line = command_line
        self._files = files
        self._running: _Exchange | None = None
        self._unread: list[str] = []  # turns whose reply has not been shown

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_sigint)
        try:
            await self._read_and_answer()
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _read_and_answer(self) -> None:
        was_interrupted = False
        while True:
            try:
                text = await self._screen.lines.read()
            except Interrupted:
                if was_interrupted:
                    return
                was_interrupted = True
                self._screen.say("Press Ctrl-C again or Ctrl-D to leave.")
                continue
            was_interrupted = False
            if text is None:
                return
            if text.strip():
                await self._exchange(text)

    def _on_sigint(self) -> None:
        """While nothing runs, Ctrl-C is a key of the prompt."""
        if self._running is not None:
            self._running.interrupt()

    async def _exchange(self, text: str) -> None:
        """Send one message and show its reply; an error ends the exchange, never the chat."""
        for turn_id in list(self._unread):
            self._screen.say("The reply to your earlier message:")
            await self._watch(_Exchange(self._client, self._screen.views(False), self._command_line, turn_id))
        is_command = parse_command(text) is not None
        exchange = _Exchange(self._client, self._screen.views(is_command), self._command_line)
        exchange.message = (self._session, text, secrets.token_hex(16))
        if not is_command:
            exchange.files, self._files = self._files, ()
        await self._watch(exchange)

    async def _watch(self, exchange: _Exchange) -> None:
        task = asyncio.create_task(exchange.run(), name="chat exchange")
        self._running = exchange
        try:
            with self._screen.guard():
                await asyncio.wait((task,))
        finally:
            self._running = None
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        turn_id = exchange.turn_id
        if turn_id in self._unread:
            self._unread.remove(turn_id)
        if turn_id and not exchange.is_settled:
            self._unread.append(turn_id)
        if not task.cancelled():
            task.result()


class _Exchange:
    """One message on its way: sent, followed, cancelled."""

    def __init__(
        self,
        client: GatewayClient,
        view: TurnView,
        command_line: Callable[[str], str],
        turn_id: str = "",
    ) -> None:
        self._client = client
        self._view = view
        self._command_line = command_line
        self._task: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self.message: tuple[str, str, str] | None = None
        self.files: tuple[Path, ...] = ()
        self.turn_id = turn_id
        self.is_settled = False
        self._is_gone = False

    async def run(self) -> None:
        patience = Patience(math.inf, on_gone=self._gone, on_back=self._back)
        self._task = asyncio.current_task()
        self._view.open()
        try:
            if self.message is not None:
                name, text, key = self.message
                files = [await self._client.upload(path, patience) for path in self.files]
                sent = await self._client.send(name, text, key, files=files, patience=patience)
                self.turn_id = sent.turn_id
            async with aclosing(self._client.follow(self.turn_id, patience)) as events:
                async for event in events:
                    self.is_settled = isinstance(event, FINAL_EVENTS)
                    self._view.show(self._typable(event))
                    if isinstance(event, Failed):
                        self._view.notice(f"  ({self._command_line(f'why {self.turn_id}')})")
        except TalariaError as error:
            self.is_settled = True
            self._view.notice(error_text(error.info()))
        finally:
            if self._cancelling is not None:
                self._cancelling.cancel()
            self._view.close()

    def _typable(self, event: Event) -> Event:
        """Errors name commands as `talaria VERB`; here they become what can be typed."""
        if not isinstance(event, Failed):
            return event
        hint = _VERB.sub(lambda match: f"`{self._command_line(match[1])}", event.error.hint)
        return Failed(msgspec.structs.replace(event.error, hint=hint))

    def interrupt(self) -> None:
        """Ctrl-C: first cancel the turn, then stop waiting for its end."""
        if self._task is None or self._task.done():
            return
        if self._is_gone or self._cancelling is not None or not self.turn_id:
            accepted = "Its reply is shown with your next message." if self.turn_id else "It was not sent."
            self._view.notice(f"No longer waiting. {accepted}")
            self._task.cancel()
            return
        self._view.notice("Cancelling… (Ctrl-C again stops waiting)")
        self._cancelling = asyncio.create_task(self._cancel(), name="chat cancel")

    async def _cancel(self) -> None:
        try:
            await self._client.cancel(self.turn_id)
        except GatewayGone:
            pass  # the follower says so
        except TalariaError as error:
            self._view.notice(error_text(error.info()))

    def _gone(self, error: GatewayGone) -> None:
        self._is_gone = True
        what = "Your message is safe and" if self.turn_id else "Your message"
        self._view.pause(
            f"{error.user_text} {what} goes on as soon as it is back; start it with "
            f"`{self._command_line('serve')}`."
        )

    def _back(self) -> None:
        self._is_gone = False
        self._view.resume("The gateway is back.")
