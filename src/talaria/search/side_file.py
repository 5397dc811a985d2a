"""The side file: the index on disk, in SQLite with FTS5. It can be deleted at any time.

A document is an indexed entry. Its number has the number of its session in the high bits and its seq in the
low ones, so that the documents of a session are a range, and the neighbours of a document are beside it.
FTS5 knows in which documents a term is (`detail=none`), and ranking reads the rest from the documents.

Everything here blocks and raises errors of the driver. A file that is missing, damaged or of another version
is made anew, empty.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from talaria.core.ids import ChatKey, SessionId
from talaria.core.ledger import LogTotals
from talaria.store.sqlite.faults import DiskFault, driver, kind_of

_log = logging.getLogger("talaria.search")

VERSION = 1
SEQ_BITS = 24
_BUSY_SECONDS = 5.0
_GAP_SECONDS = 3600.0  # a longer pause ends a sitting
_SITTING_DOCUMENTS = 100  # the most that one sitting has
_FORGET_DOCUMENTS = 500  # in one transaction

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA cache_size = -1024",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA journal_size_limit = 4194304",
)
_SCHEMA = (
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, chat_key TEXT NOT NULL,
        head INTEGER NOT NULL)""",
    """CREATE TABLE documents (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, speaker TEXT NOT NULL, traits INTEGER NOT NULL,
        size INTEGER NOT NULL, terms TEXT NOT NULL)""",
    # Documents without a long pause between them.
    "CREATE TABLE sittings (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, last_at REAL NOT NULL)",
    "CREATE VIRTUAL TABLE words USING fts5(terms, content='', detail='none', columnsize=0, tokenize='ascii')",
    "CREATE TABLE state (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID",
    "INSERT INTO state VALUES ('since', 0), ('documents', 0)",
)


class Document(NamedTuple):
    """An entry in the index. `terms` are separated by spaces, and there are `size` of them."""

    number: int
    at: float
    speaker: str
    traits: int
    size: int
    terms: str

    @property
    def session(self) -> int:
        return self.number >> SEQ_BITS

    @property
    def seq(self) -> int:
        return self.number & ((1 << SEQ_BITS) - 1)


class Addition(NamedTuple):
    """Entries of a session behind the seq `after_seq`, with their seqs as numbers. The session is indexed up
    to `head` with them."""

    session_id: SessionId
    chat_key: ChatKey | None
    after_seq: int
    documents: Sequence[Document]
    head: int


class NumberedSession(NamedTuple):
    """A session in the index. Its entries up to the seq `head` are indexed."""

    number: int
    id: SessionId
    chat_key: ChatKey
    head: int

    def span(self, last_seq: int | None = None) -> NumberRange:
        first = self.number << SEQ_BITS
        return NumberRange(first, first + ((1 << SEQ_BITS) - 1 if last_seq is None else last_seq))


class NumberRange(NamedTuple):
    """The documents from `first` to `last`."""

    first: int
    last: int


EVERY_DOCUMENT = NumberRange(0, (1 << 63) - 1)


