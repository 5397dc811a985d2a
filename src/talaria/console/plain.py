"""Output without a full-screen terminal: one status line that is redrawn, and a turn as plain text."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Self, TextIO, TypeVar

import msgspec

from talaria.console.gateway_client import GatewayClient, GatewayRefusal, RetryPolicy
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.events import (
    Cancelled,
    DelegateChanged,
    Delta,
    Done,
    Event,
    Failed,
    FellBack,
    ModelLoading,
    OutputTail,
    QuestionAsked,
    Reset,
    Retrying,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    describe,
    describe_call,
)
from talaria.core.problems import Do
from talaria.core.questions import QuestionKind
from talaria.core.text import clean, clean_line, visible_json

T = TypeVar("T")
WAITING = "waiting"
_REDRAW_SECONDS = 0.5


class StatusLine:
    """A line that shows what is being waited for, and for how long; `limit` is the longest wait in seconds.

    It is drawn from `async with` to its end and removed afterwards. Nothing is drawn if `out` is no terminal.
    """

    def __init__(self, out: TextIO, text: str, limit: float = 0.0) -> None:
        self._out = out
        self._text = text
        self._limit = f" of {limit:.0f}" if limit else ""
        self._is_shown = out.isatty()
        self._began = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._began = asyncio.get_running_loop().time()
        if self._is_shown:
            self._task = asyncio.create_task(self._redraw(), name="status line")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
        self.hide()

    def say(self, text: str) -> None:
        """Show another text from now on."""
        self._text = text
        self._draw()

    def hide(self) -> None:
        """Remove the line until the next `say`."""
        if self._is_shown and self._text:
            self._out.write("\r\033[K")
            self._out.flush()
        self._text = ""

    async def _redraw(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(_REDRAW_SECONDS)

    def _draw(self) -> None:
        if not (self._is_shown and self._text):
            return
        seconds = int(asyncio.get_running_loop().time() - self._began)
        passed = f" … {seconds} s{self._limit}"
        # A text that wraps onto a second row could not be removed.
        room = max(shutil.get_terminal_size().columns - len(passed) - 1, 10)
        self._out.write(f"\r\033[K{clean_line(self._text, room)}{passed}")
        self._out.flush()


async def await_with_status(seconds: float, text: str, work: Awaitable[T], out: TextIO) -> T:
    """Return the result of `work`; show a status line meanwhile. Raises `TimeoutError` after `seconds`."""
    if not out.isatty():
        out.write(f"{text} …\n")
        out.flush()
    async with asyncio.timeout(seconds), StatusLine(out, text, seconds):
        return await work


class PlainRenderer:
    """Shows a turn as plain text, for pipes, files and `talaria ask`.

    The reply goes to `out`: as it comes if `is_live`, otherwise when it is complete. Everything else goes to
    `notes`, or nowhere if that is None. `line` shows what the turn waits for.
    """

    def __init__(
        self, out: TextIO, notes: TextIO | None, *, is_live: bool = False, line: StatusLine | None = None
    ) -> None:
        self._out = out
        self._notes = notes
        self._is_live = is_live
        self._line = line
        self._streamed: list[str] = []  # pieces of the current step
        self._calls: dict[str, str] = {}
        self._outputs: dict[str, OutputTail] = {}
        self._has_announced_loading = False

    def open(self) -> None:
        pass

    def close(self) -> None:
        self._end_line()
        self._out.flush()

    def notice(self, text: str) -> None:
        """Print a message of the program itself."""
        self._end_line()
        if self._line is not None:
            self._line.hide()
        if self._notes is not None:
            self._notes.write(clean(text) + "\n")
            self._notes.flush()

    pause = resume = notice

    def attach(self, text: str) -> None:
        """Print where a file of the reply is."""
        self._end_line()
        self._out.write(clean(text) + "\n")
        self._out.flush()

    def show(self, event: Event) -> None:
        match event:
            case Delta() if self._is_live:
                self._write(clean(event.text))
            case ToolStarted() | ToolOutput() | ToolFinished():
                self._show_call(event)
            case DelegateChanged() if event.depth == 1 and event.state.is_final:
                self.notice(f"  {describe(event)}")
            case DelegateChanged():
                self._wait_for(describe(event).strip())
            case QuestionAsked():
                self.notice(describe(event))
                self._wait_for("waiting for a decision")
            case Retrying() | FellBack() | Failed():
                self.notice(describe(event))
            case ModelLoading():
                self._wait_for(describe(event))
                if self._line is None and event.is_on_its_way and not self._has_announced_loading:
                    self._has_announced_loading = True
                    self.notice(describe(event))
            case Reset():
                self._end_line()
            case Done():
                self._finish(event.reply)
            case Cancelled():
                self._finish(event.reply)
                self.notice(describe(event))
            case _:
                pass

    def _show_call(self, event: ToolStarted | ToolOutput | ToolFinished) -> None:
        """Show a call on the status line with the last line of its output, and its outcome as a note."""
        call_id = event.call_id
        match event:
            case ToolStarted():
                self._end_line()
                self._calls[call_id] = describe_call(event.name, event.arguments)
                self._wait_for(f"⚙ {self._calls[call_id]}")
            case ToolOutput() if call_id in self._calls:
                self._outputs.setdefault(call_id, OutputTail(8)).add(event.text)
                self._wait_for(f"⚙ {self._calls[call_id]}: {self._outputs[call_id].last()}")
            case ToolFinished():
                self._outputs.pop(call_id, None)
                call = self._calls.pop(call_id, clean_line(event.name))
                self.notice(f"⚙ {call} … {describe(event)}")
                self._wait_for(WAITING)

    def _wait_for(self, what: str) -> None:
        if self._line is not None:
            self._line.say(what)

    def _write(self, text: str) -> None:
        if self._line is not None:
            self._line.hide()
        self._streamed.append(text)
        self._out.write(text)
        self._out.flush()

    def _end_line(self) -> None:
        last = next((piece for piece in reversed(self._streamed) if piece), "\n")
        if not last.endswith("\n"):
            self._out.write("\n")
        self._streamed = []

    def _finish(self, reply: str) -> None:
        reply = clean(reply)
        rest = find_unstreamed(reply, "".join(self._streamed))
        if rest is None:
            self._end_line()
        self._write(reply if rest is None else rest)
        self._end_line()


def find_unstreamed(reply: str, streamed: str) -> str | None:
    """Return the part of a reply that was not streamed yet; None if it does not continue the stream."""
    if reply.startswith(streamed):
        return reply[len(streamed) :]
    return "" if streamed.endswith(reply) else None


# -- `talaria ask`: send one message and print its reply --------------------------------------------------


RETRY_SECONDS = 30.0
# The words for a command line, which takes no slash commands.
WORDS: Mapping[Do, str] = {
    Do.USE_MODEL: "{} with --model",
    Do.USE_LOCAL_MODEL: "Add `--model local`",
    Do.NEW_SESSION: "Begin another session: leave --session out",
    Do.SHORTER: "Begin another session: leave --session out",
    Do.NEW_BUDGET: "Begin another session, with a budget of its own",
    Do.ANSWER_AGAIN: "Ask again",
}


class AskRequest(msgspec.Struct, frozen=True):
    """The message. Without a `session` it gets a new one."""

    text: str
    session: str = ""
    model: str = ""
    files: tuple[Path, ...] = ()


class TurnFailed(GatewayRefusal):
    """The turn ended without a reply."""


def _how_to_decide(event: QuestionAsked, session: str, command_line: Callable[[str], str]) -> str:
    """Return the whole question, and the commands for another terminal that decide it."""
    lines = [describe(event), "This waits for a person. In another terminal:"]
    if event.kind is QuestionKind.ANSWER:
        said = ["YOUR ANSWER"]
    else:
        said = [f"/approve {event.question_id}", f"/approve {event.question_id} session"]
        said.append(f"/deny {event.question_id}")
    lines += ["  " + command_line(f"ask --session {session} '{text}'") for text in said]
    return "\n".join(lines)


async def ask(
    client: GatewayClient,
    request: AskRequest,
    renderer: PlainRenderer,
    command_line: Callable[[str], str] = "talaria {}".format,
    json_out: TextIO | None = None,
    *,
    tell: Callable[[str], None] = print,
) -> None:
    """Send the message and show its turn; or, with `json_out`, write the finished turn there as JSON.

    Raises `TurnFailed` if there is no reply. On cancellation the turn is cancelled too. `command_line`
    returns how a command of this program is typed. `tell` prints what the turn waits for.
    """
    session = request.session or f"ask-{secrets.token_hex(5)}"
    retry = RetryPolicy(
        RETRY_SECONDS, on_gone=lambda error: renderer.notice(f"{error.user_text} Trying again …")
    )
    files = [await client.upload(path, retry) for path in request.files]
    key, model = secrets.token_hex(16), request.model or None
    sent = await client.send(session, request.text, key, model=model, files=files, retry=retry)
    failure: ErrorInfo | None = None
    try:
        async with aclosing(client.follow(sent.turn_id, retry)) as events:
            async for event in events:
                if isinstance(event, Failed):
                    failure = event.error
                elif isinstance(event, Cancelled):
                    failure = ErrorInfo("cancelled", "The turn was cancelled.")
                if isinstance(event, QuestionAsked):
                    tell(_how_to_decide(event, session, command_line))
                elif json_out is None and not isinstance(event, Failed):
                    renderer.show(Done(event.reply) if isinstance(event, Cancelled) else event)
                if json_out is None and isinstance(event, Done) and event.files:
                    for line in await client.describe_files(sent.turn_id, event.files):
                        renderer.attach(line)
    except asyncio.CancelledError:
        look = command_line(f"sessions show {session}")
        try:
            await client.cancel(sent.turn_id)
            renderer.notice(f"Cancelled. The message is saved, without an answer: {look}")
        except TalariaError:
            renderer.notice(f"The message is saved; the gateway may still answer it: {look}")
        raise
    finally:
        renderer.close()
    if json_out is not None:
        json_out.write(visible_json(await client.turn(sent.turn_id)) + "\n")
    if failure is not None:
        hint = failure.hint_in(WORDS)
        why = f"The whole story: {command_line(f'why {sent.turn_id}')}"
        raise TurnFailed(msgspec.structs.replace(failure, hint=f"{hint}\n{why}".strip()))
