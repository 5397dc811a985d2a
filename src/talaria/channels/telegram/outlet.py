"""Output to Telegram's chats: replies (`turns.outlet.Outlet`), and one message that shows a running turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from talaria.channels.telegram.bot_api import (
    BotApi,
    BotApiError,
    BotApiRefused,
    BotApiUnanswered,
    BotApiUnreachable,
    PostedMessage,
    Value,
)
from talaria.channels.telegram.parse import ChatTarget, keyboard_params
from talaria.channels.telegram.questions import QuestionBoard
from talaria.channels.telegram.render import (
    MAX_CAPTION,
    Hosts,
    refused_addresses,
    shorten,
    split,
    tail,
    to_html,
)
from talaria.core.clock import Clock
from talaria.core.delivery import Button, DeliveryDelayed, DeliveryRefused, DeliveryUnknown, OutgoingMessage
from talaria.core.events import (
    Delta,
    Event,
    ModelLoading,
    OutputTail,
    QuestionAsked,
    QuestionDecided,
    Queued,
    Reset,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    describe,
    is_failure,
)
from talaria.core.failpoints import Failpoint, hit
from talaria.core.messages import ToolOutcome
from talaria.core.tasks import running
from talaria.core.text import clean_line
from talaria.core.turns import TurnState
from talaria.turns.delivery import ShownTurn

_log = logging.getLogger("talaria.telegram")

REPEATED = "↻ sent again, the first try may have arrived"
CURSOR = " ▌"
WAITS = "⏸ Waits for a decision."
PULSE_SECONDS = 4.5  # Telegram shows for five that the bot types
QUEUED_SECONDS = 1.0
FIRST_SECONDS = 0.7  # a turn that ends sooner gets no live message
PRIVATE_SECONDS = 1.5  # between two edits: Telegram allows a private chat one message a second
GROUP_SECONDS = 4.0  # and a group 20 a minute
LONG_SECONDS = 5.0  # a tool that runs for longer is shown with its time
_MAX_SHOWN = 3000
_MAX_KEPT = 32 << 10  # of a running turn's text: the more, the rarer it is cut
_MAX_LINES = 12
_MAX_OUTPUT = 72
_OUTPUT_ROWS = 8  # among which the last one that is not blank is shown
_PHOTOS = (".jpg", ".jpeg", ".png", ".webp")
_VOICES = (".ogg", ".oga", ".opus")
_MAX_PHOTO = 10 << 20

_T_co = TypeVar("_T_co", covariant=True)


class TelegramOutlet:
    """Sends and edits messages. `on_moved` is called when Telegram says that a chat has another id; the
    message is then sent there."""

    takes_nonce = False

    def __init__(
        self,
        api: BotApi,
        clock: Clock,
        progress: str,
        on_moved: Callable[[int, int], Awaitable[None]],
        own: Hosts = frozenset(),
    ) -> None:
        """`own` are the gateway's own hosts; addresses of theirs are no links."""
        self._api = api
        self._clock = clock
        self._progress = progress
        self._own = own
        self._on_moved = on_moved

    def split(self, reply: str, address: str) -> Iterator[str]:
        return split(reply)

    async def deliver(self, post: OutgoingMessage) -> str:
        try:
            target = ChatTarget.read(post.address)
        except ValueError:
            raise DeliveryRefused(f"{post.address!r} is no address of a Telegram chat.") from None
        try:
            return await self._deliver(target, post)
        except _ChatMoved as moved:
            await self._on_moved(target.chat, moved.to)
            return await self._deliver(ChatTarget(moved.to), post)

    async def show(self, view: ShownTurn) -> None:
        """Show the turn until its last event. On cancellation, a message that is being sent is awaited, so
        that the reply can take its place."""
        target = ChatTarget.read(view.turn.inbound.address or "")
        text = LiveText(self._progress, self._own, self._clock.elapsed)
        await LiveMessage(self._api, self._clock, target, view, text).run()

    async def _deliver(self, target: ChatTarget, post: OutgoingMessage) -> str:
        if post.file is not None:
            return await self._send_file(target, post)
        if post.edits is not None and await self._edit(target, post):
            return post.edits
        return await self._send(target, post)

    async def _send(self, target: ChatTarget, post: OutgoingMessage) -> str:
        params = {**target.params(), **_keyboard(post.buttons)}

        async def send(text: str, **form: Value) -> PostedMessage:
            return await self._api.call("sendMessage", PostedMessage, text=text, **form, **params)

        body = f"{REPEATED}\n\n{post.body}" if post.is_repeat else post.body
        with _as_delivery_error(is_edit=False):
            return str((await _with_formatting(send, body, self._own)).message_id)

    async def _edit(self, target: ChatTarget, post: OutgoingMessage) -> bool:
        """Return False if the message to edit is gone."""

        async def edit(text: str, **form: Value) -> None:
            form |= _keyboard(post.buttons)
            await self._api.edit(target.chat, post.edits or "0", text=text, **form)

        with _as_delivery_error(is_edit=True):
            try:
                await _with_formatting(edit, post.body, self._own)
            except BotApiRefused as refusal:
                if refusal.says("message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID"):
                    return False
                raise
        return True

    async def _send_file(self, target: ChatTarget, post: OutgoingMessage) -> str:
        assert post.file is not None
        file = (post.file.name, post.file.data)
        kind = _file_kind(*file)
        params = {**target.params(), **_keyboard(post.buttons)}

        async def upload(text: str, entities: Value = None, **form: Value) -> PostedMessage:
            method = f"send{kind.capitalize()}"
            form |= {"caption": text or None, "caption_entities": entities}
            return await self._api.upload(method, PostedMessage, kind, file, **form, **params)

        body = f"{REPEATED}\n{post.body}" if post.is_repeat else post.body
        caption = shorten(body, MAX_CAPTION)
        with _as_delivery_error(is_edit=False):
            try:
                sent = await _with_formatting(upload, caption, self._own)
            except BotApiRefused as refusal:
                if kind == "document" or not refusal.says("PHOTO", "IMAGE", "VOICE"):
                    raise
                kind = "document"  # a file that Telegram does not accept as an image or a voice message
                sent = await _with_formatting(upload, caption, self._own)
        return str(sent.message_id)


