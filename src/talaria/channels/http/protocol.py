"""uvicorn's HTTP protocol, with bounds on what a caller may do before there is a request to guard."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from talaria.channels.http.errors import error_body
from talaria.core.errors import ErrorInfo

_LARGEST_HEAD: Final = 64 << 10  # bytes of request line and headers
_SLOWEST_HEAD: Final = 30.0  # seconds from its first byte to its last

_NO_HTTP = ErrorInfo("bad_request", "This is not valid HTTP.", "Speak HTTP/1.1 to this port.")
_LONG_HEAD = ErrorInfo(
    "head_too_large",
    "The request line and headers are larger than 64 KiB.",
    "Send what is large in the body.",
)


class Protocol(HttpToolsProtocol):
    """A head is bounded in size and time, and a connection that says nothing is closed like an idle one.
    `lost` is done when the connection is no more and all that was written has left or never will.

    A head that comes in one piece, as nearly all do, costs two attributes.
    """

    def __init__(self, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._head_bytes = 0
        self._is_in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[None] = self.loop.create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head:
            self._watch_head(len(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, _NO_HTTP)

    def _watch_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _LARGEST_HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _LONG_HEAD)
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(_SLOWEST_HEAD, self.transport.close)

    def _end_head(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: HTTPStatus, error: ErrorInfo) -> None:
        self._end_head()
        body = error_body(error)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, status.phrase.encode(), len(body), body)
        )
        self.transport.close()
