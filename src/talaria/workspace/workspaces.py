"""The workspaces of this process: a folder for each chat, and other things that belong to sessions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from talaria.cluster.places import ChatPlaces
from talaria.core.ids import ChatKey, SessionId
from talaria.core.limits import Limits
from talaria.core.tasks import finish
from talaria.workspace.browser.browsers import SessionBrowser, SessionBrowsers
from talaria.workspace.folder import chat_folder
from talaria.workspace.places import (
    ChatFolders,
    SessionPlaces,
    has_passing,
    kept_sessions,
    remove_passing,
    remove_tree,
    session_folder,
    session_places,
    shared_shell,
)
from talaria.workspace.processes import BackgroundProcesses, SessionProcesses
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.shell import SessionCommands, SessionShell


class Belongings(Protocol):
    """A kind of things that belong to sessions, such as background processes or browsers."""

    async def end(self, session_id: SessionId) -> None:
        """End what the session has of this kind, if anything."""
        ...

    async def close(self) -> None:
        """Let go of all sessions' things without ending them."""
        ...


@dataclass(slots=True, eq=False)
class ChatWorkspace:
    """The access of an agent and its tools to a session's workspace. A handle cannot end the workspace.

    Nothing is opened before it is used. The session's working directory, environment, background processes
    and browser outlive the handle: the next handle finds them again.
    """

    _owner: ChatWorkspaces
    session_id: SessionId
    _chat_key: ChatKey

    @property
    def folder(self) -> Path:
        """The folder of the chat's files; made when a tool first needs it."""
        return self._owner.folders(self._chat_key)

    @property
    def is_project(self) -> bool:
        """Whether that folder is a project's, which people use beside the chat."""
        return self._owner.folders.find_project(self._chat_key) is not None

    @property
    def places(self) -> SessionPlaces:
        """The folders of the session's commands."""
        real, shared = self._owner.real
        project = self._owner.folders.find_project(self._chat_key)
        folder = project or chat_folder(shared or real, self._chat_key)
        known = (real, self.session_id, self._chat_key, folder)
        return session_places(*known, is_project=project is not None, shared=shared)

    @property
    def shell(self) -> SessionShell:
        """The session's shell. It starts nothing before a command is run."""
        return SessionShell(self.places, self._owner.commands)

    @property
    def processes(self) -> SessionProcesses:
        """The session's background processes."""
        claim = partial(self._owner.claim, self._chat_key, is_tied=True)
        return self._owner.processes.of(self.session_id, self.places, claim)

    @property
    def browser(self) -> SessionBrowser:
        """The session's browser. Nothing is started before a page is opened."""
        claim = partial(self._owner.claim, self._chat_key, is_tied=True)
        return SessionBrowser(self._owner.browsers, self.places, claim)

    async def claim(self) -> None:
        """Note that the chat has files on this machine, before there are any. The gateway does so before a
        call of a tool that uses files. Raises `ToolError` if its files are on another machine of the
        cluster."""
        await self._owner.claim(self._chat_key, is_tied=self.is_project)

    def release(self) -> Coroutine[Any, Any, None] | None:
        """Give the handle back, because the agent leaves memory. The session goes on. Return a coroutine for
        the work that is left, or None; cancelling it loses nothing of the session. Here nothing is left: what
        a handle reaches belongs to the session."""
        return None


