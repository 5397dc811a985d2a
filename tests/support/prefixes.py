"""A check that each request of a session begins with the bytes of the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from support.scripted_model import ScriptedModel
from talaria.core.ids import SessionId
from talaria.store.store import Store


class _Body(msgspec.Struct):
    """The raw bytes of the two members that must never change."""

    messages: msgspec.Raw
    tools: msgspec.Raw = msgspec.Raw(b"")


class PrefixWatch:
    """Checks raw request bodies one by one, and keeps only the last of each session.

    `session_of` tells whose request a body is. `breaks` says where one did not begin with the one before.
    """

    def __init__(self, session_of: Callable[[bytes], str]) -> None:
        self._session_of = session_of
        self._last: dict[str, tuple[bytes, bytes]] = {}
        self.requests: Counter[str] = Counter()
        self.breaks: list[str] = []

    def see(self, raw: bytes) -> None:
        session = self._session_of(raw)
        body = msgspec.json.decode(raw, type=_Body)
        messages, tools = bytes(body.messages), bytes(body.tools)
        if session in self._last:
            earlier, earlier_tools = self._last[session]
            if not messages.startswith(earlier[:-1]):  # without the closing bracket of the list
                self.breaks.append(f"session {session}: messages of request {self.requests[session]}")
            if tools != earlier_tools:
                self.breaks.append(f"session {session}: tools of request {self.requests[session]}")
        self._last[session] = messages, tools
        self.requests[session] += 1

    def see_all(self, bodies: Iterable[bytes]) -> None:
        for raw in bodies:
            self.see(raw)


async def check_prefixes(store: Store, model: ScriptedModel) -> None:
    """Check that the requests of each session were only appended to, but where a new epoch began."""
    breaks = Counter[str]()
    last = dict[str, _Body]()
    for session_id, raw in zip(model.sessions, model.bodies, strict=True):
        body = msgspec.json.decode(raw, type=_Body)
        if not bytes(body.tools):
            continue  # a side call
        if (before := last.get(session_id)) is not None:
            is_longer = bytes(body.messages).startswith(bytes(before.messages)[:-1])
            breaks[session_id] += not is_longer or body.tools != before.tools
        last[session_id] = body
    for session_id, number in breaks.items():
        session = await store.session(SessionId(session_id)) if number else None
        assert session is None or number <= session.revision.epoch, (number, session)
