"""Whatever is ordered, in whatever order: a refusal changes nothing, and the ledger stays true to itself."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contracts.store_orders import LEASE, accepting, new_clock, pinned, said, step
from talaria.core.delivery import DeliveryResult, OutboxRow, OutboxState
from talaria.core.entries import EntryBody, Revision, SpecSet, TitleSet
from talaria.core.errors import IdempotencyConflict, StaleFence, TalariaError
from talaria.core.ids import ChatKey, Fence, OwnerId, QuestionId, SessionId, TurnId, new_question_id
from talaria.core.ledger import (
    Accepted,
    Began,
    Begin,
    Binding,
    Commit,
    Committed,
    Ended,
    Page,
    Renewal,
    StepWrite,
    TurnEnd,
    TurnRecord,
    UsageWrite,
)
from talaria.core.messages import AssistantMessage, TokenUsage, UserMessage
from talaria.core.questions import APPROVE, DENY, Decision, Question, QuestionKind
from talaria.core.sessions import Session, first_words
from talaria.core.turns import StepKind, StepState, Turn, TurnState
from talaria.store.in_memory import InlineExecutor
from talaria.store.sql.executor import Connection
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

T = TypeVar("T")
CHATS = [ChatKey(f"agent:main:http:api:{name}") for name in ("a", "b")]
OWNERS = [OwnerId("own_1"), OwnerId("own_2")]
KEY_TTL = 100.0
NOWHERE = TurnId("turn_nowhere")

chats = st.sampled_from(CHATS)
owners = st.sampled_from(OWNERS)
picks = st.integers(0, 5)
ends = st.sampled_from([None, None, *(TurnEnd(state, "hi") for state in TurnState)])
entries = st.lists(
    st.sampled_from([AssistantMessage("hi"), said("more"), TitleSet("t"), SpecSet(pinned("two").id)]),
    max_size=3,
).map(tuple)
steps = st.lists(
    st.builds(step, st.integers(1, 2), st.sampled_from(StepState), st.sampled_from(StepKind)), max_size=3
).map(tuple)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """A store in memory waits for nothing, so it needs no event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("it waits")


def waiting_turns(db: Connection) -> dict[str, str]:
    return dict(db.execute("SELECT id, waiting_turn FROM sessions WHERE waiting_turn <> ''").fetchall())


class Lease(NamedTuple):
    owner: OwnerId
    fence: Fence
    until: float

    def is_held(self, fence: Fence) -> bool:
        return self.fence == fence and self.until > 0


FREE = Lease(OwnerId(""), Fence(0), 0.0)


