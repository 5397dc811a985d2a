"""A client of the Bot API: calls with outcomes that say what is known, and no token in any text."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from talaria.core.errors import TalariaError

T = TypeVar("T")
Value = str | int | float | bool | None | list[Any] | dict[str, Any]

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 20.0
_UPLOAD_SECONDS = 120.0
_MAX_ANSWER = 32 << 20


class BotApiError(TalariaError):
    """A call did not succeed. The subclass says what is known of it."""

    type = "telegram"


class Unreached(BotApiError):
    """No connection was made: nothing was asked."""


class Unanswered(BotApiError):
    """It was asked, and no answer says what came of it. `status` is there when a server said that it
    failed."""

    def __init__(self, user_text: str, hint: str = "", *, status: int | None = None) -> None:
        super().__init__(user_text, hint)
        self.status = status


class Refused(BotApiError):
    """Telegram said no, and did nothing."""

    def __init__(
        self, code: int, description: str, *, retry_after: float | None = None, moved_to: int | None = None
    ) -> None:
        super().__init__(f"Telegram refused ({code}): {description}")
        self.code = code
        self.description = description
        self.retry_after = retry_after
        self.moved_to = moved_to

    @property
    def is_about_token(self) -> bool:
        """401, or 404 for a text that no token could be."""
        return self.code in (401, 404)

    def says(self, words: str) -> bool:
        return words in self.description


class TooLarge(BotApiError):
    """An answer or a file with more bytes than were wanted."""


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _Answer(msgspec.Struct, frozen=True):
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error_code: int = 0
    description: str = ""
    parameters: _Parameters = _Parameters()


class BotApi:
    """One bot's calls over one HTTP session, closed with `async with`."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self.token = token
        self._http: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"BotApi({self._url!r})"

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def call(self, method: str, answer: type[T], wait: float = 0.0, /, **params: Value) -> T:
        """`wait`: seconds that the server may take before it begins to answer."""
        given = {key: value for key, value in params.items() if value is not None}
        return await self._ask(method, answer, _ANSWER_SECONDS + wait, json=given)

    async def upload(
        self, method: str, answer: type[T], field: str, file: tuple[str, bytes], /, **params: Value
    ) -> T:
        form = aiohttp.FormData()
        for key, value in params.items():
            if value is not None:
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                form.add_field(key, text)
        form.add_field(field, BytesIO(file[1]), filename=file[0])
        return await self._ask(method, answer, _UPLOAD_SECONDS, data=form)

    async def download(self, path: str, max_bytes: int) -> bytes:
        """A file that `getFile` named. Raises `TooLarge`."""
        async with self._request("GET", f"file/bot{self.token}/{path}", _UPLOAD_SECONDS) as response:
            if response.status != 200:
                raise Unanswered(f"Telegram did not hand out the file ({response.status}).")
            return await _read(response, max_bytes)

    async def _ask(self, method: str, answer: type[T], seconds: float, **body: Any) -> T:
        async with self._request("POST", f"bot{self.token}/{method}", seconds, **body) as response:
            status = response.status
            data = await _read(response, _MAX_ANSWER)
        try:
            said = msgspec.json.decode(data, type=_Answer)
            if said.ok:
                return msgspec.json.decode(said.result, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise Unanswered(
                f"{method}: the answer ({status}) is not of the Bot API.", status=status
            ) from None
        code = said.error_code or status
        if code >= 500:
            raise Unanswered(f"{method}: Telegram failed ({code}): {said.description}", status=code)
        extra = said.parameters
        raise Refused(
            code, said.description, retry_after=extra.retry_after, moved_to=extra.migrate_to_chat_id
        )

    @asynccontextmanager
    async def _request(
        self, verb: str, path: str, seconds: float, **body: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Failures are told without the URL, which holds the token."""
        assert self._http is not None, "BotApi is used within `async with`"
        timeout = aiohttp.ClientTimeout(total=seconds, connect=_CONNECT_SECONDS)
        url = f"{self._url}/{path}"
        try:
            async with self._http.request(
                verb, url, timeout=timeout, allow_redirects=False, **body
            ) as response:
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            reason = _reason(error)
            raise Unreached(f"{self._url} cannot be reached: {reason}.", "Is the network up?") from None
        except aiohttp.InvalidURL:
            raise Unreached(f"{self._url} is no address.", "Correct channels.telegram.api_url.") from None
        except TimeoutError:
            raise Unanswered(f"{self._url} did not answer in time.") from None
        except aiohttp.ClientError:
            raise Unanswered(f"The connection to {self._url} was lost.") from None


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Never holds more than `max_bytes` and one piece. Raises `TooLarge`."""
    if (response.content_length or 0) > max_bytes:
        raise TooLarge(f"There are more than {max_bytes} bytes.")
    data = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        data += piece
        if len(data) > max_bytes:
            raise TooLarge(f"There are more than {max_bytes} bytes.")
    return bytes(data)


def _reason(error: OSError) -> str:
    """asyncio's own text names the socket and not the fault."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number and number > 0 else getattr(error, "strerror", None) or "no answer"
