"""HTTP calls to a chat platform, with errors that say what is known of a call.

Addresses and headers may contain the token, so no error text has a path or a header.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from talaria.core.delivery import DeliveryDelayed, DeliveryRefused, DeliveryUnknown
from talaria.core.errors import TalariaError
from talaria.core.redaction import ApiAddress

T = TypeVar("T")

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 20.0
UPLOAD_SECONDS = 120.0
MAX_ANSWER = 32 << 20


class PlatformError(TalariaError):
    """A call failed. The subclass says what is known of it."""

    type = "platform"


class PlatformUnreachable(PlatformError):
    """No connection was made, so the platform did nothing."""


class PlatformUnanswered(PlatformError):
    """The request was sent, and no answer says whether it was carried out. `status` is set if the server
    reported a failure of its own."""

    def __init__(self, user_text: str, hint: str = "", *, status: int | None = None) -> None:
        super().__init__(user_text, hint)
        self.status = status


class PlatformRefused(PlatformError):
    """The platform answered with an error and did nothing. With `is_about_token` it refused the token, which
    says nothing about the request."""

    def __init__(
        self,
        user_text: str,
        hint: str = "",
        *,
        code: int | str,
        retry_after: float | None = None,
        is_about_token: bool = False,
    ) -> None:
        super().__init__(user_text, hint)
        self.code = code
        self.retry_after = retry_after
        self.is_about_token = is_about_token


class PlatformTooLarge(PlatformError):
    """An answer or a file is larger than the caller allowed."""


class PlatformHttp:
    """Requests to one server of a platform, open within `async with`. `key` is the setting of the address."""

    def __init__(self, url: str, key: str, headers: Mapping[str, str] | None = None) -> None:
        self.url = ApiAddress(url)
        self._key = key
        self._headers = dict(headers or {})
        self._http: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.url)!r})"

    async def __aenter__(self) -> Self:
        if self.url.authorization:
            self._headers.setdefault("Authorization", self.url.authorization)
        self._http = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._http is not None, "used within `async with`"
        return self._http

    @asynccontextmanager
    async def request(
        self, verb: str, path: str, seconds: float = ANSWER_SECONDS, **body: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to a path of the server. Redirects are not followed."""
        timeout = aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS)
        url = self.url.target(path)
        with self.errors():
            async with self.session.request(
                verb, url, timeout=timeout, allow_redirects=False, **body
            ) as response:
                yield response

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise aiohttp's errors as `PlatformError`."""
        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            # asyncio's own text names the socket and not the reason.
            number = getattr(error, "errno", None)
            reason = os.strerror(number) if number and number > 0 else getattr(error, "strerror", None)
            text = f"{self.url} cannot be reached: {reason or 'no answer'}."
            raise PlatformUnreachable(text, "Is the network up?") from None
        except aiohttp.InvalidURL:
            raise PlatformUnreachable(f"{self.url} is not an address.", f"Correct {self._key}.") from None
        except TimeoutError:
            raise PlatformUnanswered(f"{self.url} did not answer in time.") from None
        except aiohttp.ClientError:
            raise PlatformUnanswered(f"The connection to {self.url} was lost.") from None


async def read_body(response: aiohttp.ClientResponse, max_bytes: int = MAX_ANSWER) -> bytes:
    """Return the body without holding more than `max_bytes` and one piece. Raises `PlatformTooLarge`."""
    data = bytearray()
    if (response.content_length or 0) <= max_bytes:
        async for piece in response.content.iter_chunked(1 << 16):
            data += piece
            if len(data) > max_bytes:
                break
        else:
            return bytes(data)
    raise PlatformTooLarge(f"There are more than {max_bytes} bytes.")


def decode_or_none(data: bytes | bytearray | msgspec.Raw, kind: type[T]) -> T | None:
    """Return None for data that is not of this kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


@contextmanager
def as_delivery_error(*, is_edit: bool = False) -> Iterator[None]:
    """Raise the `DeliveryError` that says what is known of a failed call. An edit can be made again."""
    try:
        yield
    except PlatformUnreachable as error:
        raise DeliveryDelayed(error.user_text) from None
    except PlatformUnanswered as error:
        if is_edit and error.status is not None and error.status >= 500:
            raise DeliveryDelayed(error.user_text) from None
        raise DeliveryUnknown(error.user_text) from None
    except PlatformRefused as refusal:
        # A wrong token says nothing about the message: it waits for a right one, until it is too old.
        if refusal.code == 429 or refusal.is_about_token:
            raise DeliveryDelayed(refusal.user_text, retry_after=refusal.retry_after) from None
        raise DeliveryRefused(refusal.user_text) from None
