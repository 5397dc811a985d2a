"""`/api/sessions`: listing, reading, ending, and sending messages."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from talaria.channels.http.answers import Reply, json_answer
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import Refused
from talaria.channels.http.parts import HttpParts
from talaria.channels.http.turns import TurnDesk
from talaria.channels.http.views import SessionView, TurnTicket, chat_key
from talaria.core.errors import BadRequest, LeaseHeld, NotFound
from talaria.core.ids import SESSION_PREFIX, ChatKey, SessionId, is_session_name
from talaria.core.ledger import Page
from talaria.core.messages import Part, Text
from talaria.core.sessions import Session
from talaria.core.turns import Inbound, Sender

CALLER: Final = Sender("api", "API")
_LONGEST_WAIT: Final = 3600.0
_LARGEST_PAGE: Final = 500


class _Message(msgspec.Struct):
    text: str = ""
    files: list[str] = []
    model: str | None = None


_MESSAGE = msgspec.json.Decoder(_Message)


class Rooms:
    """Which chat or session a path means: X is a name or an id."""

    def __init__(self, parts: HttpParts) -> None:
        self._store = parts.store
        self._chats = chat_key(parts.agent_name, "")

    async def session(self, x: str) -> Session:
        """The session with this id, or the current one of the chat with this name. Raises `NotFound`."""
        if x.startswith(SESSION_PREFIX):
            found = await self._store.session(SessionId(x))
        else:
            found = await self._store.current_session(self._named(x))
        if found is None:
            raise NotFound(f"There is no session {x}.", "GET /api/sessions lists them.")
        return found

    async def chat(self, x: str) -> ChatKey:
        """The chat in which a message to X is spoken: by name it need not exist yet, by id it must be there
        that the session is the current one."""
        if not x.startswith(SESSION_PREFIX):
            return self._named(x)
        session = await self.session(x)
        current = await self._store.current_session(session.chat_key)
        if current is None or current.id != session.id:
            raise Refused(
                409,
                "not_current",
                f"{x} is not the current session of its chat.",
                f"Send `/resume {x}` to the chat first, or write to the chat by its name.",
            )
        return session.chat_key

    def _named(self, name: str) -> ChatKey:
        if not is_session_name(name):
            raise BadRequest(
                f"{name!r} is no name for a session.",
                "A name has 1 to 128 of the characters A-Z a-z 0-9 . _ - and does not start with ses_.",
            )
        return ChatKey(self._chats + name)  # a name has nothing that a key would have to quote


class SessionRoutes:
    def __init__(self, parts: HttpParts, desk: TurnDesk) -> None:
        self._parts = parts
        self._desk = desk
        self._rooms = Rooms(parts)

    async def send(self, call: Call) -> Reply:
        """202 once the message is durable; with `?wait=` 200 and the finished turn, if it ends in time."""
        seconds = _read_wait(call)
        key = call.idempotency_key()
        message = await call.json(_MESSAGE, self._parts.settings.max_body)
        if not (message.text.strip() or message.files):
            raise BadRequest("The field `text` is empty.", "Write something, or name `files`.")
        chat = await self._rooms.chat(call.path("x"))
        said: tuple[Part, ...] = (Text(message.text),) if message.text.strip() else ()
        if message.files:
            said += await self._parts.uploads.parts(chat, message.files)
        receipt = await self._parts.turns.submit(Inbound(chat, CALLER, said, key, message.model or None))
        turn = receipt.turn
        if seconds > 0:
            turn = await self._desk.wait(call, receipt, seconds)
            if turn.state.is_final:
                return json_answer(await self._desk.view(receipt, turn))
        elif receipt.live is not None:
            turn = receipt.live.turn
        return json_answer(TurnTicket(turn.id, turn.session_id, turn.state), 202)

    async def list(self, call: Call) -> Reply:
        page = await self._parts.store.sessions(_read_page(call))
        return json_answer({"items": [SessionView.of(session) for session in page.items], "next": page.next})

    async def show(self, call: Call) -> Reply:
        session = await self._rooms.session(call.path("x"))
        pinned = session.spec_id and await self._parts.store.spec(session.spec_id)
        model = f"{pinned.spec.provider}/{pinned.spec.model}" if pinned else None
        return json_answer(SessionView.of(session, model))

    async def entries(self, call: Call) -> Reply:
        session = await self._rooms.session(call.path("x"))
        return json_answer(await self._parts.store.entries(session.id, _read_page(call)))

    async def end(self, call: Call) -> Reply:
        session = await self._rooms.session(call.path("x"))
        if session.ended_at is None:
            try:
                session = await self._parts.turns.end(session.id)
            except LeaseHeld:
                raise _busy(session.id) from None
        return json_answer(SessionView.of(session))


def _busy(session_id: SessionId) -> Refused:
    return Refused(
        409,
        "busy",
        f"A turn of {session_id} runs or waits.",
        "Wait until it is done, or stop it with POST /api/turns/ID/cancel.",
    )


def _read_wait(call: Call) -> float:
    given = call.query().get("wait")
    if given is None:
        return 0.0
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise BadRequest(f"wait={given} is no number of seconds.", "Write for example ?wait=30.")
    return min(seconds, _LONGEST_WAIT)


def _read_page(call: Call) -> Page:
    query = call.query()
    limit = query.get("limit", "50")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _LARGEST_PAGE):
        raise BadRequest(
            f"limit={limit} is no size for a page.", f"Write a number from 1 to {_LARGEST_PAGE}."
        )
    return Page(int(limit), query.get("after") or None)
