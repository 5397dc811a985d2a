"""The client of other members of the cluster: reads the events of turns that they run.

Calls go to the `url` of a member's row and to nothing else: redirects and proxies are not followed. They are
signed, and the cluster token is never sent (`cluster/signing.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from talaria.cluster.signing import (
    ROLE_HEADER,
    SIGNED_FROM,
    BrokenStream,
    ClusterKey,
    PeerAnswer,
    SignedCall,
    StreamLine,
    decode_line,
    read_lines,
)
from talaria.core.cluster import Member
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.ids import OwnerId, TurnId

if TYPE_CHECKING:
    import aiohttp
    import yarl

_log = logging.getLogger("talaria.cluster")
_WRONG_TOKEN: Final = (401, 403)
_MOST_ERROR: Final = 4096  # bytes of an answer that is an error
Line = TypeVar("Line")


class PeerTiming(msgspec.Struct, frozen=True):
    """`silence_seconds`: a member that sends nothing for so long counts as unreachable. It must be longer
    than `keep_alive_seconds`, after which a member that has nothing to tell sends an empty line.
    `look_seconds`: the pause between two looks at the row of a turn that cannot be followed.
    `take_up_seconds`: how long a member waits for a turn that it was asked for and has not taken up yet."""

    connect_seconds: float = 3.0
    silence_seconds: float = 12.0
    keep_alive_seconds: float = 4.0
    look_seconds: float = 1.0
    take_up_seconds: float = 2.0


USUAL_PEER_TIMING: Final = PeerTiming()


class PeerUnreachable(TalariaError):
    """A member of the cluster cannot be reached, or does not answer as it should. `status` is the one of its
    answer, 0 if there is none."""

    type = "peer_unreachable"

    def __init__(self, user_text: str, hint: str = "", status: int = 0) -> None:
        super().__init__(user_text, hint)
        self.status = status


class _ErrorBody(msgspec.Struct):
    error: ErrorInfo


class PeerClient:
    """Calls other members. Connects with the first call; `close` ends all calls.

    There are at most `most_streams` streams to one member. More raise `PeerUnreachable`, and their readers
    look at the store instead.
    """

    def __init__(
        self,
        token: str,
        timing: PeerTiming = USUAL_PEER_TIMING,
        most_streams: int = 256,
        *,
        now: Callable[[], float],
    ) -> None:
        """`now` is the database's time."""
        self.token = token
        self._key = ClusterKey(token)
        self._now = now
        self.timing = timing
        self._most_streams = most_streams
        self._streams: Counter[OwnerId] = Counter()
        self._session: aiohttp.ClientSession | None = None
        self._troubles: dict[OwnerId, str] = {}

    @property
    def unreachable(self) -> dict[OwnerId, str]:
        """Why the last call of a member failed, for each member whose last call did."""
        return dict(self._troubles)

    def forget(self, owners: set[OwnerId]) -> None:
        """Keep what is known of these members only."""
        self._troubles = {owner: why for owner, why in self._troubles.items() if owner in owners}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def greet(self, member: Member) -> None:
        """Look whether the member can be reached, and takes the token. Raises `PeerUnreachable`."""
        try:
            async with (
                asyncio.timeout(self.timing.silence_seconds),
                self.call(member, "GET", "/cluster/greeting", "read"),
            ):
                pass
        except TimeoutError as error:  # all of it took too long, and none of its steps
            raise self._note(member, _failure(member, error)) from error

    async def turn_events(
        self, member: Member, turn_id: TurnId, stream: str = "", after: int = 0
    ) -> AsyncGenerator[StreamLine, None]:
        """Yield the lines about a turn. With `stream`, leave out the events of that stream up to `after`.

        Raises `PeerUnreachable`, also if the stream breaks off, if the member is silent for too long, and if
        it does not have the turn.
        """
        path = f"/cluster/turns/{quote(turn_id, safe='')}/events"
        query = {"stream": stream, "after": str(after)} if stream else {}
        async with aclosing(self.lines(member, path, decode_line, query)) as lines:
            async for line in lines:
                yield line

    async def lines(
        self,
        member: Member,
        path: str,
        decode: Callable[[bytes], Line],
        query: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Line, None]:
        """Yield the lines of a stream. Raises `PeerUnreachable`. `decode` raises `BrokenStream` for a line
        that is none."""
        if self._streams[member.owner] >= self._most_streams:
            raise PeerUnreachable(f"{self._most_streams} streams of {member.host} are read already.")
        self._streams[member.owner] += 1
        try:
            async with self.call(member, "GET", path, "read", params=query) as response:
                async for line in read_lines(response.pieces()):
                    yield decode(line)
        finally:
            self._streams[member.owner] -= 1
            if not self._streams[member.owner]:
                del self._streams[member.owner]

    @asynccontextmanager
    async def call(
        self,
        member: Member,
        method: str,
        path: str,
        role: str,
        *,
        params: Mapping[str, str] | None = None,
        data: bytes = b"",
    ) -> AsyncIterator[PeerAnswer]:
        """Yield the answer to a call, whose status is 2xx. `role` is that of the caller for whom it is made.

        Raises `PeerUnreachable`, also for what happens while the answer is read. A member of a version that
        does not sign its calls is not called, because it would need the token itself.
        """
        if self._session is None:  # slow to import, and a gateway alone does not need it
            await asyncio.to_thread(import_module, "aiohttp")
        import aiohttp  # noqa: PLC0415

        if not self.token:
            raise PeerUnreachable("There is no cluster token, so no other gateway is called.")
        if not member.url:
            raise PeerUnreachable(f"The gateway on {member.host} is starting and has no address yet.")
        if member.schema < SIGNED_FROM:
            text = f"The gateway on {member.host} runs an older version, which this one does not call."
            raise PeerUnreachable(text, "Upgrade that gateway.")
        target = path + (f"?{urlencode(params, quote_via=quote)}" if params else "")
        call = SignedCall.new(member.owner, self._now(), method, target, role=role, body=data)
        headers = {"authorization": call.credential(self._key), ROLE_HEADER: role}
        try:
            url = _address(member.url.rstrip("/") + target)
            async with self._http().request(
                method, url, headers=headers, data=data or None, allow_redirects=False
            ) as response:
                answer = PeerAnswer(response, self._key, call.nonce)
                if not answer.is_signed:
                    raise self._unsigned(member, answer.status)
                if not 200 <= answer.status < 300:
                    raise self._refusal(member, answer.status, await answer.read(_MOST_ERROR))
                self._troubles.pop(member.owner, None)
                yield answer
        except (aiohttp.ClientError, BrokenStream, EOFError, OSError, TimeoutError) as error:
            raise self._note(member, _failure(member, error)) from error

    def _http(self) -> aiohttp.ClientSession:
        import aiohttp  # noqa: PLC0415

        if self._session is None:
            timing = self.timing
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=timing.connect_seconds, sock_read=timing.silence_seconds
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session

    def _unsigned(self, member: Member, status: int) -> PeerUnreachable:
        """Return the error of an answer that proves nothing. Its status is not passed on as an answer."""
        who = f"The gateway on {member.host}"
        hint = "Give all gateways the same token, in the variable that cluster.token_env names."
        text = f"{who} answers with status {status}, without the signature of this cluster."
        if status in _WRONG_TOKEN:
            text = f"{who} refuses the cluster token."
        elif status == 421:
            hint = "Set its cluster.advertise_url to the address at which other gateways reach it."
            text = f"{who} does not answer to the name in {member.url}."
        return self._note(member, PeerUnreachable(text, hint))

    def _refusal(self, member: Member, status: int, body: bytes) -> PeerUnreachable:
        """Return the error of a signed answer. The member can be reached: it does not have what was asked
        for, or has no room."""
        who = f"The gateway on {member.host}"
        if status == 404:  # the member does not have it: it has just ended, or is not taken up yet
            return PeerUnreachable(f"{who} does not have it.", status=status)
        try:
            told = msgspec.json.decode(body, type=_ErrorBody).error
        except msgspec.MsgspecError:
            text = f"{who} answers with status {status}."
            return self._note(member, PeerUnreachable(text, "See its log.", status))
        return PeerUnreachable(f"{who} says: {told.message}", told.hint or "See its log.", status)

    def _note(self, member: Member, error: PeerUnreachable) -> PeerUnreachable:
        """Remember a trouble, and log it unless it was the member's last one too."""
        if self._troubles.get(member.owner) != error.user_text:
            _log.warning("%s %s", error.user_text, error.hint)
        self._troubles[member.owner] = error.user_text
        return error


def _address(text: str) -> yarl.URL:
    """Return the address exactly as it was signed. Raises `BrokenStream`."""
    import yarl  # noqa: PLC0415 - slow to import

    try:
        return yarl.URL(text, encoded=True)
    except ValueError:
        raise BrokenStream("its address is malformed") from None


def _failure(member: Member, error: Exception) -> PeerUnreachable:
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        what = "does not answer in time"
    elif isinstance(error, BrokenStream):
        what = f"sends an answer that cannot be used ({error})"
    else:
        what = f"cannot be reached ({type(error).__name__})"
    hint = f"Other gateways must reach it at {member.url}, its cluster.advertise_url."
    return PeerUnreachable(f"The gateway on {member.host} {what}.", hint)
