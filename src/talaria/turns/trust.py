"""How far the context of a session and the folders of its chat can be trusted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from talaria.access.egress import has_written, may_open, read_seen
from talaria.core.clock import Clock
from talaria.core.ids import ChatKey, asking_chat
from talaria.core.limits import BoundedDict
from talaria.core.sessions import FolderName, Taint, folder_names, overlap
from talaria.core.shown import ShownLog
from talaria.core.turns import Turn
from talaria.store.store import Store, Taints
from talaria.tools.tool import SessionTrust

_MARKS_KEPT = 256


class FolderTrust(msgspec.Struct, eq=False):
    """The folders that untrusted content may have reached. Shared by all turns of the process.

    A chat works in its own folder and in that of its project, which `find_project` returns; a job works in
    those of the chat that asked for it. `_marked` are the folders that this process has marked lately: each
    is written once, and a command learns at once that its own connection has tainted the folder. The rows are
    the truth, because another gateway may have marked or cleared a folder.
    """

    _taints: Taints
    _find_project: Callable[[ChatKey], Path | None]
    _clock: Clock
    _marked: BoundedDict[FolderName, None] = msgspec.field(default_factory=partial(BoundedDict, _MARKS_KEPT))

    def is_marked(self, chat_key: ChatKey) -> bool:
        """Return whether this process has marked a folder of the chat lately, and has not cleared it."""
        names = self._names(chat_key)
        return any(overlap(name, marked) for name in names for marked in self._marked)

    async def mark(self, chat_key: ChatKey, source: str) -> None:
        """Mark the folders of a chat as tainted, durably before this returns."""
        names = self._names(chat_key)
        if all(name in self._marked for name in names):
            return
        await self._taints.mark(names, self._clock.now(), source)
        self._marked.update(dict.fromkeys(names))

    async def find(self, chat_key: ChatKey) -> Taint | None:
        return await self._taints.find(self._names(chat_key))

    async def clear(self, chat_key: ChatKey) -> None:
        """Trust the folders of a chat again, because a person said so."""
        names = self._names(chat_key)
        await self._taints.clear(names)
        for marked in [each for each in self._marked if any(overlap(name, each) for name in names)]:
            del self._marked[marked]

    def is_shared(self, chat_key: ChatKey) -> bool:
        """Return whether other chats may work in a folder of this chat."""
        return self._find_project(chat_key) is not None

    def _names(self, chat_key: ChatKey) -> tuple[FolderName, ...]:
        return folder_names(asking_chat(chat_key), self._find_project(chat_key))


class TurnTrust(SessionTrust, msgspec.Struct, eq=False):
    """The trust of one turn. `has_untrusted` says whether untrusted content is in what the model sees now.
    The run of a job has the grants of its job too."""

    _store: Store
    _folders: FolderTrust
    _turn: Turn
    _has_untrusted: Callable[[], bool]
    _was_tainted: bool | None = None  # the folder, when this turn first used it

    async def is_granted(self, digest: str) -> bool:
        order, store = self._turn.inbound.order, self._store
        is_jobs = order is not None and await store.is_granted_to_job(order.job_id, order.plan, digest)
        return is_jobs or await store.is_granted(self._turn.session_id, digest)

    async def is_tainted(self) -> bool:
        return self._has_untrusted()

    async def may_open(self, url: str, call_id: str) -> bool:
        if not self._has_untrusted():
            return True
        log = await self._store.shown_log(self._turn.session_id)
        return may_open(url, read_seen(ShownLog(log).visible_entries(), call_id))

    async def has_written(self, text: str) -> bool:
        log = await self._store.shown_log(self._turn.session_id)
        return has_written(text, ShownLog(log).visible_entries())

    async def is_folder_tainted(self) -> bool:
        if self._was_tainted is None:
            self._was_tainted = await self._folders.find(self._turn.chat_key) is not None
        return self._was_tainted or self._folders.is_marked(self._turn.chat_key)

    async def taint_folder(self, source: str) -> None:
        await self._folders.mark(self._turn.chat_key, source)
