"""`talaria chat`: a prompt, one turn at a time, across restarts of the gateway."""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from talaria.commands.command import parse_command
from talaria.console.deciding_keys import OpenQuestions
from talaria.console.gateway_client import GatewayBusy, GatewayClient, GatewayGone, RetryPolicy
from talaria.core.entries import Announcement, Entry
from talaria.core.errors import TalariaError
from talaria.core.events import FINAL_EVENTS, Done, Event, Failed, describe, describe_error
from talaria.core.ids import SessionId
from talaria.core.messages import AssistantMessage, UserMessage
from talaria.core.program import typed
from talaria.core.tasks import Tasks, running, stop, wait_first
from talaria.operations.sessions import EntriesQuery, SessionKey, read_entries, show_session
from talaria.turns.slash import SLASH_COMMANDS, asks_model, canonical, is_control

# -- messages that come to a terminal chat outside of its turns -------------------------------------------


_EARLIER = 20  # entries that are looked at for messages that came before the chat was opened


class ChatNews:
    """Reads the log of the chat's session behind the last entry that it has seen."""

    def __init__(self, client: GatewayClient, session: str) -> None:
        self._client = client
        self._session = session
        self._id: SessionId | None = None
        self._seq = 0

    async def read(self) -> list[str]:
        """Return the messages that were sent since the last call; at the first call, those that nobody has
        answered. Raises `NotFound` before the chat's first message, and what the client raises."""
        session = await self._client.carry_out(show_session, SessionKey(self._session))
        head = int(session.revision.partition(".")[2])
        is_first = self._id is None
        if session.id != self._id:
            self._id, self._seq = session.id, max(0, head - _EARLIER) if is_first else 0
        texts: list[str] = []
        while self._seq < head:
            page = await self._client.carry_out(
                read_entries, EntriesQuery(x=session.id, after=str(self._seq))
            )
            for entry in page.entries:
                self._seq = entry.seq
                if isinstance(entry.body, Announcement):
                    texts.append(entry.body.text)
                elif is_first and _is_talk(entry):
                    texts.clear()
            if page.next is None:
                break
        return texts


def _is_talk(entry: Entry) -> bool:
    return isinstance(entry.body, UserMessage | AssistantMessage)


# -- `talaria chat`: a prompt, one turn at a time, across restarts of the gateway -------------------------


_NEWS_SECONDS = 3.0  # between two looks for messages outside of turns
_WAITS = "(it waits for the running turn)"
_MESSAGES = {"queue": _WAITS, "steer": "(the running turn reads it next)"}  # commands that send a message


class Interrupted(Exception):
    """Ctrl-C at an empty prompt."""


class MessageSource(Protocol):
    async def read(self, chat: TerminalChat) -> str | None:
        """Return the next line, or None at the end. Raises `Interrupted`."""
        ...


