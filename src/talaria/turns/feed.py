"""Changes of the turns of this process, and of sessions, questions and jobs, for listeners."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final, Literal, Self, get_args

import msgspec

from talaria.cluster.following import PeerClient, PeerUnreachable
from talaria.cluster.signing import BrokenStream
from talaria.core.clock import Clock
from talaria.core.cluster import Member
from talaria.core.errors import ErrorInfo, Overloaded, StoreError
from talaria.core.ids import ChatKey, OwnerId, QuestionId, SessionId, TurnId
from talaria.core.jobs import Job
from talaria.core.limits import Limits
from talaria.core.messages import Text, TokenUsage
from talaria.core.questions import Decision, Question
from talaria.core.spending import Spent
from talaria.core.tasks import Tasks, stop
from talaria.core.turns import Turn, TurnState
from talaria.store.store import Store

if TYPE_CHECKING:
    from talaria.turns.live import LiveTurn


MOST_WAITING: Final = 1024  # changes that wait for one listener
_MOST_RECENT: Final = 256  # changes of records that are kept for listeners that come back
_LONGEST: Final = 200  # characters of a message
_NOTHING: Final = Spent()


class TurnChange(msgspec.Struct, frozen=True):
    """The state of a turn at the time `at`. It holds no more of the turn than a listener shows, since changes
    may wait. `text` is the beginning of the message. `model` (provider/name) is empty until it is known."""

    id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    state: TurnState
    at: float
    accepted_at: float
    ended_at: float | None
    text: str
    model: str
    usage: TokenUsage | None
    spent: Spent
    error: ErrorInfo | None

    @classmethod
    def of(cls, turn: Turn, at: float, model: str = "", spent: Spent = _NOTHING) -> Self:
        text = ""
        for part in turn.inbound.parts:
            if type(part) is Text:
                text = part.text[:_LONGEST]
                break
        return cls(
            turn.id,
            turn.session_id,
            turn.chat_key,
            turn.state,
            at,
            turn.accepted_at,
            turn.ended_at,
            text,
            model,
            turn.usage,
            spent,
            turn.error,
        )


RecordEvent = Literal[
    "session.created",
    "session.ended",
    "session.deleted",
    "session.titled",
    "session.marked",
    "session.written",
    "question.asked",
    "question.decided",
    "job.saved",
    "job.removed",
    "reply.sent",
    "reply.failed",
    "reply.delayed",
]
RECORD_EVENTS: Final[tuple[RecordEvent, ...]] = get_args(RecordEvent)


class RecordChange(msgspec.Struct, frozen=True):
    """A change at the time `at` of the session, question, job or reply `id`. The chat is that of the session,
    of the turn that asks or answers, or that the job was created in. `decision` and `by` are those of a
    decided question."""

    what: RecordEvent
    id: str
    chat_key: ChatKey
    at: float
    session_id: SessionId | None = None
    turn_id: TurnId | None = None
    title: str = ""
    decision: str = ""
    by: str = ""


Change = TurnChange | RecordChange


def question_asked(turn: Turn, question: Question) -> RecordChange:
    return RecordChange(
        "question.asked", question.id, turn.chat_key, question.asked_at, turn.session_id, turn.id
    )


def question_decided(turn: Turn, question_id: QuestionId, decision: Decision) -> RecordChange:
    return RecordChange(
        "question.decided",
        question_id,
        turn.chat_key,
        decision.decided_at,
        turn.session_id,
        turn.id,
        decision=decision.text,
        by=decision.by,
    )


def note_job(feed: StateFeed, job: Job, is_removed: bool) -> None:
    if feed.listeners:
        what: RecordEvent = "job.removed" if is_removed else "job.saved"
        feed.note(RecordChange(what, job.id, job.origin.chat_key, feed.now()))


class TurnListener:
    """A listener. Of each turn only the last change waits for it, and of all turns `MOST_WAITING`. Changes of
    records wait only if the listener `wants_records`. Another member of the cluster `is_member`: it is told
    the changes of this process only."""

    __slots__ = ("_arrived", "_is_closed", "_waiting", "is_member", "missed", "sees", "wants_records")

    def __init__(
        self, sees: Callable[[ChatKey], bool], *, is_member: bool = False, wants_records: bool = False
    ) -> None:
        self.sees = sees
        self.is_member = is_member
        self.wants_records = wants_records
        self.missed = 0  # changes that were dropped since the caller last set this to 0
        self._waiting: dict[str | tuple[str, str], Change] = {}
        self._is_closed = False
        self._arrived: asyncio.Future[None] | None = None

    def put(self, change: Change) -> None:
        """Take a change. The one that waits for the longest time is dropped if there are too many."""
        key = change.id if isinstance(change, TurnChange) else (change.what, change.id)
        self._waiting.pop(key, None)
        self._waiting[key] = change
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self.missed += 1
        self._wake()

    def close(self) -> None:
        """Let `take` return what is left, and then nothing."""
        self._is_closed = True
        self._wake()

    async def take(self) -> Collection[Change]:
        """Return the changes that came, once there are some. Empty when the feed was closed."""
        while not self._waiting and not self._is_closed:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        taken, self._waiting = self._waiting, {}
        return taken.values()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


class StateFeed:
    """Tells listeners each new state of a turn. Costs nothing while `listeners` is empty, which callers of
    `tell` check. `on_listen` is called when a listener that is no member comes or goes. In a cluster the
    feed `has_others`, and `elsewhere` are the turns of other members as far as they are known.

    While somebody listens to records, the last changes of records are kept, for listeners that come back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._is_closed = False
        self.listeners: dict[TurnListener, None] = {}
        self.on_listen: Callable[[], None] = lambda: None
        self.elsewhere: Iterable[TurnChange] = ()
        self.has_others = False
        self._recent: deque[tuple[float, RecordChange]] = deque(maxlen=_MOST_RECENT)  # each with its time
        self._kept_since = math.inf  # no change told after this time is missing in `_recent`

    def tell(self, live: LiveTurn) -> None:
        change: TurnChange | None = None
        key = live.turn.chat_key
        for listener in self.listeners:
            if listener.sees(key):
                change = change or TurnChange.of(live.turn, self.now(), live.model, live.spent)
                listener.put(change)

    def note(self, change: RecordChange) -> None:
        """Tell the change of a record that this process has made. No effect while nobody listens."""
        if self.listeners:
            self._note(change, are_members_told=True)

    def pass_on(self, change: Change) -> None:
        """Tell a change that another member of the cluster has made. A clock that is ahead is corrected,
        because a listener that comes back names the time of the last change that it was told."""
        change = msgspec.structs.replace(change, at=min(change.at, self.now()))
        if isinstance(change, RecordChange):
            self._note(change, are_members_told=False)
            return
        for listener in self.listeners:
            if not listener.is_member and listener.sees(change.chat_key):
                listener.put(change)

    def _note(self, change: RecordChange, *, are_members_told: bool) -> None:
        if len(self._recent) == _MOST_RECENT:
            self._kept_since = self._recent[0][0]
        self._recent.append((self.now(), change))
        for listener in self.listeners:
            is_told = listener.wants_records and (are_members_told or not listener.is_member)
            if is_told and listener.sees(change.chat_key):
                listener.put(change)

    def records_since(self, at: float) -> Sequence[RecordChange] | None:
        """Return the changes of records that were told since then; None if some may be missing. A question is
        told after it was asked, so the times of changes are in no order."""
        return None if at <= self._kept_since else [change for told, change in self._recent if told >= at]

    @property
    def has_own_listeners(self) -> bool:
        """Whether anybody listens who is no other member of the cluster."""
        return any(not listener.is_member for listener in self.listeners)

    @contextmanager
    def listen(
        self,
        sees: Callable[[ChatKey], bool],
        limits: Limits | None = None,
        *,
        is_member: bool = False,
        wants_records: bool = False,
    ) -> Iterator[TurnListener]:
        """Yield a listener that gets the changes of the chats for which `sees` is true, from now on.

        Raises `Overloaded` if there are `limits.event_listeners` already.
        """
        if limits is not None and len(self.listeners) >= limits.now.event_listeners:
            raise Overloaded(
                f"{len(self.listeners)} clients listen to all turns already.",
                limits.refuse("event_listeners"),
                retry_after=30.0,
            )
        listener = TurnListener(sees, is_member=is_member, wants_records=wants_records)
        if wants_records and not any(other.wants_records for other in self.listeners):
            self._kept_since = self.now()
        if self._is_closed:
            listener.close()
        self.listeners[listener] = None
        if not is_member:
            self.on_listen()
        try:
            yield listener
        finally:
            self.listeners.pop(listener, None)
            if not any(other.wants_records for other in self.listeners):
                self._recent.clear()
                self._kept_since = math.inf
            if not is_member:
                self.on_listen()

    def close(self) -> None:
        """End all listeners: this process has no turns any more."""
        self._is_closed = True
        for listener in self.listeners:
            listener.close()


