"""How sessions end and what is forgotten: the hook of every end, expiry by rule, and retention."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, time, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import LeaseHeld, StoreError, ToolError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.files import MESSAGES, RESULTS, Removal
from talaria.core.ids import ChatKey, SessionId, new_owner_id
from talaria.core.sessions import Session
from talaria.core.tasks import Closer, finish
from talaria.observe.loop_watch import Load
from talaria.store.store import Store
from talaria.turns.feed import RecordChange, RecordEvent, StateFeed
from talaria.turns.settings import RetentionSettings, SessionSettings
from talaria.workspace.uploads import remove_private

if TYPE_CHECKING:
    from talaria.core.hooks import Hooks
    from talaria.workspace.workspaces import ChatWorkspaces


_log = logging.getLogger("talaria.turns")
_retention_log = logging.getLogger("talaria.retention")
END_SECONDS = 10.0
_ENDING_LEASE_SECONDS = 30.0  # for the moment in which a session is ended
_EXPIRY_SECONDS = 60.0
_RETENTION_SECONDS = 600.0
_CALM_SECONDS = 1.0

# A repeated message is recognised by its key for at least a day, even if the ledger is kept for less.
KEY_SECONDS = 86_400.0


def reset_cutoff(settings: SessionSettings, now: float, zone: tzinfo | None) -> float:
    """Return the moment before which an unused session has expired; 0 if sessions never expire.

    `zone` None means the machine's own time zone. If a change of clocks skips the daily time, the moment
    behind the gap counts; if the daily time comes twice, the first one counts.
    """
    cutoff = 0.0
    if settings.reset in ("idle", "both"):
        cutoff = max(cutoff, now - settings.idle_after.total_seconds())
    if settings.reset in ("daily", "both"):
        cutoff = max(cutoff, _latest_daily(time.fromisoformat(settings.daily_at), now, zone))
    return cutoff


def _latest_daily(at: time, now: float, zone: tzinfo | None) -> float:
    today = datetime.fromtimestamp(now, zone).date()
    for days in range(3):
        moment = datetime.combine(today - timedelta(days=days), at, zone).timestamp()
        if moment <= now:
            return moment
    raise AssertionError("one of the last three days had this time")


class SessionLifecycle(msgspec.Struct, eq=False, dict=True):
    """Ends sessions: on request, by expiry, or for a message that finds its session expired.

    Every end is first written to the store, by exactly one caller, which then calls `ended`. That releases
    the session's agent and lets its workspace stop what the session had. The workspace gets `END_SECONDS`;
    no caller waits for it, and a failure is only logged.

    `release` lets a session's agent leave the pool. `cutoff` returns the moment before which an unused
    session has expired, 0 for never. Of several gateways on one database, the one that `is_in_charge` ends
    those.
    """

    _store: Store
    _clock: Clock
    _workspaces: ChatWorkspaces
    release: Callable[[SessionId], None]
    cutoff: Callable[[], float] = lambda: 0.0
    hooks: Hooks | None = None
    is_in_charge: Callable[[], bool] = lambda: True
    feed: StateFeed | None = None

    def __post_init__(self) -> None:
        self._closer = Closer(self._clock, END_SECONDS, "the workspace", _log)

    def ended(
        self, session_id: SessionId, chat: ChatKey | None = None, what: RecordEvent = "session.ended"
    ) -> None:
        """Clean up after a session that was ended in the store. Must be called once for each end. If its chat
        is given, listeners of the feed are told `what` happened."""
        if self.feed is not None and chat is not None:
            self.feed.note(RecordChange(what, session_id, chat, self._clock.now()))
        _log.info("session %s ended", session_id)
        self.release(session_id)
        self._closer.close(session_id, partial(self._workspaces.end, session_id))
        if self.hooks is not None:
            self.hooks.session_ended(session_id)

    async def end(self, session_id: SessionId) -> Session:
        """End the session now and return it; a session that has ended already is returned unchanged.

        The end is carried out even if the caller is cancelled. Raises `LeaseHeld` while a turn of the session
        runs or waits, `NotFound`.
        """
        return await finish(self._end(session_id))

    async def _end(self, session_id: SessionId) -> Session:
        fence = await self._store.hold(session_id, new_owner_id(), _ENDING_LEASE_SECONDS)
        ended = await self._store.end_session(session_id, fence)
        if ended.session.ended_at is None:
            raise LeaseHeld(f"A turn of {session_id} waits.", "Try again when it is over.")
        if ended.is_news:
            self.ended(session_id, ended.session.chat_key)
        return ended.session

    async def run(self, every: float = _EXPIRY_SECONDS) -> None:
        """End expired sessions every `every` seconds, until cancelled."""
        while True:
            if self.is_in_charge():
                await self.sweep()
            await self._clock.sleep(every)

    async def sweep(self) -> int:
        """End the sessions that have expired and return how many. A session with a turn that runs or waits
        never expires."""
        total = 0
        cutoff = self.cutoff()
        while cutoff and (count := await finish(self._end_unused(cutoff))):
            total += count
        return total

    async def _end_unused(self, cutoff: float) -> int:
        unused = await self._store.end_unused(cutoff)
        for session_id in unused:
            is_heard = self.feed is not None and self.feed.listeners
            session = await self._store.session(session_id) if is_heard else None
            self.ended(session_id, session.chat_key if session is not None else None)
        return len(unused)

    async def forget(self, session_id: SessionId) -> None:
        """Remove what the workspaces keep for a session that was deleted. A failure is only logged."""
        try:
            await self._workspaces.forget(session_id)
        except Exception:  # it is tried again by the next sweep
            _log.exception("the rest of session %s stays for now", session_id)

    async def sweep_workspaces(self) -> None:
        """Do for deleted and ended sessions what the end of a process kept from being done. Raises
        `StoreError`."""
        for session_id in await self._workspaces.kept():
            session = await self._store.session(session_id)
            if session is None:
                await self.forget(session_id)
            elif session.ended_at is not None:
                self._closer.close(session_id, partial(self._workspaces.end, session_id))

    async def drain(self) -> None:
        """Wait until every workspace has ended its session or was given up."""
        await self._closer.drain()


class Retention(msgspec.Struct, eq=False):
    """Deletes by rule what weeks of turns leave behind. Unsettled turns and unsent replies stay.

    Each order to the store is small, so that the orders of turns come in between. `_drop_results` deletes the
    files that tools left before a moment and returns how many. Nothing is begun while `load` sheds scheduled
    work. Of several gateways on one database, the one that `is_in_charge` deletes rows; each deletes its own
    files.
    """

    _store: Store
    _clock: Clock
    _settings: RetentionSettings
    _drop_results: Callable[[float], Awaitable[int]]
    load: Load = msgspec.field(default_factory=Load)
    is_in_charge: Callable[[], bool] = lambda: True
    _position: int = 0

    async def run(self) -> None:
        while True:
            await self.sweep()
            await self._clock.sleep(_RETENTION_SECONDS)

    async def sweep(self) -> None:
        ledger = self._clock.now() - max(self._settings.ledger.total_seconds(), KEY_SECONDS)
        counts = await self._sweep_rows(ledger) if self.is_in_charge() else {}
        counts["results of tools"] = await self._drop_results(ledger)
        if any(counts.values()):
            deleted = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            _retention_log.info("forgot %s", deleted)

    async def _sweep_rows(self, ledger: float) -> dict[str, int]:
        settings, now = self._settings, self._clock.now()
        old = now - settings.responses.total_seconds()
        responses = await self._exhaust(lambda: self._store.responses.prune(old))
        ephemeral = await self._store.prune_ephemeral(now - settings.ephemeral.total_seconds())
        ended = 0
        if (kept := settings.ended_sessions_kept) is not None:
            ended = await self._exhaust(lambda: self._store.retention.prune_ended(now - kept.total_seconds()))
        before = now - settings.job_sessions.total_seconds()
        return {
            "responses": responses,
            "ephemeral sessions": ephemeral,
            "ended sessions": ended,
            "sessions of jobs": await self._exhaust(lambda: self._store.retention.prune_runs(before)),
            "runs of jobs": await self._exhaust(lambda: self._store.jobs.prune(before)),
            "turns": await self._forget_turns(ledger),
            "specs": await self._exhaust(self._store.retention.prune_specs),
        }

    async def _forget_turns(self, before: float) -> int:
        """Continue where the last sweep ended. The first sweep of a process looks at all turns."""
        total = 0
        while True:
            await self._wait_for_calm()
            forgotten = await self._store.retention.forget_turns(self._position, before)
            total += forgotten.turns
            if forgotten.position is None:
                return total
            self._position = forgotten.position

    async def _exhaust(self, order: Callable[[], Awaitable[int]]) -> int:
        total = 0
        await self._wait_for_calm()
        while count := await order():
            total += count
            await self._wait_for_calm()
        return total

    async def _wait_for_calm(self) -> None:
        while self.load.sheds_scheduled:
            await self._clock.sleep(_CALM_SECONDS)


# -- deleting sessions: from the store, from memory and from the disk -------------------------------------


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
        self._sessions.ended(session_id, session.chat_key, "session.deleted")
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
