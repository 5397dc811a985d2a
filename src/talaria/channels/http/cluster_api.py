"""`/cluster`: calls of other members of the cluster.

A call that comes in here was passed on by a member, and is never passed on again: it is answered from what
this process has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

import msgspec

from talaria.access.callers import RouteAccess
from talaria.access.credentials import Logins, digest_of_code
from talaria.channels.http.description import Call, Field
from talaria.channels.http.file_api import open_file
from talaria.channels.http.login_api import MemberLogin
from talaria.channels.http.request import Request, read_number
from talaria.channels.http.response import FileResponse, LineStream, Response, json_response
from talaria.channels.http.routing import ApiRoute
from talaria.cluster.following import PeerTiming
from talaria.cluster.signing import LINES, StreamEnd, StreamHead, encode_event, encode_line
from talaria.core.errors import NotFound, ToolError
from talaria.core.events import FINAL_EVENTS
from talaria.core.ids import ChatKey, TurnId
from talaria.core.messages import Part
from talaria.gateway import Gateway
from talaria.operations.operation import SMALL_BODY
from talaria.operations.turns import no_such_turn
from talaria.turns.feed import RECORDS, Change, ChangedRecord, ChangedTurn, FeedLine, OpenTurns, TurnChange
from talaria.turns.live import LiveTurn
from talaria.turns.states import LiveState
from talaria.workspace.member_uploads import CALLER, NAME_HEADER, MemberUploads
from talaria.workspace.uploads import read_sent

_BYTES: Final = "application/octet-stream"
_encode = msgspec.json.Encoder().encode
_END = encode_line(StreamEnd())


class MemberLoginBody(msgspec.Struct):
    """The SHA-256 of a code; or the code itself, from a member of an older version."""

    digest: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    code: str = ""


class ClusterApi:
    def __init__(self, gateway: Gateway, timing: PeerTiming, logins: Logins, max_bytes: int) -> None:
        """`max_bytes`: the most that a file may have."""
        self._logins = logins
        self._max_bytes = max_bytes
        self._gateway = gateway
        self._turns = gateway.turns
        self._timing = timing
        # The requests that wait for a turn keep its future.
        self._awaited: WeakValueDictionary[TurnId, asyncio.Future[LiveTurn]] = WeakValueDictionary()
        self._turns.live.observe(self._opened)

    async def greet(self, request: Request) -> Response:
        """Tell another member that it can reach this one."""
        return Response(b"", 204)

    async def turn_events(self, request: Request) -> LineStream:
        """The events of a turn that this process has. Of a turn that is over, only the end. Raises `NotFound`
        if another process has the turn, or none."""
        turn_id, query = TurnId(request.params["id"]), request.query()
        after = read_number("after", query.get("after", "0"))
        live = await self._find(turn_id)
        if live is None:
            events = _only_end()
        else:
            stream = f"{self._turns.owner}.{live.stream}"
            events = _tell(live, stream, after if query.get("stream") == stream else 0)
        return LineStream(events, keep_alive=self._timing.keep_alive_seconds, metrics=self._gateway.metrics)

    async def feed(self, request: Request) -> LineStream:
        """The states of the turns of this process: all that are open, then each change. All are told again
        after changes were left out. With `?records`, changes of records too."""
        keep_alive = self._timing.keep_alive_seconds
        changes = self._changes(wants_records=RECORDS in request.query())
        return LineStream(changes, keep_alive=keep_alive, metrics=self._gateway.metrics)

    async def _changes(self, *, wants_records: bool) -> AsyncGenerator[bytes, None]:
        feed = self._turns.live.feed
        with feed.listen(lambda key: True, is_member=True, wants_records=wants_records) as listener:
            yield self._open_turns()
            while changes := await listener.take():
                for change in changes:
                    yield _encode(_feed_line(change)) + b"\n"
                if listener.missed:
                    listener.missed = 0
                    yield self._open_turns()

    def _open_turns(self) -> bytes:
        now = self._gateway.clock.now()
        turns = (TurnChange.of(each.turn, now, each.model, each.spent) for each in self._turns.live)
        return _encode(OpenTurns(tuple(turns))) + b"\n"

    async def log_in(self, request: Request) -> Response:
        """Use up a code that this member made, for the member to which a browser brought it. That member
        makes the login, so that no secret is sent. A member of an older version gets the login."""
        body = await request.json(MemberLoginBody, SMALL_BODY)
        digest = bytes.fromhex(body.digest) if body.digest else digest_of_code(body.code)
        if not self._logins.use_code(digest):
            raise NotFound("This member has not made the code, or it was used.", "`talaria open` makes one.")
        if body.digest:
            return Response(b"", 204)
        login = self._logins.new_login()
        return json_response(MemberLogin(login.cookie, login.secret))

    # -- files ----------------------------------------------------------------------------------------------

    async def put_file(self, request: Request) -> Response:
        """Put a file into the folder of a chat that this member has. The answer is the parts of a message
        that brings it. With `shown`, the body is a message that is too long to be shown whole."""
        query, uploads = request.query(), self._uploads()
        key, name = ChatKey(query.get("chat", "")), query.get("name", "")
        await uploads.routes.claim(key)
        body = bytes(await request.body(self._max_bytes))
        if "shown" in query:
            shown = read_number("shown", query["shown"])
            return json_response(await uploads.keep_here(key, name, body.decode(errors="replace"), shown))
        return json_response(await uploads.put_here(key, name, query.get("type", ""), body))

    async def read_file(self, request: Request) -> Response:
        """A file of a chat that this member has, for the member that sends it. Raises `NotFound` for one that
        is not there, or may not be sent."""
        query = request.query()
        key, path = ChatKey(query.get("chat", "")), query.get("path", "")
        try:
            data = await asyncio.to_thread(read_sent, self._gateway.chat_folder, key, path)
        except ToolError as error:
            raise NotFound(error.user_text, error.hint) from None
        return Response(data, media_type=b"application/octet-stream")

    async def show_file(self, request: Request) -> FileResponse:
        """An upload, or the copy of a file that a turn sent, that this member has."""
        uploader = request.query().get(CALLER)
        found, file = await open_file(
            self._gateway, request.params["id"], request.caller.may_see, uploader, is_passed_on=True
        )
        name = (NAME_HEADER.encode(), quote(found.name, safe="").encode())
        return FileResponse(file, (name,), found.media_type.encode())

    def _uploads(self) -> MemberUploads:
        uploads = self._gateway.uploads
        assert isinstance(uploads, MemberUploads)
        return uploads

    # -- turns ----------------------------------------------------------------------------------------------

    async def _find(self, turn_id: TurnId) -> LiveTurn | None:
        """Return None for a turn that is over. A turn that this process has not taken up yet, of which it was
        told just now, is waited for."""
        if (live := self._turns.live.get(turn_id)) is not None:
            return live
        opened = self._awaited.setdefault(turn_id, asyncio.get_running_loop().create_future())
        if await self._is_over(turn_id):
            return None
        await asyncio.wait((opened,), timeout=self._timing.take_up_seconds)
        if opened.done():
            return opened.result()
        if await self._is_over(turn_id):
            return None
        raise no_such_turn(turn_id)

    async def _is_over(self, turn_id: TurnId) -> bool:
        """Raises `NotFound`."""
        record = await self._gateway.store.turn_record(turn_id)
        if record is None:
            raise no_such_turn(turn_id)
        return record.turn.state.is_final

    def _opened(self, live: LiveTurn) -> None:
        if (opened := self._awaited.pop(live.turn.id, None)) is not None:
            opened.set_result(live)


def _feed_line(change: Change) -> FeedLine:
    return ChangedTurn(change) if isinstance(change, TurnChange) else ChangedRecord(change)


async def _tell(live: LiveTurn, stream: str, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines about a turn. They break off without an end if this process lets the turn go."""
    told = StreamHead(stream, live.turn.state, live.model)
    yield encode_line(told)
    async with aclosing(live.follow(after)) as events:
        async for number, event in events:
            if live.state is LiveState.LET_GO:  # from now on it comes from another member
                return
            head = StreamHead(stream, live.turn.state, live.model)
            if isinstance(event, FINAL_EVENTS):
                yield _END
            elif head != told:
                told = head
                yield encode_line(head) + encode_event(number, event)
            else:
                yield encode_event(number, event)


