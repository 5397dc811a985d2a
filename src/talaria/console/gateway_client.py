"""A client of the gateway's HTTP API, for the command line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from msgspec import UNSET

from talaria.core.backoff import Backoff
from talaria.core.errors import BadRequest, ErrorInfo, TalariaError
from talaria.core.events import FINAL_EVENTS, Event, QuestionAsked, describe_file
from talaria.core.files import SentFile
from talaria.core.questions import QuestionKind, Span
from talaria.net.sse import SseEvent, SseOverflow, SseParser
from talaria.operations.operation import ANSWER_SECONDS, I, O, Operation, given_fields
from talaria.operations.turns import AcceptedTurn, ExplainedTurn

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 60.0  # the gateway sends a comment every 15 seconds
_RETRIES = Backoff(first=0.1, longest=2.0)
_OTHER_TOKEN = "It was started with another one: set TALARIA_HTTP_TOKEN to that, or restart the gateway."  # noqa: S105
_LOST = (aiohttp.ClientError, OSError)
_IN_PATH = re.compile(r"{(\w+)}")
_EVENT_NAMES = frozenset(str(kind.__struct_config__.tag) for kind in Event.__args__)


class GatewayGone(TalariaError):
    """The gateway does not answer or is shutting down; another try may succeed."""

    type = "gateway_gone"


class GatewayBusy(GatewayGone):
    """The gateway has too much to do and took nothing on."""


class GatewayRefusal(TalariaError):
    """The gateway answered with an error; this carries its text and hint."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message, info.hint)
        self.type = info.type