class ChatWorkspaces:
    """The workspaces that tools act on, over the folders in `home`. Files belong to the chat, the rest to the
    session. If one kind of belongings fails, the others still end."""

    def __init__(
        self,
        home: Path,
        belongings: Sequence[Belongings] = (),
        commands: SessionCommands | None = None,
        folders: ChatFolders | None = None,
        limits: Limits | None = None,
        *,
        browsers: SessionBrowsers | None = None,
    ) -> None:
        self.home = home
        self.commands = commands or SessionCommands(Sandboxes("auto", home))
        self.folders = folders or ChatFolders(home)
        shared = self.folders.shared
        # The home and the folder of `store.files`, without links in their paths.
        self.real = Path(os.path.realpath(home)), shared and Path(os.path.realpath(shared))
        self.processes = BackgroundProcesses(home, self.commands, limits)
        self.browsers = browsers
        mine = (self.processes, *((browsers,) if browsers is not None else ()))
        self._belongings: tuple[Belongings, ...] = (*mine, *belongings)
        self._borrowed: dict[SessionId, ChatKey] = {}
        self._chat_places: ChatPlaces | None = None

    def use_places(self, places: ChatPlaces) -> None:
        """Tell the cluster which chats have files or processes here, from now on."""
        self._chat_places = places

    async def claim(self, chat_key: ChatKey, *, is_tied: bool = False) -> None:
        """Note that the chat has files here, or with `is_tied` something that only this machine has. Does
        nothing outside of a cluster. Raises `ToolError` if they are on another machine."""
        if self._chat_places is not None:
            await self._chat_places.claim(chat_key, is_tied=is_tied)

    def open(self, session_id: SessionId, chat_key: ChatKey) -> ChatWorkspace:
        """Return a handle for an agent of this session. Cheap: it touches no disk and starts no process."""
        return ChatWorkspace(self, session_id, chat_key)

    async def picture(self, session_id: SessionId, tool: str) -> bytes | None:
        """Return a PNG of what a call of this tool acts on, for a person who is asked; or None."""
        if self.browsers is None or not tool.startswith("browser_"):
            return None
        return await self.browsers.picture(session_id)

    async def end(self, session_id: SessionId) -> None:
        """Stop the processes of a session that is over and close its browser, if it has any. The files, the
        working directory and the environment stay, for when the session is resumed. It may be resumed before
        this returns, so processes that are started afterwards must be left alone."""
        await self._each(lambda kind: kind.end(session_id))
        folder = session_folder(self.home, session_id)
        if has_passing(folder):
            await self.commands.threads.run(session_id, remove_passing, folder)

    async def forget(self, session_id: SessionId) -> None:
        """End a session that was deleted, and remove all that was kept for it."""
        await self.end(session_id)
        folder, shared = session_folder(self.home, session_id), self.folders.shared
        if folder.exists():
            await self.commands.threads.run(session_id, remove_tree, folder)
        if shared is not None:
            shell = shared_shell(shared, session_id)
            await self.commands.threads.run(session_id, partial(shell.unlink, missing_ok=True))

    @asynccontextmanager
    async def borrow(self, session_id: SessionId, chat_key: ChatKey) -> AsyncIterator[ChatWorkspace]:
        """Give a workspace on the chat's files to work that has no session, and forget it afterwards."""
        self._borrowed[session_id] = chat_key
        try:
            yield self.open(session_id, chat_key)
        finally:
            try:
                await finish(self.forget(session_id))
            finally:
                del self._borrowed[session_id]

    def borrower(self, session_id: SessionId) -> ChatKey | None:
        """Return the chat whose files a borrowed workspace works on; None for the workspace of a session."""
        return self._borrowed.get(session_id)

    async def kept(self) -> Sequence[SessionId]:
        """Return the sessions for which something is kept, deleted ones among them if their removal was cut
        short."""
        kept = await self.commands.threads.run(self, kept_sessions, self.home, self.folders.shared)
        return [session_id for session_id in kept if session_id not in self._borrowed]

    async def close(self) -> None:
        """Let go of everything without ending a session. Whatever can outlive the gateway goes on."""
        await self._each(lambda kind: kind.close())

    async def _each(self, work: Callable[[Belongings], Awaitable[None]]) -> None:
        """Do the work for all kinds at once. Raises an `ExceptionGroup` after all have ended."""
        done = await asyncio.gather(*(work(kind) for kind in self._belongings), return_exceptions=True)
        failed = [each for each in done if isinstance(each, Exception)]
        if failed:
            raise ExceptionGroup("parts of a workspace failed", failed)