class Ledger(RuleBasedStateMachine):
    """`leases` and `known` are what the store must hold, put together from its answers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = new_clock()
        self.inline = self.make_executor(self.clock)
        self.store = Store(self.inline)
        self.turns: list[TurnId] = []
        self.sessions: list[SessionId] = []
        self.leases: dict[SessionId, Lease] = {}
        self.known: dict[TurnId, Turn] = {}
        self.asked: list[Question] = []  # undecided

    def make_executor(self, clock: FakeClock) -> Any:
        return InlineExecutor(clock)

    def all_rows(self, db: Connection) -> Any:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names}

    def teardown(self) -> None:
        at_once(self.inline.close())

    def order(self, work: Coroutine[Any, Any, T]) -> T | TalariaError:
        """What comes of it; a refusal must have changed nothing."""
        before = at_once(self.inline.read(self.all_rows))
        try:
            return at_once(work)
        except TalariaError as refusal:
            assert at_once(self.inline.read(self.all_rows)) == before
            return refusal

    def turn(self, pick: int) -> TurnId:
        return self.turns[-1 - pick] if pick < len(self.turns) else NOWHERE

    def session(self, pick: int) -> SessionId:
        return self.sessions[-1 - pick] if pick < len(self.sessions) else SessionId("ses_nowhere")

    def question(self, turn_id: TurnId, n: int) -> Question:
        now = self.clock.now()
        kind = QuestionKind.APPROVAL
        return Question(new_question_id(), turn_id, n, f"call_{n}", kind, "May it?", now, now + LEASE)

    def lease(self, session_id: SessionId) -> Lease:
        return self.leases.get(session_id, FREE)

    def took(self, session_id: SessionId, owner: OwnerId, fence: Fence, *, again: bool) -> None:
        last = self.lease(session_id)
        assert last.until <= self.clock.now() or (again and last.owner == owner)
        assert fence == last.fence + 1
        self.leases[session_id] = Lease(owner, fence, self.clock.now() + LEASE)

    def gave_back(self, session_id: SessionId) -> None:
        self.leases[session_id] = self.leases[session_id]._replace(until=0.0)

    # -- orders

    @rule(
        chat=chats,
        key=st.sampled_from([None, None, "k1", "k2"]),
        digest=st.sampled_from(["d1", "d1", "d2"]),
        binding=st.sampled_from(Binding),
        resume=picks,
        ephemeral=st.booleans(),
        has_spec=st.booleans(),
        starter=st.none() | owners,
        address=st.sampled_from([None, "room", "hall"]),
        steers=st.none() | picks,
    )
    def accept(
        self,
        chat: ChatKey,
        key: str | None,
        digest: str,
        binding: Binding,
        resume: int,
        ephemeral: bool,
        has_spec: bool,
        starter: OwnerId | None,
        address: str | None,
        steers: int | None,
    ) -> None:
        order = accepting(
            chat=chat,
            key=key,
            digest=digest,
            binding=binding,
            resume=self.session(resume),
            ephemeral=ephemeral,
            spec=pinned() if has_spec else None,
            context=(said("before"),) if ephemeral else (),
            key_ttl=KEY_TTL,
            begins=said("now") if starter and steers is None else None,
            owner=starter or OWNERS[0],
            address=address,
            steers=None if steers is None else self.turn(steers),
        )
        since = self.clock.now() - KEY_TTL
        same = [
            turn.id
            for turn in self.known.values()
            if key is not None and turn.inbound.key == key and turn.accepted_at > since
        ]
        accepted = self.order(self.store.accept(order))
        assert (same != []) == (
            isinstance(accepted, IdempotencyConflict)
            or (isinstance(accepted, Accepted) and accepted.is_duplicate)
        )
        if isinstance(accepted, Accepted):
            assert accepted.turn.id in (same or [order.turn_id])
            if accepted.began is not None and starter is not None:
                self.took(accepted.turn.session_id, starter, accepted.began.fence, again=True)
        self.turns.append(order.turn_id)
        assert order.fresh is not None
        self.sessions.append(order.fresh.session_id)

    @rule(pick=picks, owner=owners, speaks=st.booleans(), is_forgiven=st.booleans())
    def begin(self, pick: int, owner: OwnerId, speaks: bool, is_forgiven: bool) -> None:
        user = said("hello") if speaks else None
        began = self.order(
            self.store.begin(Begin(self.turn(pick), owner, LEASE, user, is_forgiven=is_forgiven))
        )
        if isinstance(began, Began):
            self.took(began.session.id, owner, began.fence, again=True)

    @rule(
        pick=picks,
        is_stale=st.integers(0, 9).map(lambda n: n == 0),
        entries=entries,
        steps=steps,
        end=ends,
        release=st.booleans(),
        brings_spec=st.booleans(),
        steers=st.lists(picks, max_size=1),
        asks=st.lists(st.integers(1, 2), max_size=2),
    )
    def commit(
        self,
        pick: int,
        is_stale: bool,
        entries: tuple[EntryBody, ...],
        steps: tuple[StepWrite, ...],
        end: TurnEnd | None,
        release: bool,
        brings_spec: bool,
        steers: list[int],
        asks: list[int],
    ) -> None:
        turn_id = self.turn(pick)
        session_id = self.known[turn_id].session_id if turn_id in self.known else self.session(pick)
        order = Commit(
            session_id,
            Fence(self.lease(session_id).fence - is_stale),
            turn_id,
            entries,
            specs=(pinned("two"),) if brings_spec else (),
            steps=steps,
            usage=tuple(UsageWrite(write.n, "p", "m", TokenUsage(3, 2, 1)) for write in steps),
            end=end,
            steers=tuple(map(self.turn, steers)),
            release=release,
            ask=tuple(self.question(turn_id, n) for n in asks),
        )
        is_held = self.lease(session_id).is_held(order.fence)
        answer = self.order(self.store.commit(order))
        if isinstance(answer, Committed):
            assert is_held
            if end is not None or asks or release:
                self.gave_back(session_id)
            if asks:
                self.asked = [question for question in self.asked if question.turn_id != turn_id]
                self.asked += order.ask
        else:
            assert not (is_held and isinstance(answer, StaleFence))

    @rule(pick=picks, text=st.sampled_from([APPROVE, DENY]))
    def decide(self, pick: int, text: str) -> None:
        asked = self.asked[-1 - pick].id if pick < len(self.asked) else QuestionId("q_nowhere")
        decided = self.order(self.store.decide(asked, Decision(text, "u1", self.clock.now())))
        if isinstance(decided, Turn):
            assert decided == self.known[decided.id]
            assert decided.state is TurnState.WAITING
            self.asked = [question for question in self.asked if question.id != asked]

    @rule(pick=picks, state=st.sampled_from(TurnState))
    def settle(self, pick: int, state: TurnState) -> None:
        self.order(self.store.settle(self.turn(pick), TurnEnd(state, "over")))

    @rule(pick=picks, owner=owners)
    def hold(self, pick: int, owner: OwnerId) -> None:
        session_id = self.session(pick)
        fence = self.order(self.store.hold(session_id, owner, LEASE))
        if not isinstance(fence, TalariaError):
            self.took(session_id, owner, fence, again=False)

    @rule(owner=owners)
    def renew(self, owner: OwnerId) -> None:
        renewals = [Renewal(session_id, lease.fence) for session_id, lease in self.leases.items()]
        lost = at_once(self.store.renew(owner, renewals, LEASE))
        for session_id, lease in self.leases.items():
            is_kept = lease.owner == owner and lease.until > 0
            assert is_kept == (session_id not in lost)
            if is_kept:
                self.leases[session_id] = lease._replace(until=self.clock.now() + LEASE)

    @rule(pick=picks)
    def end_session(self, pick: int) -> None:
        session_id = self.session(pick)
        lease = self.lease(session_id)
        if isinstance(self.order(self.store.end_session(session_id, lease.fence)), Ended):
            assert lease.is_held(lease.fence)
            self.gave_back(session_id)

    @rule(owner=owners)
    def reclaim(self, owner: OwnerId) -> None:
        owed = at_once(self.store.reclaim(owner))
        assert [turn.id for turn in owed] == [
            turn_id
            for turn_id in self.turns
            if turn_id in self.known and not self.known[turn_id].state.is_final
        ]
        for session_id, lease in self.leases.items():
            if lease.owner != owner:
                self.gave_back(session_id)

    @rule(owner=owners)
    def yield_turns(self, owner: OwnerId) -> None:
        at_once(self.store.yield_turns(owner))
        for session_id, lease in self.leases.items():
            if lease.owner == owner:
                self.gave_back(session_id)

    @rule(pick=picks)
    def forgive(self, pick: int) -> None:
        self.order(self.store.forgive(self.turn(pick)))

    @rule(pick=picks, message=st.sampled_from(["m1", "m2"]))
    def show(self, pick: int, message: str) -> None:
        self.order(self.store.show(self.turn(pick), message))

    @rule(old=chats, new=chats)
    def move_chat(self, old: ChatKey, new: ChatKey) -> None:
        at_once(self.store.move_chat(old, new))

    @rule(pick=picks, parts=st.integers(1, 3))
    def split(self, pick: int, parts: int) -> None:
        self.order(self.store.outbox.split(pick + 1, tuple("abc"[:parts])))

    @rule(limit=st.integers(1, 3), wait=st.integers(0, 20))
    def claim(self, limit: int, wait: int) -> None:
        for row in at_once(self.store.outbox.due("http", limit)):
            claimed = at_once(self.store.outbox.claim(row, self.clock.now() + wait))
            assert claimed is not None and claimed.attempts == row.attempts + 1

    @rule(age=st.integers(0, 100))
    def expire(self, age: int) -> None:
        at_once(self.store.outbox.expire(self.clock.now() - age, "too old"))

    @rule(
        row=st.integers(1, 4), state=st.sampled_from(OutboxState), wait=st.integers(0, 20), id=st.booleans()
    )
    def mark(self, row: int, state: OutboxState, wait: int, id: bool) -> None:
        due_at = self.clock.now() + wait
        for attempt in (0, 1, 2):
            self.order(
                self.store.outbox.mark(DeliveryResult(row, attempt, state, due_at, "m1" if id else None))
            )

    @rule(age=st.integers(0, 100))
    def prune(self, age: int) -> None:
        at_once(self.store.prune_ephemeral(self.clock.now() - age))
        for turn_id, turn in list(self.known.items()):
            if at_once(self.store.turn_record(turn_id)) is None:
                assert turn.state.is_final, "what is owed does not vanish"
                del self.known[turn_id]

    @rule(seconds=st.sampled_from([1.0, 10.0, LEASE, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- what holds after each of them

    @invariant()
    def the_ledger_is_true(self) -> None:
        stories = [record for turn_id in self.turns if (record := at_once(self.store.turn_record(turn_id)))]
        self.turns_are_kept_and_final_ones_stay_as_they_are([record.turn for record in stories])
        for record in stories:
            self.who_has_an_address_is_sent_the_reply(record)
        self.mail_of_an_address_is_sent_in_its_order([row for record in stories for row in record.replies])
        self.logs_are_whole_and_sessions_stand_at_their_head()
        self.a_session_waits_with_its_turn_and_only_then()

    def turns_are_kept_and_final_ones_stay_as_they_are(self, turns: list[Turn]) -> None:
        found = {turn.id: turn for turn in turns}
        for turn_id, last in self.known.items():
            turn = found[turn_id]
            if last.state.is_final:
                assert (turn.state, turn.reply, turn.ended_at) == (last.state, last.reply, last.ended_at)
        for turn in turns:
            assert turn.state.is_final == (turn.ended_at is not None)
            assert turn.forgiven <= turn.attempts and (turn.attempts > 0) == (turn.started_at is not None)
            if turn.merged_into is not None and not turn.state.is_final:
                host = found[turn.merged_into]
                assert host.state in (TurnState.RUNNING, TurnState.WAITING)
                assert host.session_id == turn.session_id
        self.known = found

    def who_has_an_address_is_sent_the_reply(self, record: TurnRecord) -> None:
        turn = record.turn
        if turn.state is not TurnState.CANCELLED:
            is_owed = turn.state.is_final and turn.inbound.address and turn.merged_into is None
            assert bool(record.replies) == bool(is_owed)
        elif turn.shown_id is None:
            assert not record.replies

    def mail_of_an_address_is_sent_in_its_order(self, rows: list[OutboxRow]) -> None:
        unsent = [row for row in rows if row.state in (OutboxState.PENDING, OutboxState.SENDING)]
        first: dict[str, OutboxRow] = {}
        for row in sorted(unsent, key=lambda row: (row.head, row.part)):
            first.setdefault(row.address, row)
        due = tuple(row for row in first.values() if row.due_at <= self.clock.now())
        assert at_once(self.store.outbox.due("http", 99)) == due
        stats = at_once(self.store.stats())
        assert stats.outbox == len(unsent)
        assert stats.owed == sum(not turn.state.is_final for turn in self.known.values())

    def logs_are_whole_and_sessions_stand_at_their_head(self) -> None:
        found = [session for each in self.sessions if (session := at_once(self.store.session(each)))]
        for session in found:
            log = at_once(self.store.log(session.id, 0))
            assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
            epochs = [0, *(entry.epoch for entry in log)]
            assert epochs == sorted(epochs)
            assert session.revision == Revision(epochs[-1], len(log))
            bodies = [entry.body for entry in log]
            specs = [None, *(body.spec_id for body in bodies if isinstance(body, SpecSet))]
            assert session.spec_id == specs[-1]
            given = [body.title for body in bodies if isinstance(body, TitleSet)]
            words = {"", *(first_words(body) for body in bodies if isinstance(body, UserMessage))}
            assert session.title in (given[-1:] or words)
        lasting = [session for session in found if not session.ephemeral]
        assert self.paged(2) == sorted(lasting, key=lambda each: (each.updated_at, each.id), reverse=True)

    def a_session_waits_with_its_turn_and_only_then(self) -> None:
        waiting = {turn.id: turn for turn in self.known.values() if turn.state is TurnState.WAITING}
        for turn in waiting.values():
            assert self.lease(turn.session_id).until == 0
        assert len({turn.session_id for turn in waiting.values()}) == len(waiting)
        marked = at_once(self.inline.read(waiting_turns))
        assert marked == {turn.session_id: turn_id for turn_id, turn in waiting.items()}
        found = at_once(self.store.open_questions(Page())).questions
        assert found == tuple(question for question in self.asked if question.turn_id in waiting)

    def paged(self, limit: int) -> list[Session]:
        seen, page = list[Session](), at_once(self.store.sessions(Page(limit)))
        while page.next is not None:
            seen += page.items
            page = at_once(self.store.sessions(Page(limit, page.next)))
        return [*seen, *page.items]


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