class GatewayAddress(msgspec.Struct, frozen=True):
    """The URL of a gateway and its token. The token is not part of the repr."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"GatewayAddress({self.url!r})"


class RetryPolicy(msgspec.Struct, frozen=True):
    """For how many seconds a call is tried again while the gateway is gone. `on_gone` is called after the
    first failure, `on_back` after a success that follows it."""

    seconds: float = 0.0
    on_gone: Callable[[GatewayGone], None] = lambda error: None
    on_back: Callable[[], None] = lambda: None


NO_RETRY = RetryPolicy()


class GatewayClient:
    """An HTTP session, from `async with` to its end.

    Every method raises `GatewayGone` if there is no answer and `GatewayRefusal` if the answer is an error.
    `find` is called before each retry, because a restarted gateway may have another address. Without it the
    gateway runs in this process.
    """

    def __init__(
        self, address: GatewayAddress, find: Callable[[], GatewayAddress | None] | None = None
    ) -> None:
        self._address = address
        self._find = find
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def is_inside(self) -> bool:
        """Return whether the gateway runs in this process and ends with it."""
        return self._find is None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=_limits(ANSWER_SECONDS), trust_env=False)
        return self

    async def __aexit__(self, *exception: object) -> None:
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
        retry: RetryPolicy = NO_RETRY,
    ) -> AcceptedTurn:
        """Send a message. Attempts with the same `key` are one message, so a retry is safe. `files` are ids
        that `upload` returned."""
        body: dict[str, object] = {"text": text}
        if model:
            body["model"] = model
        if files:
            body["files"] = files
        path, headers = f"/api/sessions/{_quote(name)}/messages", {"Idempotency-Key": key}
        answer = await self._with_retries(lambda: self._call("POST", path, body, headers=headers), retry)
        return _decode(answer, AcceptedTurn)

    async def upload(self, path: Path, retry: RetryPolicy = NO_RETRY) -> str:
        """Upload a file and return its id. Raises `BadRequest` if the file cannot be read."""
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            text = f"The file {path} cannot be read: {error.strerror or error}."
            raise BadRequest(text, "Check its name and its permissions.") from error
        place = f"/api/files?name={_quote(path.name)}"
        answer = await self._with_retries(lambda: self._call("POST", place, data), retry)
        return _decode(answer, _Id).id

    async def follow(self, turn_id: str, retry: RetryPolicy = NO_RETRY) -> AsyncGenerator[Event, None]:
        """Yield the turn's events up to the final one, across lost connections and gateway restarts.

        If another process resumes the turn, its events come again after a `Reset`.
        """
        last_id = ""
        while True:
            response = await self._with_retries(partial(self._open_events, turn_id, last_id), retry)
            parser = SseParser()
            try:
                async for data in response.content.iter_any():
                    for item in parser.feed(data):
                        last_id = item.id
                        if (event := _event(item)) is not None:
                            yield event
                        if isinstance(event, FINAL_EVENTS):
                            return
            except SseOverflow as error:
                raise TalariaError(
                    f"The answer cannot be shown here: {error}.",
                    f"GET /api/turns/{turn_id} returns it as JSON.",
                ) from None
            except _LOST:
                pass  # the next request continues after the last event
            finally:
                response.close()
            # A gateway that drains ends a new stream at once: no tight loop.
            await asyncio.sleep(_RETRIES.first)

    async def _open_events(self, turn_id: str, last_id: str) -> aiohttp.ClientResponse:
        headers = {"Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        path = f"/api/turns/{_quote(turn_id)}/events"
        return await self._request("GET", path, None, headers, timeout=_limits(None, _SILENCE_SECONDS))

    async def cancel(self, turn_id: str) -> None:
        await self._call("POST", f"/api/turns/{_quote(turn_id)}/cancel")

    async def decide(self, event: QuestionAsked, text: str, span: Span = Span.ONCE) -> None:
        """Decide a question of a turn: `text` is "approve", "deny" or the answer."""
        body: dict[str, str] = {"decision": text, "for": span.value}
        if event.kind is QuestionKind.ANSWER:
            body = {"answer": text}
        await self._call("POST", f"/api/approvals/{_quote(event.question_id)}", body)

    async def turn(self, turn_id: str) -> bytes:
        """Return the turn as the gateway's JSON."""
        return await self._call("GET", f"/api/turns/{_quote(turn_id)}")

    async def describe_files(self, turn_id: str, files: Sequence[SentFile]) -> list[str]:
        """Return a line for each file that the turn sent, with the place where it is."""
        paths: dict[str, str] = {}
        try:
            turn = _decode(await self.turn(turn_id), ExplainedTurn)
            paths = {file.id: file.path for file in turn.files if file.path is not UNSET}
        except TalariaError:
            pass  # the gateway left just now
        return [describe_file(file, paths.get(file.id, f"GET /api/files/{file.id}")) for file in files]

    # -- the gateway

    async def login_code(self) -> str:
        """Return a code for a link that logs a browser in, once, within ten minutes."""
        return _decode(await self._call("POST", "/api/login/codes"), _Code).code

    # -- reading

    async def status(self) -> dict[str, Any]:
        """Return the status undecoded, for `talaria doctor`, which also checks gateways of other versions."""
        return _decode(await self._call("GET", "/api/status"), dict[str, Any])

    async def models(self) -> list[str]:
        """Return the names that a message may ask for; none if no model is configured."""
        answer = _decode(await self._call("GET", "/v1/models"), _ModelList)
        return [model.id for model in answer.data]

    # -- calls

    async def carry_out(self, operation: Operation[Any, I, O], wanted: I, key: str | None = None) -> O:
        """Call an operation of the gateway and return its answer. Attempts with the same `key` are one call,
        if the operation takes one. Raises what the other calls raise."""
        given = given_fields(wanted)
        parts: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "body": {}}
        for field in operation.fields:
            if field.key in given:
                parts[field.place][field.key] = given[field.key]
        path = _IN_PATH.sub(lambda found: _quote(parts["path"][found[1]]), operation.path)
        if parts["query"]:
            path += f"?{urlencode({name: _in_query(value) for name, value in parts['query'].items()})}"
        body = None if operation.body is None else parts["body"]
        headers = {} if key is None else {"Idempotency-Key": key}
        timeout = _limits(operation.answer_seconds)
        async with await self._request(operation.method, path, body, headers, timeout=timeout) as response:
            answer: O = _decode(await self._read(response), operation.answer_type(response.status))
            return answer

    async def _with_retries(self, attempt: Callable[[], Awaitable[T]], retry: RetryPolicy) -> T:
        """Call `attempt` until the gateway answers or the policy's time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + retry.seconds
        failures = 0
        while True:
            try:
                result = await attempt()
            except GatewayGone as error:
                failures += 1
                pause = _RETRIES.pause(failures)
                if loop.time() + pause > deadline:
                    raise
                if failures == 1:
                    retry.on_gone(error)
                await asyncio.sleep(pause)
                if self._find is not None:
                    self._address = self._find() or self._address
            else:
                if failures:
                    retry.on_back()
                return result

    async def _call(self, method: str, path: str, body: object = None, **extra: Any) -> bytes:
        async with await self._request(method, path, body, **extra) as response:
            return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.read()
        except _LOST as error:
            raise self._gone(error) from error

    async def _request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> aiohttp.ClientResponse:
        """Return a successful response, which the caller closes. A body of bytes is sent as it is, any other
        as JSON; `extra` goes to aiohttp."""
        assert self._session is not None
        own = {"Authorization": f"Bearer {self._address.token}"}
        if isinstance(body, bytes):
            extra["data"] = BytesIO(body)  # sent in pieces; bytes would be written at once
        elif body is not None:
            extra["data"] = msgspec.json.encode(body)
            own["Content-Type"] = "application/json"
        url = self._address.url + path
        try:
            response = await self._session.request(method, url, headers={**own, **(headers or {})}, **extra)
            if response.status < 400:
                return response
            async with response:
                raise _refusal(response.status, await response.read())
        except _LOST as error:
            raise self._gone(error) from error

    def _gone(self, error: BaseException) -> GatewayGone:
        why = "it does not answer in time" if isinstance(error, TimeoutError) else "the connection was lost"
        if isinstance(error, aiohttp.ClientConnectorError):
            why = "nothing answers there"
        return GatewayGone(
            f"The gateway at {self._address.url} cannot be reached: {why}.",
            "Start it with `talaria serve`; `talaria doctor` looks closer.",
        )


def _in_query(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


class _Code(msgspec.Struct):
    code: str


class _Id(msgspec.Struct, frozen=True):
    id: str


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_Id]


class _ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo


def _event(item: SseEvent) -> Event | None:
    """Return None for a kind of event that this version does not know."""
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
    if info.type == "overloaded":
        return GatewayBusy(info.message, info.hint)
    if status == 401:
        info = ErrorInfo(info.type, "The gateway does not accept this home's token.", _OTHER_TOKEN)
    return GatewayRefusal(info)


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TalariaError(
            f"The gateway's answer is not what this version expects: {error}.",
            "Is it the same version? Restart the gateway after an upgrade.",
        ) from error


def _limits(total: float | None, silence: float | None = None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total, sock_connect=_CONNECT_SECONDS, sock_read=silence)


def _quote(text: str) -> str:
    return quote(text, safe="")
