"""`talaria ask`: one message, its reply on stdout, its failure on stderr."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TextIO

import msgspec

from talaria.channels.console.clean import clean, describe_call
from talaria.channels.console.client import GatewayClient, Patience, Refusal
from talaria.channels.console.waiting import MovingLine
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.events import (
    Cancelled,
    Delta,
    Done,
    Event,
    Failed,
    ModelLoading,
    Reset,
    ToolFinished,
    ToolStarted,
)

PATIENCE_SECONDS = 30.0
WAITING = "waiting"


class Question(msgspec.Struct, frozen=True):
    """Without a `session` the question gets one of its own."""

    text: str
    session: str = ""
    model: str = ""
    files: tuple[Path, ...] = ()


class TurnFailed(Refusal):
    """The turn ended without a reply."""


class Streams(msgspec.Struct, frozen=True):
    """`is_live` streams the reply to `out` as it comes; with a `line`, which moves on `err`, there is more
    told there."""

    out: TextIO
    err: TextIO
    is_live: bool = False
    line: MovingLine | None = None


async def ask(
    client: GatewayClient,
    question: Question,
    streams: Streams,
    command_line: Callable[[str], str] = "talaria {}".format,
    *,
    as_json: bool = False,
) -> None:
    """Raises `TurnFailed` when there is no reply. If it is cancelled itself, it cancels the turn.
    `command_line` says how a command is typed."""
    session = question.session or f"ask-{secrets.token_hex(5)}"
    patience = Patience(
        PATIENCE_SECONDS, on_gone=lambda error: _tell(streams, error.user_text + " Trying again …")
    )
    files = [await client.upload(path, patience) for path in question.files]
    sent = await client.send(
        session,
        question.text,
        secrets.token_hex(16),
        model=question.model or None,
        files=files,
        patience=patience,
    )
    printer = _Printer(streams, is_silent=as_json)
    try:
        async with aclosing(client.follow(sent.turn_id, patience)) as events:
            async for event in events:
                printer.show(event)
    except asyncio.CancelledError:
        look = command_line(f"sessions show {session}")
        try:
            await client.cancel(sent.turn_id)
            _tell(streams, f"Cancelled. The message is saved, without an answer: {look}")
        except TalariaError:
            _tell(streams, f"The message is saved; the gateway may still answer it: {look}")
        raise
    if as_json:
        streams.out.write((await client.turn(sent.turn_id)).decode() + "\n")
    if printer.failure is not None:
        raise TurnFailed(printer.failure)


class _Printer:
    """The reply as it comes, or once it is whole."""

    def __init__(self, streams: Streams, *, is_silent: bool) -> None:
        self._streams = streams
        self._is_live = streams.is_live and not is_silent
        self._is_silent = is_silent
        self._said = ""
        self._calls: dict[str, str] = {}
        self.failure: ErrorInfo | None = None

    def show(self, event: Event) -> None:
        match event:
            case Delta():
                self._stream(event.text)
            case ToolStarted():
                self._calls[event.call_id] = describe_call(event.name, event.arguments)
                self._end_line()
                self._wait_for(f"⚙ {self._calls[event.call_id]}")
            case ToolFinished():
                call = self._calls.pop(event.call_id, event.name)
                _tell(self._streams, f"⚙ {call} … {event.outcome.value}")
                self._wait_for(WAITING)
            case ModelLoading():
                self._wait_for(event.sentence())
            case Reset():
                self._end_line()
            case Done():
                self._finish(event.reply)
            case Failed():
                self._end_line()
                self.failure = event.error
            case Cancelled():
                self._finish(event.reply)
                self.failure = ErrorInfo("cancelled", "The turn was cancelled.")
            case _:
                pass

    def _wait_for(self, what: str) -> None:
        if self._streams.line is not None:
            self._streams.line.say(what)

    def _stream(self, text: str) -> None:
        if self._is_live:
            if self._streams.line is not None:
                self._streams.line.hide()
            self._said += clean(text)
            self._streams.out.write(clean(text))
            self._streams.out.flush()

    def _end_line(self) -> None:
        if self._said and not self._said.endswith("\n"):
            self._streams.out.write("\n")
        self._said = ""

    def _finish(self, reply: str) -> None:
        if self._is_silent:
            return
        if self._streams.line is not None:
            self._streams.line.hide()
        reply = clean(reply)
        if reply.startswith(self._said):
            self._streams.out.write(reply[len(self._said) :])
            self._said = reply
        elif not self._said.endswith(reply):
            self._end_line()
            self._streams.out.write(reply)
            self._said = reply
        self._end_line()
        self._streams.out.flush()


def _tell(streams: Streams, text: str) -> None:
    if streams.line is not None:
        streams.line.hide()
        streams.err.write(clean(text) + "\n")
        streams.err.flush()
