"""The live view of a running turn: typing, and one message that is edited at a pace the platform bears."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from talaria.channels.console.clean import describe_call
from talaria.channels.telegram.client import BotApi, BotApiError, Refused, Value
from talaria.channels.telegram.parse import Place
from talaria.channels.telegram.render import tail, to_html
from talaria.channels.telegram.wire import Sent
from talaria.core.clock import Clock
from talaria.core.events import Delta, Event, ModelLoading, Reset, ToolFinished, ToolStarted
from talaria.core.failpoints import Failpoint, hit
from talaria.core.messages import ToolOutcome
from talaria.core.ports import TurnFeed
from talaria.core.turns import TurnState

_log = logging.getLogger("talaria.telegram")

CURSOR = " ▌"
TYPING_SECONDS = 4.5  # Telegram shows it for five
QUEUED_SECONDS = 1.0
FIRST_SECONDS = 0.7  # what is answered sooner needs no live message
PRIVATE_SECONDS = 1.5  # between two edits: a private chat takes one message a second
GROUP_SECONDS = 4.0  # and a group 20 a minute
_MAX_SHOWN = 3000
_MAX_LINES = 12


class Progress:
    """What of a turn is shown now. `brief`: the text so far, or the tool that runs. `full`: all tools too."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._text = ""
        self._lines: list[str] = []
        self._loading = ""

    def take(self, event: Event) -> bool:
        """Whether there is something new to show."""
        if self._mode == "off":
            return False
        match event:
            case ModelLoading() if not self._loading and event.is_on_its_way:
                self._loading = event.sentence()  # once: nobody wants a message edited for minutes
                return True
            case Delta(text=text):
                self._loading = ""
                self._text += text
                return bool(self._text.strip())
            case ToolStarted(name=name, arguments=arguments):
                self._loading = ""
                if self._mode == "brief":
                    self._lines, self._text = [], ""
                self._lines.append(f"⚙ {describe_call(name, arguments)}")
                return True
            case ToolFinished(name=name, outcome=outcome) if outcome is not ToolOutcome.OK:
                self._lines.append(f"⚠ {name}: {outcome}")
                return True
            case Reset():
                self._text, self._lines, self._loading = "", [], ""
        return False

    def body(self) -> str:
        tools = "\n".join(_literal(line) for line in self._lines[-_MAX_LINES:])
        parts = [self._loading, tools, tail(self._text.strip("\n"), _MAX_SHOWN)]
        return "\n\n".join(part for part in parts if part.strip()) + CURSOR


class LiveMessage:
    """Runs for one turn. It sends at most one message; if nobody can tell whether that arrived, no other."""

    def __init__(self, api: BotApi, clock: Clock, place: Place, view: TurnFeed, progress: str) -> None:
        self._api = api
        self._clock = clock
        self._place = place
        self._view = view
        self._pause = PRIVATE_SECONDS if place.chat > 0 else GROUP_SECONDS
        self._progress = Progress(progress)
        self._news = asyncio.Event()
        self._on_its_way: asyncio.Task[None] | None = None

    async def run(self) -> None:
        tasks = [
            asyncio.create_task(self._type(), name="telegram typing"),
            asyncio.create_task(self._draw(), name="telegram live message"),
        ]
        try:
            async for event in self._view.events():
                if self._progress.take(event):
                    self._news.set()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._on_its_way is not None:
                await asyncio.gather(self._on_its_way, return_exceptions=True)

    async def _type(self) -> None:
        params: dict[str, Value] = {"chat_id": self._place.chat, "message_thread_id": self._place.thread}
        while True:
            if self._view.turn.state is not TurnState.RUNNING:  # the turn before it is typing already
                await self._clock.sleep(QUEUED_SECONDS)
                continue
            try:
                await self._api.call("sendChatAction", bool, action="typing", **params)
            except Refused as refusal:
                if refusal.code != 429:
                    return
                await self._clock.sleep(refusal.retry_after or TYPING_SECONDS)
            except BotApiError:
                pass  # the next one may get through
            await self._clock.sleep(TYPING_SECONDS)

    async def _draw(self) -> None:
        await self._news.wait()
        if self._view.shown_id is None:
            await self._clock.sleep(FIRST_SECONDS)
        while True:
            await self._news.wait()
            self._news.clear()
            # In a task of its own: whoever cancels this one must still learn the message's id.
            self._on_its_way = asyncio.create_task(self._put(), name="telegram live put")
            await asyncio.wait((self._on_its_way,))
            try:
                pause = self._pause
                self._on_its_way.result()
            except Refused as refusal:
                if refusal.code != 429:
                    _log.info("a running turn is not shown: %s", refusal.user_text)
                    return
                self._news.set()
                pause = refusal.retry_after or self._pause
            except BotApiError as error:
                if self._view.shown_id is None:
                    _log.info("a running turn is not shown: %s", error.user_text)
                    return
            await self._clock.sleep(pause)

    async def _put(self) -> None:
        body = self._progress.body()
        shown_id = self._view.shown_id
        text: dict[str, Value] = {"text": to_html(body), "parse_mode": "HTML"}
        if shown_id is None:
            sent = await self._api.call("sendMessage", Sent, **target(self._place), **text)
            hit(Failpoint.SHOWN)
            await self._view.shown(str(sent.message_id))
            return
        try:
            place: dict[str, Value] = {"chat_id": self._place.chat, "message_id": int(shown_id)}
            await self._api.call("editMessageText", msgspec.Raw, **place, **text)
        except Refused as refusal:
            if not refusal.says("message is not modified"):
                raise


def target(place: Place) -> dict[str, Value]:
    """Where a new message goes. One whose question was deleted meanwhile is no reply."""
    params: dict[str, Value] = {"chat_id": place.chat, "message_thread_id": place.thread}
    if place.reply_to is not None:
        params["reply_parameters"] = {"message_id": place.reply_to, "allow_sending_without_reply": True}
    return params


def _literal(line: str) -> str:
    """A line that markdown leaves alone."""
    return "`" + line.replace("`", "'") + "`"
