"""Deleting sessions: from the store, from memory and from the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import StoreError, ToolError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.files import MESSAGES, RESULTS, Removal
from talaria.core.ids import ChatKey, SessionId
from talaria.core.sessions import Session
from talaria.core.tasks import finish
from talaria.store.store import Store
from talaria.turns.lifecycle import KEY_SECONDS, SessionLifecycle
from talaria.workspace.sent_files import remove_private

_log = logging.getLogger("talaria.turns")


class Deletions(msgspec.Struct, eq=False):
    """Deletes sessions.

    A session has its log, its turns with their steps and replies, saved results of tools, long messages,
    copies of sent files, and its task list. The other files of the folder belong to the chat and stay,
    uploads included.

    The store's order decides: after it the session is gone for every reader. What is left of it is removed
    afterwards, first rows, then files. `sweep` does that too, for what the end of a process left behind.

    `_folder_of` returns the folder of a chat. `_forget` removes a session from the search index. With
    `place`, files of chats in other places are left to the gateways there.
    """

    _store: Store
    _clock: Clock
    _sessions: SessionLifecycle
    _folder_of: Callable[[ChatKey], Path]
    _forget: Callable[[SessionId], Awaitable[None]]
    place: str = ""
    _sweeping: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def delete(self, session_id: SessionId) -> Session:
        """Delete the session and return it as it was.

        It is deleted even if the caller is cancelled. Raises `NotFound`; `LeaseHeld`, or `SessionOwes` while
        a turn of it is unsettled or a reply unsent; `StoreError`.
        """
        session = await finish(self._delete(session_id))
        try:
            await self.sweep()
        except StoreError as error:
            _log.error("the rest of session %s is removed later: %s", session_id, error)
        await self._forget(session_id)
        return session

    async def _delete(self, session_id: SessionId) -> Session:
        session = await self._store.delete_session(session_id, self._clock.now() - KEY_SECONDS)
        hit(Failpoint.DELETED)
        _log.info("session %s deleted", session_id)
        self._sessions.ended(session_id)
        await self._sessions.forget(session_id)
        return session

    async def sweep(self) -> None:
        """Remove what is left of deleted sessions in the store and in the folders of chats. Raises
        `StoreError`."""
        async with self._sweeping:
            count = 0
            while await self._store.retention.purge_deleted():
                count += 1
            if count:
                hit(Failpoint.PURGED)
            while removals := await self._store.retention.removals(self.place):
                await self._remove(removals[0].chat_key, removals)

    async def sweep_workspaces(self) -> None:
        """Remove what workspaces keep for sessions that were deleted. Raises `StoreError`."""
        await self._sessions.sweep_workspaces()

    async def _remove(self, chat_key: ChatKey, removals: Sequence[Removal]) -> None:
        """Remove files of one chat. A saved result that another session names stays, and goes by its age."""
        retention = self._store.retention
        mine = [removal for removal in removals if removal.chat_key == chat_key]
        named = frozenset[str]()
        if any(removal.path.startswith((RESULTS, MESSAGES)) for removal in mine):
            named = await retention.mentioned_results(chat_key)
        doomed = [removal.path for removal in mine if removal.path not in named]
        await asyncio.to_thread(_remove_files, self._folder_of(chat_key), doomed)
        await retention.forget_removals([removal.id for removal in mine])


def _remove_files(root: Path, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            remove_private(root, path)
        except ToolError as error:
            _log.warning("a file of a deleted session stays: %s", error)
