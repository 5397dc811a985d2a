"""The end of a session: the one hook that every way of ending goes through, and ending one on request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from talaria.core.clock import Clock
from talaria.core.closer import Closer
from talaria.core.errors import LeaseHeld
from talaria.core.ids import SessionId, new_owner_id
from talaria.core.ports import Store, Workspaces
from talaria.core.sessions import Session
from talaria.core.tasks import finish

_log = logging.getLogger("talaria.turns")
END_SECONDS = 10.0
_LEASE_SECONDS = 30.0


class SessionEnds:
    """Called once for each session that was ended in the store, whether its agent is warm or left long ago.

    The agent leaves memory, and the workspace stops what the session had. Nobody waits for that: it has a
    deadline of its own, and a failure is for the log.
    """

    def __init__(self, workspaces: Workspaces, clock: Clock, release: Callable[[SessionId], None]) -> None:
        self._workspaces = workspaces
        self._release = release
        self._closer = Closer(clock, END_SECONDS, "the workspace", _log)

    def __call__(self, session_id: SessionId) -> None:
        _log.info("session %s ended", session_id)
        self._release(session_id)
        self._closer.close(session_id, partial(self._workspaces.end, session_id))

    async def drain(self) -> None:
        """Until every workspace is through with its end, or was given up."""
        await self._closer.drain()


async def end_session(store: Store, session_id: SessionId, on_end: Callable[[SessionId], None]) -> Session:
    """End it now. Ended before, or by somebody else meanwhile: unchanged, and `on_end` is not called again.

    Raises `LeaseHeld` while a turn of it runs or waits. A caller who leaves stops nothing.
    """

    async def carry_out() -> Session:
        fence = await store.hold(session_id, new_owner_id(), _LEASE_SECONDS)
        ended = await store.end_session(session_id, fence)
        if ended.session.ended_at is None:
            raise LeaseHeld(f"A turn of {session_id} waits.", "Try again when it is over.")
        if ended.is_news:
            on_end(session_id)
        return ended.session

    return await finish(carry_out())
