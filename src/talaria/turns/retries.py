"""Retries: which turn a request belongs to that a client sends again without an idempotency key.

OpenAI's clients repeat a request after a timeout or a broken connection. With a session, a second turn would
run the tools of the first one again, so a retry joins the turn of the first request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import count, islice
from typing import Final

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ids import TurnId
from talaria.core.ledger import RecentRequest
from talaria.core.turns import Turn
from talaria.store.store import Store

_log = logging.getLogger("talaria.turns")
RETRY_SECONDS: Final = 600.0  # for so long after a request, another one can be its retry
MOST_REQUESTS: Final = 16_384  # that are remembered; about 8 MB
_MARK_SECONDS: Final = 1.0  # between two writes of marks
_MARKS: Final = 500  # in one write
_numbers = count(1)


class _Known(msgspec.Struct, eq=False):
    """The turn of a request, and what became of its answer. `turn_id` is None until the turn is accepted."""

    digest: str
    at: float
    turn_id: TurnId | None = None
    is_answered: bool = False
    has_left: Callable[[], bool] | None = None  # while its first client waits for the answer
    reader: int = 0  # the number of the request to which the whole answer was written
    accepted: asyncio.Future[None] | None = None  # if a retry waits for it

    def is_broken(self) -> bool:
        """Return whether a connection broke before the whole answer was written to any client."""
        return not self.is_answered and (self.has_left is None or self.has_left())


class ClientRequest(msgspec.Struct, eq=False):
    """A request that its client may send again.

    `digest` stands for the caller, the chat and the whole request. `is_retry`: the client says that it has
    sent the request before. `has_left` returns whether the client has closed its connection. The channel
    tells `RecentRequests` what becomes of the answer.
    """

    digest: str
    has_left: Callable[[], bool]
    is_retry: bool
    known: _Known | None = None
    number: int = msgspec.field(default_factory=_numbers.__next__)


class RecentRequests:
    """The requests of the last ten minutes by their digest, the oldest first.

    Only the newest request of a digest is kept, and at most `MOST_REQUESTS` in all. Their turns have the
    digest in their rows. Whether a whole answer was written is marked there about a second later; `load`
    takes a turn without the mark for one whose client has no answer. With `is_shared`, other gateways accept
    requests of the same clients, and a retry is looked for in the store.
    """

    def __init__(self, store: Store, clock: Clock, *, is_shared: bool = False) -> None:
        self._store = store
        self._is_shared = is_shared
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._unmarked: dict[TurnId, None] = {}
        self._has_unmarked = asyncio.Event()

    def __len__(self) -> int:
        return len(self._known)

    async def load(self) -> None:
        """Read the requests that earlier processes have accepted."""
        since = self._clock.now() - RETRY_SECONDS
        for row in reversed(await self._store.recent_requests(since, MOST_REQUESTS)):
            self._put(_Known(row.digest, row.accepted_at, row.turn_id, is_answered=row.is_answered))

    async def joined(self, request: ClientRequest) -> TurnId | None:
        """Return the turn of an earlier request that this one repeats, or None if it is a request of its own.

        If that turn is being accepted, wait for it. Raises `StoreError`.
        """
        if self._is_shared and request.is_retry and request.digest not in self._known:
            await self._find_elsewhere(request.digest)
        while (known := self._known.get(request.digest)) is not None:
            if self._is_old(known) or not (request.is_retry or known.is_broken()):
                return None
            if known.turn_id is not None:
                if known.is_broken():
                    known.has_left = None
                request.known = known
                return known.turn_id
            if known.accepted is None:
                known.accepted = asyncio.get_running_loop().create_future()
            await asyncio.wait((known.accepted,))
        return None

    async def _find_elsewhere(self, digest: str) -> None:
        """Take up the newest request of this digest, if another gateway has accepted one."""
        await self._take_over(lambda row: row.digest == digest)

    async def take_over(self, turns: Iterable[Turn]) -> None:
        """Take up the requests of turns that another gateway has left. Raises `StoreError`."""
        if ids := {turn.id for turn in turns}:
            await self._take_over(lambda row: row.turn_id in ids)

    async def _take_over(self, is_wanted: Callable[[RecentRequest], bool]) -> None:
        since = self._clock.now() - RETRY_SECONDS
        for row in await self._store.recent_requests(since, MOST_REQUESTS):
            if is_wanted(row) and row.digest not in self._known:
                self._put(_Known(row.digest, row.accepted_at, row.turn_id, is_answered=row.is_answered))

    def begin(self, request: ClientRequest) -> None:
        """Remember the request while its turn is accepted; `accepted` must follow."""
        known = request.known = _Known(request.digest, self._clock.now())
        known.has_left = request.has_left
        self._put(known)

    def accepted(self, request: ClientRequest, turn_id: TurnId | None) -> None:
        """The turn of the request was accepted. With None it was not, and the request is forgotten."""
        known = request.known
        assert known is not None
        known.turn_id = turn_id
        if turn_id is None:
            request.known = None
            if self._known.get(known.digest) is known:
                del self._known[known.digest]
        if known.accepted is not None:
            known.accepted.set_result(None)

    def forget(self, request: ClientRequest) -> None:
        """The turn of this request does not exist any more."""
        self._known.pop(request.digest, None)
        request.known = None

    def answered(self, request: ClientRequest) -> None:
        """The whole answer was written to the client of this request."""
        known = request.known
        if known is None or known.is_answered:
            return
        known.is_answered, known.has_left, known.reader = True, None, request.number
        if known.turn_id is not None:
            self._unmarked[known.turn_id] = None
            self._has_unmarked.set()

    def broken(self, request: ClientRequest) -> None:
        """The request is over. No effect on a request whose answer was written."""
        known = request.known
        if known is not None and known.has_left is request.has_left:
            known.has_left = None

    def unread(self, request: ClientRequest) -> None:
        """The client did not read all of the answer that was written."""
        known = request.known
        if known is not None and known.reader == request.number and known.turn_id is not None:
            known.is_answered, known.reader = False, 0
            self._unmarked.pop(known.turn_id, None)

    async def run(self) -> None:
        """Mark the answered turns in the store, until cancelled."""
        while True:
            await self._has_unmarked.wait()
            await self._clock.sleep(_MARK_SECONDS)
            await self.mark()

    async def mark(self) -> None:
        """Mark the turns that were answered since the last time. A failure of the store is logged: after a
        crash, such a request would be joined if it came again."""
        while self._unmarked:
            some = list(islice(self._unmarked, _MARKS))
            for turn_id in some:
                del self._unmarked[turn_id]
            try:
                await self._store.mark_answered(some)
            except StoreError as error:
                _log.warning("%d answered requests were not marked: %s", len(some), error)
        self._has_unmarked.clear()

    def _put(self, known: _Known) -> None:
        self._known.pop(known.digest, None)  # so that the order is that of the newest
        self._known[known.digest] = known
        oldest = next(iter(self._known.values()))
        while len(self._known) > MOST_REQUESTS or self._is_old(oldest):
            del self._known[oldest.digest]
            if not self._known:
                return
            oldest = next(iter(self._known.values()))

    def _is_old(self, known: _Known) -> bool:
        return self._clock.now() - known.at > RETRY_SECONDS
