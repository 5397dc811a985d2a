"""Workspaces in memory, with shells, background processes and browsers that do nothing."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey, SessionId
from talaria.core.shells import OutputSink, ShellCommand, ShellEnd, ShellState
from talaria.testing.fake_processes import FakeProcess, FakeProcesses
from talaria.workspace.places import SessionPlaces
from talaria.workspace.shell import SessionCommands, SessionShell
from talaria.workspace.workspaces import ChatWorkspace, ChatWorkspaces


class ReleaseBehaviour(Enum):
    """The course of a release."""

    AT_ONCE = "at once"
    SLOW = "slow"
    HANGS = "hangs"
    FAILS = "fails"
    FAILS_AT_ONCE = "fails at once"


class FakeSession:
    """The state of one session: its shell, its processes, the page of its browser."""

    def __init__(self) -> None:
        self.cwd = ""
        self.environment: dict[str, str] = {}
        self.processes: list[FakeProcess] = []
        self.page: str | None = None

    def start(self, command: str) -> FakeProcess:
        self.processes.append(FakeProcess(command, f"p{len(self.processes) + 1}"))
        return self.processes[-1]


class FakeShell(SessionShell):
    """A shell that knows `cd`, `export`, `pwd`, `echo` and `exit`, one for each line."""

    def __init__(
        self, session: FakeSession, folder: Path, places: SessionPlaces, commands: SessionCommands
    ) -> None:
        super().__init__(places, commands)
        self._session = session
        self._folder = folder

    @property
    def confinement(self) -> str:
        return "Commands run in no sandbox: they are not run at all."

    async def state(self) -> ShellState:
        return ShellState(self._session.cwd, dict(self._session.environment))

    async def run(self, command: ShellCommand, sink: OutputSink) -> ShellEnd:
        if not command.text.strip() or "\0" in command.text:
            raise ToolError("The command is empty or has a NUL byte.")
        session, code = self._session, 0
        for line in command.text.splitlines():
            word, _, rest = line.strip().partition(" ")
            cwd = session.cwd or str(self._folder)
            match word:
                case "cd":
                    session.cwd = posixpath.normpath(posixpath.join(cwd, rest))
                case "export":
                    name, _, value = rest.partition("=")
                    session.environment[name] = value
                case "pwd":
                    await sink(f"{cwd}\n".encode())
                case "echo":
                    shown = session.environment.get(rest[1:], "") if rest.startswith("$") else rest
                    await sink(f"{shown}\n".encode())
                case "exit":
                    code = int(rest)
                    break
                case _:
                    code = 127
        return ShellEnd(code, session.cwd or str(self._folder))


class FakeWorkspace(ChatWorkspace):
    """A handle, which must be released exactly once."""

    __slots__ = ("_all", "folder", "is_project")

    folder: Path
    is_project: bool

    def __init__(self, all_: FakeWorkspaces, session_id: SessionId, chat_key: ChatKey, folder: Path) -> None:
        super().__init__(all_, session_id, chat_key)
        self._all = all_
        self.folder = folder
        self.is_project = False

    @property
    def session(self) -> FakeSession:
        """The state of the session, created on first use."""
        return self._all.sessions.setdefault(self.session_id, FakeSession())

    @property
    def shell(self) -> FakeShell:
        return FakeShell(self.session, self.folder, self.places, self._all.commands)

    @property
    def processes(self) -> FakeProcesses:
        return FakeProcesses(self, self._all.processes, self.session.processes, self.session.start)

    async def claim(self) -> None:
        pass

    def release(self) -> Coroutine[Any, Any, None] | None:
        self._all.held.remove(self)  # raises KeyError when it was released before
        behaviour = self._all.behaviour()
        if behaviour is ReleaseBehaviour.FAILS_AT_ONCE:
            raise RuntimeError("the handle broke")
        return None if behaviour is ReleaseBehaviour.AT_ONCE else self._all.take_back(behaviour)


class FakeWorkspaces(ChatWorkspaces):
    """`behaviour` is called for each release. `held` are the handles in use. `ended` lists each call of
    `end`."""

    def __init__(
        self,
        folder_of: Callable[[ChatKey], Path],
        behaviour: Callable[[], ReleaseBehaviour] = lambda: ReleaseBehaviour.AT_ONCE,
        slow_seconds: float = 0.0,
    ) -> None:
        super().__init__(Path("/nowhere"))
        self._folder_of = folder_of
        self._slow_seconds = slow_seconds
        self.behaviour = behaviour
        self.sessions: dict[SessionId, FakeSession] = {}
        self.held: set[FakeWorkspace] = set()
        self.ended: list[SessionId] = []
        self.is_closed = False

    def open(self, session_id: SessionId, chat_key: ChatKey) -> FakeWorkspace:
        handle = FakeWorkspace(self, session_id, chat_key, self._folder_of(chat_key))
        self.held.add(handle)
        return handle

    async def end(self, session_id: SessionId) -> None:
        self.ended.append(session_id)
        await asyncio.sleep(0)
        session = self.sessions.get(session_id)
        if session is not None:
            session.page = None
            for process in session.processes:
                process.stop(143)
            session.processes.clear()

    async def forget(self, session_id: SessionId) -> None:
        await self.end(session_id)
        self.sessions.pop(session_id, None)

    async def kept(self) -> Sequence[SessionId]:
        return tuple(self.sessions)

    async def close(self) -> None:
        self.is_closed = True

    async def take_back(self, behaviour: ReleaseBehaviour) -> None:
        """Finish the release of a handle that is not released at once."""
        await asyncio.sleep(self._slow_seconds)
        if behaviour is ReleaseBehaviour.FAILS:
            raise RuntimeError("the handle broke")
        if behaviour is ReleaseBehaviour.HANGS:
            await asyncio.get_running_loop().create_future()
