"""`LogIndex`: the index over the logs of all sessions, filled behind the turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import tzinfo
from pathlib import Path
from threading import Lock
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec

from talaria.core.access import Reach
from talaria.core.clock import Clock
from talaria.core.entries import Entry
from talaria.core.errors import BadRequest, StoreError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey, SessionId
from talaria.core.ledger import BranchPoint
from talaria.core.sessions import Session
from talaria.search import ranking
from talaria.search.side_file import (
    EVERY_DOCUMENT,
    Addition,
    Document,
    SideFile,
    open_side_file,
    replace_side_file,
)
from talaria.search.words import analyse, excerpt, full_text, indexed_text, speaker_of
from talaria.store.sqlite.faults import DiskFault, driver, kind_of, storage_failure
from talaria.store.store import RecallStore

# -- the results of searches in the index, and its state --------------------------------------------------


class FoundEntry(msgspec.Struct, frozen=True):
    """An entry that was found. `excerpt` is the text around the words that matched, in one line, and
    `speaker` the name of its sender, or `assistant`, or the name of a tool. A better hit has a higher
    `score`; scores of different queries cannot be compared."""

    session_id: SessionId
    seq: int
    chat_key: ChatKey
    title: str
    speaker: str
    at: float
    excerpt: str
    score: float


class LogHit(msgspec.Struct, frozen=True):
    """An entry of a log that was found. Copies of an entry in branches have the same `terms`."""

    session_id: SessionId
    seq: int
    score: float
    terms: str


class IndexReading(msgspec.Struct, frozen=True):
    """The index compared with the log. `missing_entries` is 0 unless the log has entries that are not
    indexed."""

    sessions: int
    missing_entries: int


class SearchPage(msgspec.Struct, frozen=True):
    """A page of hits, the best first. `next` leads to the next page, if there is one. `is_complete` is False
    while older conversations are still being indexed."""

    hits: tuple[FoundEntry, ...]
    next: str | None = None
    is_complete: bool = True


# -- `LogIndex`: the index over the logs of all sessions, filled behind the turns -------------------------


P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("talaria.search")

SIDE_FILE = "search.db"
_POLL_SECONDS = 5.0
_SWEEP_SECONDS = 3600.0
_SLACK_SECONDS = 2.0  # a change may become visible a little after a later one
_PAGE = 200
_SLICE_BYTES = 16 << 10  # takes some milliseconds
_PAUSE = 9.0  # beside turns, times the time of a slice
_SEARCH_SECONDS = 2.0  # that a search takes in what is missing
_MOST_HITS = 200
_MOST_SPANS = 64
_MOST_QUERY_CHARS = 2000


class LogIndex:
    """The full text of all lasting sessions. The side file is opened at the first use.

    The index is filled behind the turns and can be deleted at any time; it is then made again. A search first
    takes in what was appended since, for a bounded time. Sessions that are deleted are never returned.

    All work on the file is done in a thread, one piece at a time. A search waits for one such piece at most.
    """

    def __init__(self, path: Path, store: RecallStore, clock: Clock, zone: tzinfo | None = None) -> None:
        self.path = path
        self._store = store
        self._clock = clock
        self._zone = zone
        self._file: SideFile | None = None
        self._turn = asyncio.Lock()
        self._busy = Lock()  # also while a cancelled caller's work goes on
        self._since = clock.now()  # of this process, until the file is opened
        self._replaced = 0  # how often the file was damaged
        self._compared_at: float | None = None
        self.reading: IndexReading | None = None  # as last compared with the log, at least once an hour

    async def close(self) -> None:
        """Close the file, after the work on it. It is opened again if the index is used."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._busy:
            self._drop_file()

    # -- filling

    async def run(self, may_work: Callable[[], bool] = lambda: True) -> None:
        """Follow the logs until cancelled. A gateway in which nothing happens does not open the file."""
        swept: float | None = None
        while True:
            await self._clock.sleep(_POLL_SECONDS)
            if not may_work():
                continue
            if self._file is None and not await self._store.changed(self._since - _SLACK_SECONDS, None, 1):
                continue
            try:
                while not await self.catch_up(_POLL_SECONDS, _PAUSE) and may_work():
                    pass
                if swept is None or self._clock.elapsed() - swept > _SWEEP_SECONDS:
                    swept = self._clock.elapsed()
                    await self.sweep()
            except StoreError as error:
                _log.warning("the search index is not filled: %s", error)
                await self._clock.sleep(_SWEEP_SECONDS / 60)

    async def catch_up(self, seconds: float, pause: float = 0.0) -> bool:
        """Index what was appended since the last time, for about `seconds`. Return whether that was all.

        Each slice of the work is followed by a pause that is so many times as long. Once an hour, an index
        that has less than the log is filled from the beginning.
        """
        until = self._clock.elapsed() + seconds
        if not await self._follow_changes(until, pause):
            return False
        now = self._clock.elapsed()
        if self._compared_at is not None and now - self._compared_at < _SWEEP_SECONDS:
            return True
        if await self._is_behind():
            await self._use(SideFile.set_since, 0.0)
            if not await self._follow_changes(until, pause):
                return False
            await self._is_behind()
        self._compared_at = now
        return True

    async def _follow_changes(self, until: float, pause: float) -> bool:
        """Index the sessions that have changed since the file's cursor. Return whether that was all. If the
        file is replaced meanwhile, restart with the cursor of the new one."""
        file, since = await self._use(_read_cursor)
        since, after = min(since, self._clock.now()) - _SLACK_SECONDS, None
        while True:
            page = await self._store.changed(since, after, _PAGE)
            heads = await self._use(SideFile.heads, [session.id for session in page])
            await self._follow_all(page, heads, pause)
            if page:
                since, after = page[-1].updated_at, page[-1].id
                if not await self._use(_move_cursor, file, since):
                    (file, since), after = await self._use(_read_cursor), None
                elif len(page) < _PAGE:
                    return True
            else:
                return True
            if self._clock.elapsed() >= until:
                return False

    async def _is_behind(self) -> bool:
        """Compare the numbers of the index with those of the log."""
        logged, indexed = await self._store.totals(), await self._use(SideFile.totals)
        missing = max(0, logged.entries - indexed.entries)
        self.reading = IndexReading(logged.sessions, missing)
        if missing:
            _log.info("the search index lacks %d entries of the log and is filled again", missing)
        return missing > 0

    async def _follow_all(
        self, sessions: Sequence[Session], heads: Mapping[SessionId, int], pause: float
    ) -> None:
        """Index sessions that are indexed up to `heads`. What several of them have to add goes into one
        transaction, as long as it is little."""
        began, batch = self._clock.elapsed(), list[_Slice]()
        for session in sessions:
            indexed, head = heads.get(session.id, 0), session.revision.seq
            if indexed == head:
                continue
            entries = await self._store.slice(session.id, indexed, _SLICE_BYTES)
            if not entries or entries[-1].seq < head:
                await self.follow(session.id, session.chat_key, head, pause)
                continue
            batch.append(_Slice.of(session.id, session.chat_key, indexed, entries))
            if sum(each.size for each in batch) >= _SLICE_BYTES:
                await self._add(batch, began, pause)
                began, batch = self._clock.elapsed(), []
        if batch:
            await self._add(batch, began, pause)

    async def follow(
        self, session_id: SessionId, chat_key: ChatKey | None, head: int, pause: float = 0.0
    ) -> None:
        """Index the log of a session up to its `head`. Without a chat key it keeps the one that it has."""
        indexed = (await self._use(SideFile.heads, [session_id])).get(session_id, 0)
        if indexed > head:  # an older database was put back
            await self._forget(session_id, 0)
            indexed = 0
        while indexed < head:
            began = self._clock.elapsed()
            entries = await self._store.slice(session_id, indexed, _SLICE_BYTES)
            if not entries:
                return
            await self._add([_Slice.of(session_id, chat_key, indexed, entries)], began, pause)
            indexed = entries[-1].seq

    async def _add(self, batch: Sequence[_Slice], began: float, pause: float) -> None:
        """Index slices, of which each may be followed by others. If another caller was quicker with one, go
        on behind what is indexed."""
        hit(Failpoint.INDEXING)
        is_whole = await self._use(_add, batch)
        hit(Failpoint.INDEXED)
        if pause:
            await self._clock.sleep(pause * (self._clock.elapsed() - began))
        for each in () if is_whole else batch:
            await self.follow(each.session_id, each.chat_key, each.entries[-1].seq, pause)

    # -- forgetting

    async def forget(self, session_id: SessionId) -> None:
        """Remove a deleted session from the index. Does nothing if the index cannot be written: its hits are
        left out all the same, and it is removed later."""
        if self._file is None and not self.path.exists():
            return
        try:
            await self._drop([session_id])
        except StoreError as error:
            _log.warning("session %s is removed from the search index later: %s", session_id, error)

    async def sweep(self) -> None:
        """Remove the sessions that do not exist any more. Raises `StoreError`."""
        after = 0
        while page := await self._use(SideFile.sessions, after, _PAGE):
            await self._drop([session.id for session in page])
            after = page[-1].number

    async def _drop(self, ids: Sequence[SessionId]) -> None:
        known = await self._store.known_sessions(ids)
        gone = [session_id for session_id in ids if session_id not in known]
        kept = await self._store.kept_parents(gone)
        for session_id in gone:
            await self._forget(session_id, kept.get(session_id, 0))

    async def _forget(self, session_id: SessionId, kept_seq: int) -> None:
        while await self._use(SideFile.forget, session_id, kept_seq):
            pass

    # -- finding

    async def search(self, query: str, reach: Reach, limit: int = 10, after: str | None = None) -> SearchPage:
        """Find the entries that fit a text best: a question, some words, or "words in quotation marks" which
        must stand together. `after` is the `next` of an earlier page.

        Raises `BadRequest` for a query without words and for an invalid page, and `StoreError`.
        """
        parsed, offset = _parse(query), _offset(after, limit)
        while True:
            replaced = self._replaced
            is_complete = await self.catch_up(_SEARCH_SECONDS)
            left = await self._use(_find_within, parsed, reach.roots, offset + 3 * limit, self._zone)
            if self._replaced == replaced:
                break
        hits: list[FoundEntry] = []
        seen = set[str]()
        while left and len(hits) <= offset + limit:
            some, left = left[: 2 * limit], left[2 * limit :]
            sessions = await self._store.known_sessions(list({each.session_id for each in some}))
            for each in some:
                session = sessions.get(each.session_id)
                if session is None or not reach.includes(session.chat_key) or each.terms in seen:
                    continue  # deleted, of a chat that has moved, or a copy in a branch
                if (entry := await self._store.entry(session.id, each.seq)) is not None:
                    seen.add(each.terms)
                    hits.append(_found_entry(session, entry, parsed, each.score))
        page = tuple(hits[offset : offset + limit])
        more = len(hits) > offset + limit and offset + limit < _MOST_HITS
        return SearchPage(page, str(offset + limit) if more else None, is_complete)

    async def find(self, query: str, logs: Sequence[BranchPoint], limit: int) -> Sequence[LogHit]:
        """Find the entries of these logs that fit a text best, in each up to a seq. Raises `BadRequest` for a
        query without words, and `StoreError`."""
        parsed = _parse(query)
        while True:
            replaced = self._replaced
            for log in logs:
                await self.follow(log.session_id, None, log.seq)
            found = await self._use(_find_in_logs, parsed, logs, 2 * limit, self._zone)
            if self._replaced == replaced:
                break
        unique = {each.terms: each for each in reversed(found)}  # the best of equal ones
        return sorted(unique.values(), key=found.index)[:limit]

    # -- the file

    async def _use(self, work: Callable[Concatenate[SideFile, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work on the file in a thread. A damaged file is replaced by an empty one, once."""
        async with self._turn:
            return await asyncio.to_thread(self._try, lambda file: work(file, *args, **kwargs))

    def _try(self, work: Callable[[SideFile], T]) -> T:
        with self._busy:
            try:
                if self._file is None:
                    self._file = open_side_file(self.path)
                try:
                    return work(self._file)
                except driver.DatabaseError as error:
                    if kind_of(error) is not DiskFault.DAMAGED:
                        raise
                    self._drop_file()
                    self._replaced += 1
                    self._file = replace_side_file(self.path, str(error))
                    return work(self._file)
            except driver.Error as error:
                raise storage_failure(error, self.path.parent) from error

    def _drop_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


@asynccontextmanager
async def open_index(
    home: Path, store: RecallStore, clock: Clock, zone: tzinfo | None = None
) -> AsyncIterator[LogIndex]:
    """Open the index of a home, and close it on leaving."""
    index = LogIndex(home / SIDE_FILE, store, clock, zone)
    try:
        yield index
    finally:
        await index.close()


# -- work on the file, in its thread ----------------------------------------------------------------------


class _Slice(NamedTuple):
    """Entries of a session behind the seq `after_seq`, and the texts of those that say something."""

    session_id: SessionId
    chat_key: ChatKey | None
    after_seq: int
    entries: Sequence[Entry]
    texts: Sequence[tuple[Entry, str]]

    @classmethod
    def of(
        cls, session_id: SessionId, chat_key: ChatKey | None, after_seq: int, entries: Sequence[Entry]
    ) -> _Slice:
        texts = [(entry, text) for entry in entries if (text := indexed_text(entry))]
        return cls(session_id, chat_key, after_seq, entries, texts)

    @property
    def size(self) -> int:
        return sum(len(text) for _, text in self.texts)


def _read_cursor(file: SideFile) -> tuple[SideFile, float]:
    return file, file.since()


def _move_cursor(file: SideFile, known: SideFile, since: float) -> bool:
    """Return False if the file is another one than the one that was filled."""
    if file is known:
        file.set_since(since)
    return file is known


def _add(file: SideFile, batch: Sequence[_Slice]) -> bool:
    additions = []
    for each in batch:
        documents = []
        for entry, text in each.texts:
            found, traits = analyse(text)
            told = (entry.seq, entry.at, speaker_of(entry), int(traits), len(found), " ".join(found))
            documents.append(Document(*told))
        additions.append(Addition(*each[:3], documents, each.entries[-1].seq))
    return file.add(additions)


def _find_within(
    file: SideFile,
    query: ranking.Query,
    roots: tuple[ChatKey, ...] | None,
    most: int,
    zone: tzinfo | None,
) -> list[LogHit]:
    if roots is None:
        extent = ranking.Extent([EVERY_DOCUMENT], file.count(), needs_words=True)
        return _rank(file, query, extent, most, zone)
    sessions = file.sessions_within(roots)
    count = sum(session.head for session in sessions)
    extent = ranking.Extent([session.span() for session in sessions], count, needs_words=True)
    if len(sessions) > _MOST_SPANS:
        extent = ranking.Extent([EVERY_DOCUMENT], count, {each.number for each in sessions}, needs_words=True)
    return _rank(file, query, extent, most, zone)


def _find_in_logs(
    file: SideFile, query: ranking.Query, logs: Sequence[BranchPoint], limit: int, zone: tzinfo | None
) -> list[LogHit]:
    known = [(file.session(log.session_id), log.seq) for log in logs]
    spans = [session.span(seq) for session, seq in known if session is not None]
    return _rank(file, query, ranking.Extent(spans, sum(log.seq for log in logs)), limit, zone)


def _rank(
    file: SideFile, query: ranking.Query, extent: ranking.Extent, limit: int, zone: tzinfo | None
) -> list[LogHit]:
    ranked = ranking.rank(file, query, extent, limit, zone)
    sessions = file.sessions_by_number({each.document.session for each in ranked})
    return [
        LogHit(sessions[each.document.session].id, each.document.seq, each.score, each.document.terms)
        for each in ranked
        if each.document.session in sessions
    ]


# -- queries and pages ------------------------------------------------------------------------------------


def _parse(query: str) -> ranking.Query:
    parsed = ranking.parse_query(query[:_MOST_QUERY_CHARS])
    if not parsed.terms:
        raise BadRequest("The query has no words to search for.", "Use the words that were said.")
    return parsed


def _offset(after: str | None, limit: int) -> int:
    if not 1 <= limit <= 100:
        raise BadRequest("The limit of a search must be from 1 to 100.")
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 5):
        raise BadRequest("The page of the search is not one that a search returned.", "Leave `after` out.")
    return int(after)


def _found_entry(session: Session, entry: Entry, query: ranking.Query, score: float) -> FoundEntry:
    return FoundEntry(
        session.id,
        entry.seq,
        session.chat_key,
        session.title,
        speaker_of(entry),
        entry.at,
        excerpt(full_text(entry), query.terms),
        score,
    )