# -- the states of the turns of other members of the cluster, for those who listen to all turns here ------


_log = logging.getLogger("talaria.cluster")
_LOOK_SECONDS: Final = 3.0  # between two looks at who is a member
PATH: Final = "/cluster/events"


class OpenTurns(msgspec.Struct, frozen=True, tag="open"):
    """The turns that a member has. Those that it had before and that are not among these are not its any
    more."""

    turns: tuple[TurnChange, ...]


class ChangedTurn(msgspec.Struct, frozen=True, tag="changed"):
    change: TurnChange


class ChangedRecord(msgspec.Struct, frozen=True, tag="record"):
    """Only for a member that asks for `RECORDS`: one of an older version does not know it."""

    change: RecordChange


FeedLine = OpenTurns | ChangedTurn | ChangedRecord
RECORDS: Final = "records"
_lines: msgspec.json.Decoder[FeedLine] = msgspec.json.Decoder(FeedLine)


def _decode(line: bytes) -> FeedLine:
    try:
        return _lines.decode(line)
    except msgspec.MsgspecError as error:
        raise BrokenStream(str(error)) from None


class OtherFeeds:
    """Reads the feeds of all other members while somebody listens here, and only then.

    A listener is told the turns that members have, then their changes. If a member cannot be reached, its
    last changes stand until it can be, or until another member has its turns.
    """

    def __init__(self, store: Store, feed: StateFeed, peers: PeerClient, owner: OwnerId) -> None:
        self._store = store
        self._cluster = store.cluster
        self._feed = feed
        self._peers = peers
        self._owner = owner
        self._clock: Clock = store.clock
        self._open: dict[OwnerId, dict[TurnId, TurnChange]] = {}
        self._task: asyncio.Task[None] | None = None
        self._tasks = Tasks()  # with those that are ending
        feed.on_listen, feed.elsewhere, feed.has_others = self._look_for_listeners, self, True

    def __iter__(self) -> Iterator[TurnChange]:
        """The turns of other members that are not over, as far as they are known now."""
        return iter([change for turns in self._open.values() for change in turns.values()])

    async def close(self) -> None:
        self._feed.on_listen = lambda: None
        await stop(*self._tasks)

    def _look_for_listeners(self) -> None:
        is_wanted = self._feed.has_own_listeners
        if is_wanted and self._task is None:
            self._task = self._tasks.start(self._run(), "feeds of other members")
        elif not is_wanted and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        """Read the feed of each living member, until cancelled."""
        readers: dict[OwnerId, asyncio.Task[None]] = {}
        try:
            while True:
                try:
                    members, now = await self._cluster.members(), self._clock.now()
                except StoreError as error:
                    _log.info("the members are not known for now: %s", error)
                else:
                    living = {each.owner: each for each in members if each.url and each.is_alive(now)}
                    living.pop(self._owner, None)
                    for owner in readers.keys() - living.keys():
                        readers.pop(owner).cancel()
                        self._open.pop(owner, None)
                    for owner in living.keys() - readers.keys():
                        readers[owner] = asyncio.create_task(self._read(living[owner]), name=f"feed {owner}")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await stop(*readers.values())
            self._open.clear()

    async def _read(self, member: Member) -> None:
        while True:
            try:
                async with aclosing(self._peers.lines(member, PATH, _decode, {RECORDS: "1"})) as lines:
                    async for line in lines:
                        await self._take(member.owner, line)
            except (PeerUnreachable, StoreError) as error:
                _log.info("the feed of %s is not read for now: %s", member.host, error)
            await asyncio.sleep(self._peers.timing.look_seconds)

    async def _take(self, owner: OwnerId, line: FeedLine) -> None:
        known = self._open.setdefault(owner, {})
        match line:
            case OpenTurns(turns=turns):
                gone = known.keys() - {change.id for change in turns}
                known.clear()
                for change in turns:
                    known[change.id] = change
                    self._feed.pass_on(change)
                for turn_id in gone:
                    await self._tell_end(turn_id)
            case ChangedTurn(change=change):
                known.pop(change.id, None)
                if not change.state.is_final:
                    known[change.id] = change
                self._feed.pass_on(change)
            case ChangedRecord(change=record):
                self._feed.pass_on(record)

    async def _tell_end(self, turn_id: TurnId) -> None:
        """Tell that a turn is over, if it is, whose last change was missed."""
        record = await self._store.turn_record(turn_id)
        if record is not None and record.turn.state.is_final:
            at = record.turn.ended_at or self._clock.now()
            self._feed.pass_on(TurnChange.of(record.turn, at, "", record.spent))