class SideFile:
    """The open file, for one thread at a time."""

    def __init__(self, db: driver.Connection) -> None:
        self._db = db

    def close(self) -> None:
        self._db.close()

    # -- sessions

    def session(self, session_id: SessionId) -> NumberedSession | None:
        row = self._db.execute(f"{_SESSIONS} WHERE id = ?", (session_id,)).fetchone()
        return None if row is None else NumberedSession(*row)

    def sessions(self, after: int, limit: int) -> list[NumberedSession]:
        rows = self._db.execute(f"{_SESSIONS} WHERE number > ? ORDER BY number LIMIT ?", (after, limit))
        return [NumberedSession(*row) for row in rows]

    def totals(self) -> LogTotals:
        """Count the sessions, and the entries up to which they are indexed."""
        return LogTotals(
            *self._db.execute("SELECT count(*), coalesce(sum(head), 0) FROM sessions").fetchone()
        )

    def sessions_within(self, roots: Iterable[ChatKey]) -> list[NumberedSession]:
        """Return the sessions of these chats and of their threads."""
        found = []
        for root in roots:
            rows = self._db.execute(
                f"{_SESSIONS} WHERE chat_key = ? OR (chat_key > ? AND chat_key < ?)",
                (root, f"{root}:", f"{root};"),
            )
            found += [NumberedSession(*row) for row in rows]
        return found

    def sessions_by_number(self, numbers: Iterable[int]) -> dict[int, NumberedSession]:
        rows = (self._db.execute(f"{_SESSIONS} WHERE number = ?", (number,)).fetchone() for number in numbers)
        return {row[0]: NumberedSession(*row) for row in rows if row is not None}

    def heads(self, ids: Iterable[SessionId]) -> dict[SessionId, int]:
        find = "SELECT head FROM sessions WHERE id = ?"
        rows = ((each, self._db.execute(find, (each,)).fetchone()) for each in ids)
        return {each: row[0] for each, row in rows if row is not None}

    # -- writing

    def add(self, additions: Sequence[Addition]) -> bool:
        """Add entries of sessions in one transaction, since FTS5 writes and merges a segment for each. Return
        False if another caller was quicker with a session, which is left as it is then."""
        with self._transaction():
            added = [self._add_entries(addition) for addition in additions]
            count = sum(len(each.documents) for each, is_new in zip(additions, added, strict=True) if is_new)
            self._db.execute("UPDATE state SET value = value + ? WHERE name = 'documents'", (count,))
        return all(added)

    def _add_entries(self, new: Addition) -> bool:
        known = self.session(new.session_id)
        if (known.head if known else 0) != new.after_seq:
            return False
        if known is None:
            self._db.execute(
                "INSERT INTO sessions (id, chat_key, head) VALUES (?, ?, ?)",
                (new.session_id, new.chat_key or "", new.head),
            )
            known = self.session(new.session_id)
            assert known is not None
        else:
            self._db.execute(
                "UPDATE sessions SET head = ?, chat_key = ? WHERE number = ?",
                (new.head, new.chat_key or known.chat_key, known.number),
            )
        for document in new.documents:
            self._add(document._replace(number=known.number << SEQ_BITS | document.number))
        return True

    def _add(self, new: Document) -> None:
        self._db.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", new)
        self._db.execute("INSERT INTO words (rowid, terms) VALUES (?, ?)", (new.number, new.terms))
        last = self._db.execute(
            "SELECT first, last_at FROM sittings WHERE first <= ? ORDER BY first DESC LIMIT 1", (new.number,)
        ).fetchone()
        goes_on = (
            last is not None
            and last[0] >> SEQ_BITS == new.session
            and new.at - last[1] <= _GAP_SECONDS
            and new.number - last[0] < _SITTING_DOCUMENTS
        )
        if goes_on:
            self._db.execute(
                "UPDATE sittings SET last = ?, last_at = ? WHERE first = ?", (new.number, new.at, last[0])
            )
        else:
            self._db.execute("INSERT INTO sittings VALUES (?, ?, ?)", (new.number, new.number, new.at))

    def forget(self, session_id: SessionId, kept_seq: int = 0) -> bool:
        """Remove documents of a session behind the seq `kept_seq`: some hundred at a time. Return whether
        there are more."""
        known = self.session(session_id)
        if known is None:
            return False
        span = known.span()
        first = span.first + kept_seq + 1
        with self._transaction():
            rows = self._db.execute(
                "SELECT number, terms FROM documents WHERE number >= ? AND number <= ? LIMIT ?",
                (first, span.last, _FORGET_DOCUMENTS),
            ).fetchall()
            for row in rows:
                self._db.execute("INSERT INTO words (words, rowid, terms) VALUES ('delete', ?, ?)", row)
                self._db.execute("DELETE FROM documents WHERE number = ?", row[:1])
            self._db.execute("UPDATE state SET value = value - ? WHERE name = 'documents'", (len(rows),))
            if len(rows) == _FORGET_DOCUMENTS:
                return True
            self._db.execute("DELETE FROM sittings WHERE first >= ? AND first <= ?", (first, span.last))
            if kept_seq:
                self._db.execute("UPDATE sessions SET head = ? WHERE number = ?", (kept_seq, known.number))
            else:
                self._db.execute("DELETE FROM sessions WHERE number = ?", (known.number,))
        return False

    def since(self) -> float:
        """Return the time up to which all changed sessions were seen."""
        return self._state("since")

    def set_since(self, since: float) -> None:
        self._db.execute("UPDATE state SET value = ? WHERE name = 'since'", (since,))

    def _state(self, name: str) -> float:
        return float(self._db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    # -- finding

    def count(self) -> int:
        return int(self._state("documents"))

    def postings(self, term: str, span: NumberRange, limit: int) -> list[int]:
        """Return the documents with a term, in order; the newest if there are more than `limit`."""
        rows = self._db.execute(
            """SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid <= ?
               ORDER BY rowid DESC LIMIT ?""",
            (f'"{term}"', *span, limit),
        ).fetchall()
        return [row[0] for row in reversed(rows)]

    def documents(self, numbers: Iterable[int]) -> dict[int, Document]:
        """Return these documents, as far as they exist, by their numbers."""
        found: dict[int, Document] = {}
        for first, last in _runs(sorted(numbers)):
            rows = self._db.execute(f"{_DOCUMENTS} WHERE number >= ? AND number <= ?", (first, last))
            found.update((row[0], Document(*row)) for row in rows)
        return found

    def sitting(self, number: int) -> NumberRange:
        """Return the documents among which this one stands, without a long pause between them."""
        row = self._db.execute(
            "SELECT first, last FROM sittings WHERE first <= ? ORDER BY first DESC LIMIT 1", (number,)
        ).fetchone()
        return NumberRange(number, number) if row is None or row[1] < number else NumberRange(*row)


_DOCUMENTS = "SELECT number, at, speaker, traits, size, terms FROM documents"
_SESSIONS = "SELECT number, id, chat_key, head FROM sessions"


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that follow each other."""
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[start], numbers[at - 1]
            start = at


def open_side_file(path: Path) -> SideFile:
    """Open the file; one that is missing or cannot be used is made anew. Raises `driver.Error`."""
    try:
        return _try_open(path)
    except driver.Error as error:
        if kind_of(error) not in (DiskFault.DAMAGED, DiskFault.OTHER):
            raise
        return replace_side_file(path, str(error))


def replace_side_file(path: Path, reason: str) -> SideFile:
    """Make an empty file in place of one that cannot be used. Raises `driver.Error`."""
    _log.warning("the search index %s is made anew: %s", path, reason)
    for ending in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    return _try_open(path)


def _try_open(path: Path) -> SideFile:
    is_new = not path.exists()
    address = f"file:{quote(str(path.absolute()))}?mode=rwc"
    db = driver.connect(
        address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        if is_new:
            path.chmod(0o600)
        for pragma in _PRAGMAS:
            db.execute(pragma)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        elif version != VERSION:
            raise driver.DatabaseError(f"its version is {version}, not {VERSION}")  # noqa: TRY301
        file = SideFile(db)
        file.since(), file.count()
    except BaseException as error:
        db.close()
        if isinstance(error, TypeError):
            raise driver.DatabaseError("its tables are not those of this program") from error
        raise
    return file