class _ChatMoved(DeliveryRefused):
    def __init__(self, to: int) -> None:
        super().__init__(f"The chat has moved to {to}.")
        self.to = to


@contextmanager
def _as_delivery_error(*, is_edit: bool) -> Iterator[None]:
    """Raise the `DeliveryError` that says what is known of a failed call."""
    try:
        yield
    except BotApiUnreachable as error:
        raise DeliveryDelayed(error.user_text) from None
    except BotApiUnanswered as error:
        if is_edit and error.status is not None and error.status >= 500:
            raise DeliveryDelayed(error.user_text) from None
        raise DeliveryUnknown(error.user_text) from None
    except BotApiRefused as refusal:
        if refusal.moved_to is not None:
            raise _ChatMoved(refusal.moved_to) from None
        # A wrong token says nothing about the message: it waits for a right one, until it is too old.
        if refusal.code == 429 or refusal.is_about_token:
            raise DeliveryDelayed(refusal.user_text, retry_after=refusal.retry_after) from None
        raise DeliveryRefused(refusal.user_text) from None


class _Call(Protocol[_T_co]):
    def __call__(self, text: str, **form: Value) -> Awaitable[_T_co]: ...


async def _with_formatting(call: _Call[_T_co], body: str, own: Hosts) -> _T_co:
    """Call with the text as HTML; if Telegram refuses the formatting, call again with plain text."""
    try:
        return await call(to_html(body, own), parse_mode="HTML")
    except BotApiRefused as refusal:
        if not refusal.says("can't parse", "too long", "TOO_LONG", "text is empty"):
            raise
        entities: list[Any] = [*refused_addresses(body, own)]
        return await call(body, entities=entities or None)


def _file_kind(name: str, data: bytes) -> str:
    if name.lower().endswith(_PHOTOS) and len(data) <= _MAX_PHOTO:
        return "photo"
    return "voice" if name.lower().endswith(_VOICES) else "document"


def _keyboard(buttons: tuple[Button, ...]) -> dict[str, Value]:
    return keyboard_params(buttons, 3 if all(len(button.label) <= 16 for button in buttons) else 1)


# -- a running turn ---------------------------------------------------------------------------------------


