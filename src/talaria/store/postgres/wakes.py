"""Wake-ups between gateways by LISTEN and NOTIFY, in a thread with a connection of its own.

A notification is sent beside the orders, after they are committed: inside of an order it would hold a lock of
the whole database until the commit is on disk. It is a hint, so its own commit need not be on disk. Every
member listens on a channel of its own and on one for all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from threading import Lock, Thread
from time import monotonic

import psycopg

from talaria.core.cluster import Wake
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId
from talaria.core.tasks import Uncancellable
from talaria.store.postgres.connections import Connect
from talaria.store.postgres.pipeline import ConnectionCut, Pipe
from talaria.store.sql.wakes import Heard

_log = logging.getLogger("talaria.store")
_ALL = "talaria_all"
_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_NOTIFY = "SELECT pg_notify(?, ?)"
_NOT_DURABLE = "SET synchronous_commit TO off"


class PostgresWakes:
    """Sends and hears wake-ups. Belongs to the event loop that made it.

    The thread starts with the first wake-up or listener. What is sent while the database cannot be reached
    goes out when it can be reached again, each kind once.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._listeners: list[tuple[str, Heard]] = []  # changed on the loop only
        self._starting: list[tuple[str, asyncio.Future[None]]] = []
        self._pending: dict[tuple[str, str], None] = {}
        self._lock = Lock()
        self._thread: Thread | None = None
        self._ended: Uncancellable[None] | None = None
        self._bell: tuple[int, int] = (-1, -1)
        self._is_over = False
        self._told = ""  # why wake-ups were last not passed on, as logged

    def wake(self, what: Wake, owner: OwnerId | None) -> None:
        if not self._is_over:
            with self._lock:
                self._pending[_ALL if owner is None else _channel(owner), what.value] = None
            self._ring()

    @asynccontextmanager
    async def listen(self, owner: OwnerId, heard: Heard) -> AsyncIterator[None]:
        """Returns when the server listens, or when it could not be reached at first."""
        entry, is_listening = (_channel(owner), heard), self._loop.create_future()
        self._listeners.append(entry)
        self._starting.append((entry[0], is_listening))
        self._ring()
        try:
            await is_listening
            yield
        finally:
            self._listeners.remove(entry)
            self._ring()

    async def close(self) -> None:
        self._is_over = True
        if self._thread is None or self._ended is None:
            return
        self._ring()
        await self._ended
        self._thread.join()
        self._thread = None
        for end in self._bell:
            os.close(end)
        self._release(None)

    def _ring(self) -> None:
        """Let the thread look at what is new, and start it if it does not run."""
        if self._thread is None:
            if self._is_over:
                self._release(None)
                return
            self._bell = os.pipe()
            for end in self._bell:
                os.set_blocking(end, False)
            self._ended = Uncancellable(loop=self._loop)
            self._thread = Thread(target=self._run, name="talaria-store-wakes", daemon=False)
            self._thread.start()
        with suppress(BlockingIOError):
            os.write(self._bell[1], b"!")

    def _hear(self, notes: Iterable[tuple[str, Wake]]) -> None:
        for channel, what in notes:
            for name, heard in tuple(self._listeners):
                if channel in (_ALL, name):
                    heard(what)

    def _hear_all(self) -> None:
        self._hear((_ALL, what) for what in Wake)

    def _release(self, channels: frozenset[str] | None) -> None:
        """Let callers of `listen` go on whose channels these are; all if None."""
        for entry in tuple(self._starting):
            if channels is None or entry[0] in channels:
                self._starting.remove(entry)
                if not entry[1].done():
                    entry[1].set_result(None)

    # -- in the thread

    def _run(self) -> None:
        pause, is_again = _FIRST_PAUSE, False
        try:
            while not self._is_over or self._pending:
                try:
                    pipe = self._connect()
                except (StoreError, ConnectionCut, psycopg.Error) as error:
                    if self._is_over:
                        return
                    self._note_failure(error)
                    self._wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                try:
                    self._serve(pipe, is_again)
                except (ConnectionCut, psycopg.Error) as error:
                    if self._is_over:
                        return
                    self._note_failure(error)
                    self._wait(_FIRST_PAUSE)
                else:
                    return
                finally:
                    pipe.close()
                pause, is_again = _FIRST_PAUSE, True
        except Exception:  # the thread's boundary: without wake-ups the database is looked at each second
            _log.exception("wake-ups of other gateways are not heard any more")
        finally:
            ended = self._ended
            assert ended is not None
            self._call(self._release, None)
            self._call(ended.set_result, None)

    def _serve(self, pipe: Pipe, is_again: bool) -> None:
        """Send and hear until the store is closed and everything is sent."""
        pipe.begin(_SECONDS)
        pipe.execute(_NOT_DURABLE)
        pipe.commit()
        self._told = ""
        listening = frozenset[str]()
        poll = select.poll()
        poll.register(pipe.socket, select.POLLIN)
        poll.register(self._bell[0], select.POLLIN)
        while True:
            self._clear_bell()
            is_last, wanted = self._is_over, self._wanted()
            self._send(pipe, wanted - listening, listening - wanted)
            if is_last:
                return
            if wanted != listening:
                self._call(self._release, wanted)
                listening = wanted
            if is_again:  # what was sent meanwhile was not heard
                self._call(self._hear_all)
                is_again = False
            self._pass_on(pipe.notifications())
            poll.poll()
            self._pass_on(pipe.notifications())

    def _wanted(self) -> frozenset[str]:
        channels = frozenset(name for name, _ in tuple(self._listeners))
        return channels | {_ALL} if channels else channels

    def _send(self, pipe: Pipe, new: frozenset[str], old: frozenset[str]) -> None:
        with self._lock:
            pending = tuple(self._pending)
        if not (pending or new or old):
            return
        pipe.begin(_SECONDS)
        for verb, names in (("LISTEN", new), ("UNLISTEN", old)):
            for name in sorted(names):
                pipe.execute(f'{verb} "{name}"')
        for note in pending:
            pipe.execute(_NOTIFY, note)
        pipe.commit()
        with self._lock:
            for note in pending:
                self._pending.pop(note, None)

    def _pass_on(self, notes: Iterable[tuple[str, str]]) -> None:
        known = [(channel, Wake(what)) for channel, what in notes if what in _KINDS]
        if known:
            self._call(self._hear, known)

    def _note_failure(self, error: Exception) -> None:
        if (why := str(error)) != self._told:
            self._told = why
            _log.info("wake-ups between gateways are not passed on: %s", error)
        self._call(self._release, None)

    def _wait(self, seconds: float) -> None:
        """Wait until the next attempt, or until the store is closed."""
        until = monotonic() + seconds
        poll = select.poll()
        poll.register(self._bell[0], select.POLLIN)
        while not self._is_over and (left := until - monotonic()) > 0:
            poll.poll(left * 1000)
            self._clear_bell()

    def _clear_bell(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._bell[0], 4096)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


_KINDS = frozenset(what.value for what in Wake)


def _channel(owner: OwnerId) -> str:
    return f"talaria_{owner}"
