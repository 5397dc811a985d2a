"""The connection to a Chromium: its DevTools protocol over pipes. A NUL ends each message."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from talaria.workspace.sandbox.process import SandboxedProcess, Stream

_MOST_BYTES: Final = 64 << 20  # of one message; a screenshot has a few
_ERROR_BYTES: Final = 2000

Listener = Callable[[str, str, Mapping[str, Any]], None]
"""Called with the session of a tab (empty for the browser), the name of an event and its parameters."""


class DevToolsError(Exception):
    """The browser refused a call. The text is its own."""


class BrowserGone(DevToolsError):
    """The browser has ended, or does not answer any more."""


class _Failure(msgspec.Struct):
    message: str = ""


class _Message(msgspec.Struct, rename={"session": "sessionId"}):
    id: int = 0
    method: str = ""
    session: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"{}")
    error: _Failure | None = None


_decode = msgspec.json.Decoder(_Message).decode


class DevTools:
    """Calls to the browser and its events. `close` must be called; it ends nothing but the reading."""

    def __init__(self, process: SandboxedProcess, listen: Listener) -> None:
        self._process = process
        self._listen = listen
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._writing = asyncio.Lock()
        self._said = b""  # the end of what it wrote to its errors
        self.is_gone = False
        self.patience = 20.0
        self._reading = asyncio.create_task(self._read(), name="browser")

    async def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        session: str = "",
        seconds: float = 0.0,
    ) -> dict[str, Any]:
        """Return the result of a call. Raises `DevToolsError`; `BrowserGone` if no answer comes within
        `seconds`, which are `patience` by default."""
        seconds = seconds or self.patience
        if self.is_gone:
            raise BrowserGone(self.last_words())
        number = next(self._numbers)
        order = {"id": number, "method": method, "params": params or {}}
        if session:
            order["sessionId"] = session
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                async with self._writing:
                    await self._write(msgspec.json.encode(order) + b"\0")
                raw = await answer
        except TimeoutError:
            raise BrowserGone(f"{method} had no answer within {seconds:g} seconds") from None
        except OSError:
            raise BrowserGone(self.last_words()) from None
        finally:
            self._calls.pop(number, None)
        result: dict[str, Any] = msgspec.json.decode(raw)
        return result

    async def _write(self, message: bytes) -> None:
        try:
            await self._process.write(message)
        except asyncio.CancelledError:
            self.is_gone = True  # half of a message was written: the next one would not be understood
            raise

    def last_words(self) -> str:
        """Return the last line that the browser wrote to its errors."""
        lines = self._said.decode(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it said nothing"

    async def close(self) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading

    async def _read(self) -> None:
        pending = bytearray()
        try:
            async for piece in self._process.output():
                if piece.stream is Stream.ERR:
                    self._said = (self._said + piece.content)[-_ERROR_BYTES:]
                    continue
                begin = len(pending)
                pending += piece.content
                if (end := pending.rfind(b"\0", begin)) >= 0:
                    for message in bytes(pending[:end]).split(b"\0"):
                        self._take(message)
                    del pending[: end + 1]
                if len(pending) > _MOST_BYTES:
                    self._said = b"it sent a message that is too large"
                    break
        except (msgspec.MsgspecError, KeyError) as error:
            self._said = f"it sent what nobody understands: {error}".encode()
        finally:
            self.is_gone = True
            for answer in self._calls.values():
                if not answer.done():
                    answer.set_exception(BrowserGone(self.last_words()))

    def _take(self, data: bytes) -> None:
        message = _decode(data)
        if message.method:
            params = msgspec.json.decode(message.params)
            self._listen(message.session, message.method, params)
            return
        answer = self._calls.get(message.id)
        if answer is None or answer.done():
            return
        if message.error is not None:
            answer.set_exception(DevToolsError(message.error.message))
        else:
            answer.set_result(message.result)
