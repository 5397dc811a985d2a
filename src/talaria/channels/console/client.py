"""A client of the gateway's HTTP API, for the terminal commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from talaria.access.desk import Invitation
from talaria.core.access import Paired, PairingList
from talaria.core.errors import BadRequest, ErrorInfo, TalariaError
from talaria.core.events import FINAL_EVENTS, Event
from talaria.net.sse import SseEvent, SseOverflow, SseParser

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0
_SILENCE_SECONDS = 60.0  # the gateway sends a comment every 15 seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_OTHER_TOKEN = "It was started with another one: set TALARIA_HTTP_TOKEN to that, or restart the gateway."  # noqa: S105
_EVENT_NAMES = frozenset(str(kind.__struct_config__.tag) for kind in Event.__args__)


class GatewayGone(TalariaError):
    """Nobody answers at the gateway's address, or it is shutting down; another try may help."""

    type = "gateway_gone"


class Refusal(TalariaError):
    """The gateway said no, in its own words."""

    def __init__(self, status: int, info: ErrorInfo) -> None:
        super().__init__(info.message, info.hint)
        self.status = status
        self.type = info.type


class Address(msgspec.Struct, frozen=True):
    """Where a gateway is and what opens it; the token stays out of every repr."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


class Sent(msgspec.Struct, frozen=True):
    """A message that is durable in the gateway."""

    turn_id: str
    session_id: str
    state: str


class Patience(msgspec.Struct, frozen=True):
    """How long a call goes on without a gateway. `on_gone` hears of it once, `on_back` when it is over."""

    seconds: float = 0.0
    on_gone: Callable[[GatewayGone], None] = lambda error: None
    on_back: Callable[[], None] = lambda: None


class GatewayClient:
    """One HTTP session, from `async with` to its end.

    Every method raises `GatewayGone` when nobody answers and `Refusal` when the gateway says no. `find` is
    asked before each new try, because a gateway that comes back may have another address.
    """

    def __init__(self, address: Address, find: Callable[[], Address | None] | None = None) -> None:
        self._address = address
        self._find = find
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return self._address.url

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=_CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    # -- turns

    async def send(
        self,
        name: str,
        text: str,
        key: str,
        *,
        model: str | None = None,
        files: Sequence[str] = (),
        patience: Patience | None = None,
    ) -> Sent:
        """Bring a message. Tries with the same `key` are one message, so trying again is safe. `files` are
        ids of what was uploaded."""
        body: dict[str, object] = {"text": text}
        if model:
            body["model"] = model
        if files:
            body["files"] = files
        answer = await self._persist(
            lambda: self._call(
                "POST", f"/api/sessions/{_part(name)}/messages", body, {"Idempotency-Key": key}
            ),
            patience or Patience(),
        )
        return _decode(answer, Sent)

    async def upload(self, path: Path, patience: Patience | None = None) -> str:
        """The id of the file in the gateway. Raises `BadRequest` for one that cannot be read."""
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            text = f"The file {path} cannot be read: {error.strerror or error}."
            raise BadRequest(text, "Check its name and its permissions.") from error
        answer = await self._persist(
            lambda: self._call("POST", f"/api/files?name={_part(path.name)}", data), patience or Patience()
        )
        return _decode(answer, _Uploaded).id

    async def follow(self, turn_id: str, patience: Patience | None = None) -> AsyncGenerator[Event, None]:
        """The turn's events from its beginning to the final one, over lost streams and restarted gateways.

        A turn that another process took up again tells its events anew, behind a `Reset`.
        """
        stream = _Stream(self, f"/api/turns/{_part(turn_id)}/events")
        while True:
            await self._persist(stream.open, patience or Patience())
            try:
                async for event in stream.events():
                    yield event
                    if isinstance(event, FINAL_EVENTS):
                        return
            finally:
                stream.close()
            # While a gateway drains, a stream that ended early ends again at once: no tight loop.
            await asyncio.sleep(_FIRST_PAUSE)

    async def cancel(self, turn_id: str) -> None:
        await self._call("POST", f"/api/turns/{_part(turn_id)}/cancel")

    async def turn(self, turn_id: str) -> bytes:
        """The turn as the gateway writes it."""
        return await self._call("GET", f"/api/turns/{_part(turn_id)}")

    # -- pairing

    async def approve(self, code: str) -> Paired:
        return _decode(await self._call("POST", "/api/pairings/approve", {"code": code}), Paired)

    async def revoke(self, channel: str, user: str) -> Paired:
        body = {"channel": channel, "user": user}
        return _decode(await self._call("POST", "/api/pairings/revoke", body), Paired)

    async def invite(self, channel: str) -> Invitation:
        return _decode(await self._call("POST", "/api/pairings/invite", {"channel": channel}), Invitation)

    async def snapshot(self) -> str:
        """Where the gateway has put a copy of its database, to be taken away. Takes as long as it takes."""
        no_limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        async with await self.request("POST", "/api/backup", None, {}, no_limit) as response:
            try:
                return _decode(await response.read(), _Copy).database
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._gone(error) from error

    # -- reading

    async def sessions(self, limit: int = 50, after: str | None = None) -> bytes:
        more = f"&after={_part(after)}" if after else ""
        return await self._call("GET", f"/api/sessions?limit={limit}{more}")

    async def session(self, name_or_id: str) -> bytes:
        return await self._call("GET", f"/api/sessions/{_part(name_or_id)}")

    async def entries(self, name_or_id: str, after: str | None = None) -> bytes:
        more = f"?after={_part(after)}" if after else ""
        return await self._call("GET", f"/api/sessions/{_part(name_or_id)}/entries{more}")

    async def end_session(self, name_or_id: str) -> bytes:
        return await self._call("POST", f"/api/sessions/{_part(name_or_id)}/end")

    async def listing(self) -> PairingList:
        """Who is paired, and who waits."""
        return _decode(await self._call("GET", "/api/pairings"), PairingList)

    async def status(self) -> dict[str, Any]:
        return _decode(await self._call("GET", "/api/status"), dict[str, Any])

    async def pool(self) -> dict[str, Any]:
        return _decode(await self._call("GET", "/api/pool"), dict[str, Any])

    async def models(self) -> list[str]:
        """What may be asked for by name; empty when no model is configured."""
        answer = _decode(await self._call("GET", "/v1/models"), _ModelList)
        return [model.id for model in answer.data]

    async def is_ready(self) -> bool:
        try:
            await self._call("GET", "/readyz")
        except TalariaError:
            return False
        return True

    # -- calls

    async def _persist(self, attempt: Callable[[], Awaitable[T]], patience: Patience) -> T:
        """Try until the gateway answers or patience ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience.seconds
        pause, was_gone = _FIRST_PAUSE, False
        while True:
            try:
                result = await attempt()
            except GatewayGone as error:
                if loop.time() + pause > deadline:
                    raise
                if not was_gone:
                    patience.on_gone(error)
                was_gone = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                self._look_again()
            else:
                if was_gone:
                    patience.on_back()
                return result

    def _look_again(self) -> None:
        found = self._find() if self._find is not None else None
        if found is not None:
            self._address = found

    async def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        response = await self.request(method, path, body, headers or {})
        async with response:
            try:
                return await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._gone(error) from error

    async def request(
        self,
        method: str,
        path: str,
        body: object,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        """A response that says yes, to be closed by the caller. Bytes are sent as they are, any other body as
        JSON."""
        assert self._session is not None
        extra: dict[str, Any] = {"timeout": timeout} if timeout else {}
        if isinstance(body, bytes):
            extra["data"] = BytesIO(body)  # bytes of this size would be sent in one go
        elif body is not None:
            extra["data"] = msgspec.json.encode(body)
            headers = {**headers, "Content-Type": "application/json"}
        headers = {**headers, "Authorization": f"Bearer {self._address.token}"}
        try:
            response = await self._session.request(method, self._address.url + path, headers=headers, **extra)
            if response.status < 400:
                return response
            async with response:
                raise _refusal(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._gone(error) from error

    def _gone(self, error: BaseException) -> GatewayGone:
        why = "it does not answer in time" if isinstance(error, TimeoutError) else "the connection was lost"
        if isinstance(error, aiohttp.ClientConnectorError):
            why = "nobody answers there"
        return GatewayGone(
            f"The gateway at {self._address.url} cannot be reached: {why}.",
            "Start it with `talaria serve`; `talaria doctor` looks closer.",
        )


class _Copy(msgspec.Struct, frozen=True):
    database: str


class _Uploaded(msgspec.Struct, frozen=True):
    id: str


class _Model(msgspec.Struct, frozen=True):
    id: str


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_Model]


class _ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo


class _Stream:
    """A turn's events over one connection after another; each goes on behind the last event seen."""

    def __init__(self, client: GatewayClient, path: str) -> None:
        self._client = client
        self._path = path
        self._last_id = ""
        self._response: aiohttp.ClientResponse | None = None

    async def open(self) -> None:
        headers = {"Accept": "text/event-stream"}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        no_limit = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        )
        self._response = await self._client.request("GET", self._path, None, headers, no_limit)

    async def events(self) -> AsyncIterator[Event]:
        """Until the connection ends, however it ends."""
        assert self._response is not None
        parser = SseParser()
        try:
            async for data in self._response.content.iter_any():
                for item in parser.feed(data):
                    self._last_id = item.id
                    event = _event(item)
                    if event is not None:
                        yield event
        except (aiohttp.ClientError, TimeoutError, OSError, SseOverflow):
            return

    def close(self) -> None:
        if self._response is not None:
            self._response.close()


def _event(item: SseEvent) -> Event | None:
    """None for a kind of event that this version does not know."""
    if item.name not in _EVENT_NAMES:
        return None
    try:
        fields = msgspec.json.decode(item.data, type=dict[str, Any])
        return msgspec.convert({**fields, "type": item.name}, Event)  # type: ignore[no-any-return]
    except msgspec.MsgspecError:
        return None


def _refusal(status: int, body: bytes) -> TalariaError:
    try:
        info = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        info = ErrorInfo(
            "http", f"The gateway answered with HTTP status {status}.", "`talaria doctor` looks closer."
        )
    if info.type == "draining":
        return GatewayGone(info.message, info.hint)
    if status == 401:
        info = ErrorInfo(info.type, "The gateway does not accept this home's token.", _OTHER_TOKEN)
    return Refusal(status, info)


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TalariaError(
            f"The gateway's answer is not what this version expects: {error}.",
            "Is it the same version? Restart the gateway after an upgrade.",
        ) from error


def _part(text: str) -> str:
    return quote(text, safe="")