class LiveText:
    """The text of the live message. `brief`: the text so far, or the running tool. `full`: all tools too.

    A tool that runs for long is shown with its time, by the clock `now`."""

    def __init__(
        self, mode: str, own: Hosts = frozenset(), now: Callable[[], float] = time.monotonic
    ) -> None:
        self._mode = mode
        self._now = now
        self._own = own
        self._pieces: list[str] = []  # of the text
        self._length = 0  # of the pieces
        self._is_blank = True
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._loading = ""
        self._started: float | None = None  # of the running tool
        self._output = OutputTail(_OUTPUT_ROWS, _MAX_OUTPUT)  # of the running tool

    def take(self, event: Event) -> bool:
        """Apply an event and return whether there is something new to show."""
        if self._mode == "off":
            return False
        match event:
            case ModelLoading() if not self._loading and event.is_on_its_way:
                self._loading = describe(event)  # once: the message is not edited for minutes
            case Delta(text=text):
                self._loading = ""
                return self._add(text)
            case ToolStarted():
                if self._mode == "brief":
                    self._clear()
                self._lines.append(describe(event))
                self._loading = ""
                self._end_tool()
                self._started = self._now()
            case ToolOutput(text=text):
                before = self._output.last()
                self._output.add(text[-_MAX_KEPT:])
                return self._output.last() != before
            case ToolFinished(name=name, outcome=outcome, note=note):
                self._end_tool()
                if outcome is ToolOutcome.OK and not is_failure(note):
                    return False
                about = clean_line(note) if outcome is ToolOutcome.OK else outcome
                self._lines.append(f"⚠ {clean_line(name)}: {about}")
            case QuestionAsked() | QuestionDecided() | Queued() if self._takes_wait(event):
                pass
            case _:
                if isinstance(event, Reset):
                    self._clear()
                    self._loading = ""
                    self._end_tool()
                return False
        return True

    @property
    def is_running_tool(self) -> bool:
        """Whether a tool has run for so long that its time is shown."""
        is_shown = self._mode != "off" and self._started is not None
        return is_shown and self._now() - (self._started or 0) >= LONG_SECONDS

    def _takes_wait(self, event: QuestionAsked | QuestionDecided | Queued) -> bool:
        """Note what the turn waits for, and return whether it waits for a person."""
        waits_for = event.waits_for if isinstance(event, Queued) else ""
        self._loading = WAITS if isinstance(event, QuestionAsked) else waits_for or ""
        return bool(self._loading)

    def _add(self, text: str) -> bool:
        """Add text and return whether there is more than blanks. Only the end of a long text is kept."""
        if text:
            self._pieces.append(text)
            self._length += len(text)
            self._is_blank = self._is_blank and text.isspace()
        if self._length > _MAX_KEPT:
            # A character more than is shown stays, so that `tail` marks the cut.
            self._pieces = ["".join(self._pieces)[-_MAX_SHOWN - 1 :]]
            self._length = len(self._pieces[0])
        return not self._is_blank

    def _end_tool(self) -> None:
        self._started = None
        self._output = OutputTail(_OUTPUT_ROWS, _MAX_OUTPUT)

    def _clear(self) -> None:
        self._lines.clear()
        self._pieces, self._length, self._is_blank = [], 0, True

    def body(self) -> str:
        lines, output = list(self._lines), self._output.last()
        if lines and self.is_running_tool and self._started is not None:
            lines[-1] += f" … {self._now() - self._started:.0f} s"
        lines += [f"… {clean_line(output, _MAX_OUTPUT)}"] if output else []
        # In backticks, so that markdown leaves the lines alone.
        tools = "\n".join("`" + line.replace("`", "'") + "`" for line in lines)
        parts = [self._loading, tools, tail("".join(self._pieces).strip("\n"), _MAX_SHOWN)]
        return "\n\n".join(part for part in parts if part.strip()) + CURSOR

    def html(self) -> str:
        return to_html(self.body(), self._own)


class LiveMessage:
    """Shows one turn. Sends at most one message: if it is unknown whether that arrived, no other is sent."""

    def __init__(
        self, api: BotApi, clock: Clock, target: ChatTarget, view: ShownTurn, text: LiveText
    ) -> None:
        self._api = api
        self._clock = clock
        self._target = target
        self._view = view
        self._pause = PRIVATE_SECONDS if target.chat > 0 else GROUP_SECONDS
        self._text = text
        self._board = QuestionBoard(api, clock, target, view)
        self._changed = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            async with running(self._pulse(), self._draw(), name="telegram live message"):
                async for event in self._view.events():
                    if self._text.take(event):
                        self._changed.set()
                    await self._board.take(event)
        finally:
            if self._sending is not None:
                await asyncio.gather(self._sending, return_exceptions=True)

    async def _pulse(self) -> None:
        """Type, and draw again while a tool runs for long, because its time is shown."""
        params: dict[str, Value] = {"chat_id": self._target.chat, "message_thread_id": self._target.thread}
        is_typing = True
        while True:
            if self._view.turn.state is not TurnState.RUNNING:  # an earlier turn of the chat is typing
                await self._clock.sleep(QUEUED_SECONDS)
                continue
            try:
                if is_typing:
                    await self._api.call("sendChatAction", bool, action="typing", **params)
            except BotApiRefused as refusal:
                is_typing = refusal.code == 429
                await self._clock.sleep(refusal.retry_after or 0)
            except BotApiError:
                pass  # the next call may succeed
            await self._clock.sleep(PULSE_SECONDS)
            if self._text.is_running_tool:
                self._changed.set()

    async def _draw(self) -> None:
        await self._changed.wait()
        if self._view.shown_id is None:
            await self._clock.sleep(FIRST_SECONDS)
        while True:
            await self._changed.wait()
            self._changed.clear()
            # A task of its own, because `run` needs the message's id even if this one is cancelled.
            self._sending = asyncio.create_task(self._put(), name="telegram live put")
            await asyncio.wait((self._sending,))
            try:
                pause = self._pause
                self._sending.result()
            except BotApiRefused as refusal:
                if refusal.code != 429:
                    _log.info("a running turn is not shown: %s", refusal.user_text)
                    return
                self._changed.set()
                pause = refusal.retry_after or self._pause
            except BotApiError as error:
                if self._view.shown_id is None:
                    _log.info("a running turn is not shown: %s", error.user_text)
                    return
            await self._clock.sleep(pause)

    async def _put(self) -> None:
        if not self._view.is_ours:
            return
        shown_id = self._view.shown_id
        text: dict[str, Value] = {"text": self._text.html(), "parse_mode": "HTML"}
        if shown_id is None:
            sent = await self._api.call("sendMessage", PostedMessage, **self._target.params(), **text)
            hit(Failpoint.SHOWN)
            await self._view.shown(str(sent.message_id))
        else:
            await self._api.edit(self._target.chat, shown_id, **text)
