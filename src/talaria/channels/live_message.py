"""A running turn as one message, which is edited and becomes the reply; `ChatOutlet`, which shows it."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from talaria.channels.pieces import tail
from talaria.channels.questions import ANSWER_COMMAND, QuestionBoard
from talaria.core.clock import Clock
from talaria.core.delegates import delegate_path
from talaria.core.delivery import (
    DeliveryDelayed,
    DeliveryError,
    DeliveryRefused,
    OutgoingMessage,
)
from talaria.core.events import (
    DelegateChanged,
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
from talaria.core.ids import DelegateId
from talaria.core.messages import ToolOutcome
from talaria.core.tasks import running
from talaria.core.text import clean_line
from talaria.core.turns import TurnState
from talaria.turns.delivery import ShownTurn

_log = logging.getLogger("talaria.channels")

REPEATED = "↻ sent again, the first try may have arrived"
CURSOR = " ▌"
WAITS = "⏸ Waits for a decision."
QUEUED_SECONDS = 1.0
FIRST_SECONDS = 0.7  # a turn that ends sooner gets no live message
LONG_SECONDS = 5.0  # a tool that runs for longer is shown with its time
_MAX_SHOWN = 3000
_MAX_KEPT = 32 << 10  # of a running turn's text: the more, the rarer it is cut
_MAX_LINES = 12
_MAX_OUTPUT = 72
_OUTPUT_ROWS = 8  # among which the last one that is not blank is shown


class ChatOutlet(ABC):
    """The `turns.delivery.Outlet` of a chat platform. The subclass sends and edits messages, and this class
    shows running turns with them.

    `longest` is the length of the longest message, and `typing_seconds` how long a call of `type_in` shows.
    Without `has_buttons`, a message says what to write in place of each button.
    """

    takes_nonce = False
    has_buttons = True
    longest: int
    typing_seconds = 4.5

    def __init__(self, clock: Clock, progress: str) -> None:
        self.clock = clock
        self._progress = progress

    @abstractmethod
    def split(self, reply: str, address: str) -> Iterator[str]: ...

    @abstractmethod
    async def deliver(self, post: OutgoingMessage) -> str: ...

    @abstractmethod
    async def type_in(self, address: str) -> None:
        """Show for a moment that the bot types. Raises `DeliveryError`."""

    @abstractmethod
    def edit_pause(self, address: str) -> float:
        """Return the seconds between two edits that the platform allows at the address."""

    @abstractmethod
    def max_file(self, address: str) -> int:
        """Return the size in bytes of the largest file that the platform takes at the address."""

    def fitting(self, post: OutgoingMessage) -> OutgoingMessage:
        """Return the message as the platform takes it: with a note in place of a file that is empty or too
        large for its address, and with lines in place of buttons if there are none."""
        if post.buttons and not self.has_buttons:
            # The choices of a question are numbered in its text already.
            typed = [each for each in post.buttons if not each.command.startswith(f"{ANSWER_COMMAND} ")]
            lines = "\n".join(f"- {each.label}: `{each.command}`" for each in typed)
            post = msgspec.structs.replace(post, buttons=(), body=f"{post.body}\n\n{lines}".strip())
        if post.file is None or 0 < len(post.file.data) <= (limit := self.max_file(post.address)):
            return post
        why = "is empty"
        if size := len(post.file.data):
            size_mb, limit_mb = f"{size / (1 << 20):.1f} MB", f"{limit >> 20} MB"
            why = f"has {size_mb} and is too large for this chat, which takes {limit_mb}"
        note = f"[The file {post.file.name} {why}. It is in the chat's folder.]"
        return msgspec.structs.replace(post, file=None, body=f"{post.body}\n\n{note}".strip())

    async def show(self, view: ShownTurn) -> None:
        """Show the turn until its last event. On cancellation, a message that is being sent is awaited, so
        that the reply can take its place."""
        text = LiveText(self._progress, self.clock.elapsed, min(_MAX_SHOWN, self.longest * 3 // 4))
        await LiveMessage(self, view, text).run()


class LiveText:
    """The text of the live message. `brief`: the text so far, or the running tool. `full`: all tools too.

    A tool that runs for long is shown with its time, by the clock `now`."""

    def __init__(
        self, mode: str, now: Callable[[], float] = time.monotonic, max_shown: int = _MAX_SHOWN
    ) -> None:
        self._mode = mode
        self._now = now
        self._max_shown = max_shown
        self._pieces: list[str] = []  # of the text
        self._length = 0  # of the pieces
        self._is_blank = True
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._loading = ""
        self._started: float | None = None  # of the running tool
        self._delegates: dict[DelegateId, str] = {}  # of the running tool
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
            case DelegateChanged():
                self._delegates[event.delegate_id] = describe(event)
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
            self._pieces = ["".join(self._pieces)[-self._max_shown - 1 :]]
            self._length = len(self._pieces[0])
        return not self._is_blank

    def _end_tool(self) -> None:
        self._delegates.clear()
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
        lines += [self._delegates[key] for key in sorted(self._delegates, key=delegate_path)[:_MAX_LINES]]
        # In backticks, so that markdown leaves the lines alone.
        tools = "\n".join("`" + line.replace("`", "'") + "`" for line in lines)
        while len(tools) > self._max_shown // 2:
            tools = tools.partition("\n")[2]
        room = self._max_shown - len(tools)
        parts = [self._loading, tools, tail("".join(self._pieces).strip("\n"), room)]
        return "\n\n".join(part for part in parts if part.strip()) + CURSOR


class LiveMessage:
    """Shows one turn. Sends at most one message: if it is unknown whether that arrived, no other is sent."""

    def __init__(self, outlet: ChatOutlet, view: ShownTurn, text: LiveText) -> None:
        self._outlet = outlet
        self._clock = outlet.clock
        self._address = view.turn.inbound.address or ""
        self._view = view
        self._text = text
        self._board = QuestionBoard(outlet, outlet.clock, self._address, view)
        self._changed = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            async with running(self._pulse(), self._draw(), name="live message"):
                async for event in self._view.events():
                    if self._text.take(event):
                        self._changed.set()
                    await self._board.take(event)
        finally:
            if self._sending is not None:
                await asyncio.gather(self._sending, return_exceptions=True)

    async def _pulse(self) -> None:
        """Type, and draw again while a tool runs for long, because its time is shown."""
        is_typing = True
        while True:
            if self._view.turn.state is not TurnState.RUNNING:  # an earlier turn of the chat is typing
                await self._clock.sleep(QUEUED_SECONDS)
                continue
            try:
                if is_typing:
                    await self._outlet.type_in(self._address)
            except DeliveryRefused:
                is_typing = False
            except DeliveryDelayed as error:
                await self._clock.sleep(error.retry_after or 0)
            except DeliveryError:
                pass  # the next call may succeed
            await self._clock.sleep(self._outlet.typing_seconds)
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
            self._sending = asyncio.create_task(self._put(), name="live message put")
            await asyncio.wait((self._sending,))
            pause = self._outlet.edit_pause(self._address)
            try:
                self._sending.result()
            except DeliveryDelayed as error:
                if error.retry_after is not None:
                    self._changed.set()
                    pause = error.retry_after
            except DeliveryError as error:
                if isinstance(error, DeliveryRefused) or self._view.shown_id is None:
                    _log.info("a running turn is not shown: %s", error.user_text)
                    return
            await self._clock.sleep(pause)

    async def _put(self) -> None:
        if not self._view.is_ours:
            return
        shown_id = self._view.shown_id
        if shown_id is None and not await self._view.is_next():
            self._changed.set()  # look again after the pause
            return
        nonce = f"{self._view.turn.id}.live"
        sent = await self._outlet.deliver(
            OutgoingMessage(self._address, self._text.body(), nonce, edits=shown_id)
        )
        if sent != shown_id:
            hit(Failpoint.SHOWN)
            await self._view.shown(sent)