class TurnRenderer(Protocol):
    """Shows one turn, from `open` to `close`."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def show(self, event: Event) -> None: ...

    def notice(self, text: str) -> None:
        """Print a message of the program itself."""
        ...

    def attach(self, text: str) -> None:
        """Print where a file of the reply is."""
        ...

    def pause(self, text: str) -> None:
        """Print why no events come until `resume`."""
        ...

    def resume(self, text: str) -> None: ...


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """The chat's input and output.

    `renderer` returns a renderer for one turn; its argument is False for the answer of a command, which is no
    markdown. `say` prints a line of the chat itself. `announce` prints a message that came outside of turns;
    without it, such messages are not shown.
    """

    messages: MessageSource
    renderer: Callable[[bool], TurnRenderer]
    say: Callable[[str], None]
    announce: Callable[[str], None] | None = None


class TerminalChat:
    """Runs until its messages end. `files` are sent with the first message; `command_line` returns how a
    command of this program is typed.

    A line is a message. While a turn is shown, it decides an open question, or else is sent at once. The
    first Ctrl-C cancels the running turn. The second stops waiting for it; its reply is then shown before the
    next message is sent.
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
        self._shown: _ShownTurn | None = None
        self._unread: list[str] = []  # turns whose reply has not been shown
        # Turns that are shown after the running one, and whether their replies are markdown.
        self._waiting: list[tuple[str, bool]] = []
        self._talking: asyncio.Task[None] | None = None  # answers a message, and those that came meanwhile
        self._sending = Tasks()
        self._ends = 0  # times that Ctrl-D was pressed while a turn is shown
        self.questions = OpenQuestions(client, self._notice)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        try:
            async with running(self._watch_news(), name="chat news"):
                await self._read_lines()
            self._forget_talk()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            await stop(*self._sending, *([self._talking] if self._talking else []))

    async def until_idle(self) -> None:
        """Wait until no turn is shown."""
        if self._talking is not None:
            await asyncio.wait((self._talking,))

    async def until_wanted(self) -> None:
        """Wait until the next line would be a message that need not wait, or a decision."""
        await wait_first(self.until_idle(), self.questions.opened.wait())

    def interrupt(self) -> bool:
        """Pass Ctrl-C to the shown turn. Return False if there is none."""
        if self._shown is not None:
            self._shown.interrupt()
        return self._shown is not None

    def may_leave(self) -> bool:
        """Return whether Ctrl-D ends the chat. While a turn is shown, the second press does."""
        self._ends += 1
        if self._shown is None or self._ends > 1:
            return True
        self._screen.say("A turn is running. Ctrl-D again leaves, its reply is kept; Ctrl-C cancels it.")
        return False

    async def _watch_news(self) -> None:
        """Show what is sent to the chat outside of its turns, while none is shown."""
        if self._screen.announce is None:
            return
        news = ChatNews(self._client, self._session)
        while True:
            await self.until_idle()
            with suppress(TalariaError):  # no session yet, or no gateway, which the next turn tells
                for text in await news.read():
                    self._screen.announce(text)
            await asyncio.sleep(_NEWS_SECONDS)

    async def _read_lines(self) -> None:
        was_interrupted = False
        while True:
            try:
                text = await self._screen.messages.read(self)
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
                await self._take(text)

    async def _take(self, text: str) -> None:
        self._forget_talk()
        if await self.questions.decide(text):
            return
        if self._talking is None:
            self._talking = asyncio.create_task(self._talk(text), name="chat turns")
        else:
            self._sending.start(self._send_aside(text), "chat line")

    def _forget_talk(self) -> None:
        """Forget the turns that have been shown. Raises an error that none of them expected."""
        if self._talking is not None and self._talking.done():
            ended, self._talking = self._talking, None
            ended.result()

    async def _talk(self, text: str) -> None:
        """Answer a message, then show the turns of messages that were sent meanwhile."""
        await self._answer(text)
        while True:
            if self._sending:
                await asyncio.wait(self._sending)
            if not self._waiting:
                return
            turn_id, is_markdown = self._waiting.pop(0)
            await self._show(self._turn(self._screen.renderer(is_markdown), turn_id))

    def _notice(self, text: str) -> None:
        if self._shown is None:
            self._screen.say(text)
        else:
            self._shown.renderer.notice(text)

    async def _send_aside(self, text: str) -> None:
        """Send a message beside the running turn. A command that need not wait is answered here."""
        command = parse_command(text)
        name = command.name if command is not None else ""
        is_message = command is None or (command.name in _MESSAGES and command.args)
        try:
            sent = await self._client.send(self._session, text, secrets.token_hex(16))
            if is_message or not is_control(name):
                self._waiting.append((sent.turn_id, bool(is_message) or asks_model(name)))
                self._screen.say(_MESSAGES.get(name, _WAITS))
                return
            async with aclosing(self._client.follow(sent.turn_id)) as events:
                async for event in events:
                    if isinstance(event, Done):
                        self._screen.say(event.reply)
                    elif isinstance(event, Failed):
                        self._screen.say(describe(event))
        except TalariaError as error:
            self._screen.say(describe_error(error.info()))

    def _turn(self, renderer: TurnRenderer, turn_id: str = "") -> _ShownTurn:
        return _ShownTurn(self._client, renderer, self._command_line, self.questions, turn_id)

    async def _answer(self, text: str) -> None:
        """Send one message and show its reply. An error is shown and does not end the chat."""
        for turn_id in list(self._unread):
            self._screen.say("The reply to your earlier message:")
            await self._show(self._turn(self._screen.renderer(True), turn_id))
        command = parse_command(text)
        name = command.name if command is not None else ""
        # A name that is not built in may be a skill's, which the model answers.
        renderer = self._screen.renderer(asks_model(name) or canonical(name) not in SLASH_COMMANDS)
        turn = self._turn(renderer)
        turn.message = (self._session, text, secrets.token_hex(16))
        if command is None:
            turn.files, self._files = self._files, ()
        await self._show(turn)

    async def _show(self, turn: _ShownTurn) -> None:
        task = asyncio.create_task(turn.run(), name="chat turn")
        self._shown, self._ends = turn, 0
        try:
            await asyncio.wait((task,))
        finally:
            self._shown = None
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if turn.turn_id in self._unread:
            self._unread.remove(turn.turn_id)
        if turn.turn_id and not turn.is_settled:
            self._unread.append(turn.turn_id)
        if not task.cancelled():
            task.result()


