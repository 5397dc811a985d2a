"""Workspaces in memory: shells, background processes and browsers that do nothing but be there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from pathlib import Path
from typing import Any

from talaria.core.ids import ChatKey, SessionId


class Giving(Enum):
    """How a handle is given back."""

    AT_ONCE = "at once"
    SLOW = "slow"
    HANGS = "hangs"
    FAILS = "fails"
    FAILS_AT_ONCE = "fails at once"


class FakeProcess:
    """A background process: it runs until somebody stops it."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.is_running = True


class FakeSession:
    """What one session has: the state of its shell, its processes, its browser's page."""

    def __init__(self) -> None:
        self.cwd = "/"
        self.environment: dict[str, str] = {}
        self.processes: list[FakeProcess] = []
        self.page: str | None = None

    def start(self, command: str) -> FakeProcess:
        self.processes.append(FakeProcess(command))
        return self.processes[-1]


class FakeWorkspace:
    """A handle, given back once."""

    __slots__ = ("_owner", "folder", "session_id")

    def __init__(self, owner: FakeWorkspaces, session_id: SessionId, folder: Path) -> None:
        self._owner = owner
        self.session_id = session_id
        self.folder = folder

    @property
    def session(self) -> FakeSession:
        """What the session has; made when it is first asked for."""
        return self._owner.sessions.setdefault(self.session_id, FakeSession())

    def release(self) -> Coroutine[Any, Any, None] | None:
        self._owner.held.remove(self)  # fails when it was given back before
        giving = self._owner.giving()
        if giving is Giving.FAILS_AT_ONCE:
            raise RuntimeError("the handle broke")
        return None if giving is Giving.AT_ONCE else self._owner.take_back(giving)


class FakeWorkspaces:
    """`giving` is asked for each handle how it is given back; `held` are those that are out, `ended` the
    sessions that were ended, as often as they were."""

    def __init__(
        self,
        folder_of: Callable[[ChatKey], Path],
        giving: Callable[[], Giving] = lambda: Giving.AT_ONCE,
        slow_seconds: float = 0.0,
    ) -> None:
        self._folder_of = folder_of
        self._slow_seconds = slow_seconds
        self.giving = giving
        self.sessions: dict[SessionId, FakeSession] = {}
        self.held: set[FakeWorkspace] = set()
        self.ended: list[SessionId] = []
        self.is_closed = False

    def open(self, session_id: SessionId, chat_key: ChatKey) -> FakeWorkspace:
        handle = FakeWorkspace(self, session_id, self._folder_of(chat_key))
        self.held.add(handle)
        return handle

    async def end(self, session_id: SessionId) -> None:
        self.ended.append(session_id)
        await asyncio.sleep(0)
        session = self.sessions.get(session_id)
        if session is not None:
            session.page = None
            for process in session.processes:
                process.is_running = False
            session.processes.clear()

    async def close(self) -> None:
        self.is_closed = True

    async def take_back(self, giving: Giving) -> None:
        """What is left to do for a handle that is not given back at once."""
        await asyncio.sleep(self._slow_seconds)
        if giving is Giving.FAILS:
            raise RuntimeError("the handle broke")
        if giving is Giving.HANGS:
            await asyncio.get_running_loop().create_future()