async def _only_end() -> AsyncGenerator[bytes, None]:
    yield _END


def cluster_routes(cluster: ClusterApi) -> dict[str, dict[str, ApiRoute]]:
    events = Call(
        "The events of a turn of this member, for another one.", LINES.decode(), errors=("not_found",)
    )
    feed = Call("The states of the turns of this member, for another one.", LINES.decode())
    fields = (Field("chat", "The key of a chat that this member has."),)
    put = Call("Put a file into the folder of a chat.", list[Part], body=_BYTES, fields=fields)
    read = Call("A file of a chat.", _BYTES, fields=fields, errors=("not_found",))
    uploader = (Field(CALLER, "The caller whose upload it must be; without it, every upload is found."),)
    file = Call("An upload, or a file that a turn sent.", _BYTES, fields=uploader, errors=("not_found",))
    log_in = Call(
        "Exchange the code of a link.",
        MemberLogin,
        also={204: None},
        body=MemberLoginBody,
        errors=("not_found",),
    )
    greeting = Call("Whether another member reaches this one, and has the token.", None, status=204)
    return {
        "/cluster/greeting": {"GET": ApiRoute(cluster.greet, RouteAccess.ALL, greeting)},
        "/cluster/turns/{id}/events": {"GET": ApiRoute(cluster.turn_events, RouteAccess.ALL, events)},
        "/cluster/files": {
            "POST": ApiRoute(cluster.put_file, RouteAccess.CHAT, put),
            "GET": ApiRoute(cluster.read_file, RouteAccess.OPERATE, read),
        },
        "/cluster/files/{id}": {"GET": ApiRoute(cluster.show_file, RouteAccess.OPERATE, file)},
        "/cluster/login": {"POST": ApiRoute(cluster.log_in, RouteAccess.OPERATE, log_in)},
        "/cluster/events": {"GET": ApiRoute(cluster.feed, RouteAccess.ALL, feed)},
    }