class _ShownTurn:
    """A turn of the chat: its message is sent unless it has a `turn_id`, then its events are shown."""

    def __init__(
        self,
        client: GatewayClient,
        renderer: TurnRenderer,
        command_line: Callable[[str], str],
        questions: OpenQuestions,
        turn_id: str = "",
    ) -> None:
        self._client = client
        self.renderer = renderer
        self._questions = questions
        self._command_line = command_line
        self._task: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._is_gone = False
        self.message: tuple[str, str, str] | None = None
        self.files: tuple[Path, ...] = ()
        self.turn_id = turn_id
        self.is_settled = False

    async def run(self) -> None:
        retry = RetryPolicy(math.inf, on_gone=self._on_gone, on_back=self._on_back)
        self._task = asyncio.current_task()
        self.renderer.open()
        try:
            if self.message is not None:
                name, text, key = self.message
                files = [await self._client.upload(path, retry) for path in self.files]
                sent = await self._client.send(name, text, key, files=files, retry=retry)
                self.turn_id = sent.turn_id
            async with aclosing(self._client.follow(self.turn_id, retry)) as events:
                async for event in events:
                    self.is_settled = isinstance(event, FINAL_EVENTS)
                    self.renderer.show(self._as_typed(event))
                    self._questions.take(event)
                    if isinstance(event, Done) and event.files:
                        for line in await self._client.describe_files(self.turn_id, event.files):
                            self.renderer.attach(line)
                    if isinstance(event, Failed):
                        self.renderer.notice(f"  ({self._command_line(f'why {self.turn_id}')})")
        except TalariaError as error:
            self.is_settled = True
            self.renderer.notice(describe_error(error.info()))
        finally:
            if self._cancelling is not None:
                self._cancelling.cancel()
            self._questions.clear()
            self.renderer.close()

    def _as_typed(self, event: Event) -> Event:
        """Replace `talaria COMMAND` in the hint of an error by what can be typed here."""
        if not isinstance(event, Failed):
            return event
        hint = typed(event.error.hint, self._command_line)
        return Failed(msgspec.structs.replace(event.error, hint=hint))

    def interrupt(self) -> None:
        """Handle Ctrl-C: cancel the turn; the second time, stop waiting for its end."""
        if self._task is None or self._task.done():
            return
        if self._is_gone or self._cancelling is not None or not self.turn_id:
            rest = "Its reply is shown with your next message." if self.turn_id else "It was not sent."
            self.renderer.notice(f"No longer waiting. {rest}")
            self._task.cancel()
            return
        self.renderer.notice("Cancelling… (Ctrl-C again stops waiting)")
        self._cancelling = asyncio.create_task(self._cancel(), name="chat cancel")

    async def _cancel(self) -> None:
        try:
            await self._client.cancel(self.turn_id)
        except GatewayGone:
            pass  # `run` says so
        except TalariaError as error:
            self.renderer.notice(describe_error(error.info()))

    def _on_gone(self, error: GatewayGone) -> None:
        self._is_gone = True
        if isinstance(error, GatewayBusy):
            self.renderer.pause(f"{error.user_text} Your message is sent again by itself.")
            return
        what = "Your message is safe and" if self.turn_id else "Your message"
        serve = self._command_line("serve")
        self.renderer.pause(
            f"{error.user_text} {what} continues as soon as it is back; start it with `{serve}`."
        )

    def _on_back(self) -> None:
        self._is_gone = False
        self.renderer.resume("The gateway is back.")
