"""Memory and SQLite side by side: whatever is ordered, they answer the same."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from contracts.store_orders import LEASE, HandClock, accepting, pinned, said, step
from talaria.core.delivery import Mark, OutboxRow, OutboxState
from talaria.core.entries import EntryBody, SpecSet, TitleSet
from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, TurnId
from talaria.core.ledger import (
    Accepted,
    Began,
    Begin,
    Binding,
    Commit,
    Page,
    Renewal,
    SessionPage,
    Start,
    StepWrite,
    TurnEnd,
    TurnStory,
    UsageWrite,
)
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.ports import Store
from talaria.core.turns import StepKind, StepState, TurnState
from talaria.store.memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore

CHATS = [ChatKey(f"agent:main:http:api:{name}") for name in ("a", "b")]
OWNERS = [OwnerId("own_1"), OwnerId("own_2")]

chats = st.sampled_from(CHATS)
owners = st.sampled_from(OWNERS)
keys = st.sampled_from([None, None, "k1", "k2"])
picks = st.integers(0, 5)
ends = st.sampled_from([None, None, *map(TurnEnd, TurnState)])
entries = st.lists(
    st.sampled_from([AssistantMessage("hi"), said("more"), TitleSet("t"), SpecSet(pinned("two").id)]),
    max_size=3,
).map(tuple)
steps = st.lists(
    st.builds(step, st.integers(1, 2), st.sampled_from(StepState), st.sampled_from(StepKind)), max_size=3
).map(tuple)


class StoresSideBySide(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.clock = HandClock()
        self.memory: Store = MemoryStore(self.clock)
        self.sqlite: Store = self.loop.run_until_complete(
            SqliteStore.open(self.folder / "talaria.db", self.clock)
        )
        self.turns: list[TurnId] = []
        self.sessions: list[SessionId] = []
        self.fences: dict[SessionId, Fence] = {}

    def teardown(self) -> None:
        if hasattr(self, "sqlite"):
            self.loop.run_until_complete(self.sqlite.close())
            self.loop.close()
            shutil.rmtree(self.folder)

    def both(self, act: Callable[[Store], Awaitable[object]]) -> object:
        answers = [self.loop.run_until_complete(self.outcome(act, store)) for store in self.stores]
        assert answers[0] == answers[1]
        return answers[0]

    @property
    def stores(self) -> tuple[Store, Store]:
        return self.memory, self.sqlite

    @staticmethod
    async def outcome(act: Callable[[Store], Awaitable[object]], store: Store) -> object:
        try:
            return await act(store)
        except TalariaError as error:
            return type(error), error.user_text

    def turn(self, pick: int) -> TurnId:
        return self.turns[-1 - pick] if pick < len(self.turns) else TurnId("turn_nowhere")

    def session(self, pick: int) -> SessionId:
        return self.sessions[-1 - pick] if pick < len(self.sessions) else SessionId("ses_nowhere")

    # -- orders

    @rule(
        chat=chats,
        key=keys,
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
            key_ttl=100,
            start=Start(starter, LEASE, said("now")) if starter and steers is None else None,
            address=address,
            steers=None if steers is None else self.turn(steers),
        )
        accepted = self.both(lambda store: store.accept(order))
        if isinstance(accepted, Accepted) and accepted.began is not None:
            self.fences[accepted.began.session.id] = accepted.began.fence
        self.turns.append(order.turn_id)
        self.sessions.append(order.fresh.session_id)

    @rule(pick=picks, owner=owners, speaks=st.booleans(), is_forgiven=st.booleans())
    def begin(self, pick: int, owner: OwnerId, speaks: bool, is_forgiven: bool) -> None:
        order = Begin(
            self.turn(pick), owner, LEASE, said("hello") if speaks else None, is_forgiven=is_forgiven
        )
        began = self.both(lambda store: store.begin(order))
        if isinstance(began, Began):
            self.fences[began.session.id] = began.fence

    @rule(
        pick=picks,
        is_stale=st.integers(0, 9).map(lambda n: n == 0),
        entries=entries,
        steps=steps,
        end=ends,
        release=st.booleans(),
        brings_spec=st.booleans(),
        steers=st.lists(picks, max_size=1),
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
    ) -> None:
        turn_id = self.turn(pick)
        story = self.both(lambda store: store.story(turn_id))
        session_id = story.turn.session_id if isinstance(story, TurnStory) else self.session(pick)
        order = Commit(
            session_id,
            Fence(self.fences.get(session_id, 1) - is_stale),
            turn_id,
            entries,
            specs=(pinned("two"),) if brings_spec else (),
            steps=steps,
            usage=tuple(UsageWrite(write.n, "p", "m", TokenUsage(3, 2, 1)) for write in steps),
            end=end,
            steers=tuple(map(self.turn, steers)),
            release=release,
        )
        self.both(lambda store: store.commit(order))

    @rule(pick=picks, state=st.sampled_from(TurnState))
    def settle(self, pick: int, state: TurnState) -> None:
        self.both(lambda store: store.settle(self.turn(pick), TurnEnd(state, "over")))

    @rule(pick=picks, owner=owners)
    def hold(self, pick: int, owner: OwnerId) -> None:
        fence = self.both(lambda store: store.hold(self.session(pick), owner, LEASE))
        if isinstance(fence, int):
            self.fences[self.session(pick)] = Fence(fence)

    @rule(owner=owners)
    def renew(self, owner: OwnerId) -> None:
        renewals = [Renewal(session_id, fence) for session_id, fence in self.fences.items()]
        self.both(lambda store: store.renew(owner, renewals, LEASE))

    @rule(pick=picks)
    def end_session(self, pick: int) -> None:
        session_id = self.session(pick)
        self.both(lambda store: store.end_session(session_id, self.fences.get(session_id, Fence(1))))

    @rule(owner=owners)
    def reclaim(self, owner: OwnerId) -> None:
        self.both(lambda store: store.reclaim(owner))

    @rule(owner=owners)
    def yield_turns(self, owner: OwnerId) -> None:
        self.both(lambda store: store.yield_turns(owner))

    @rule(pick=picks)
    def forgive(self, pick: int) -> None:
        self.both(lambda store: store.forgive(self.turn(pick)))

    @rule(pick=picks, message=st.sampled_from(["m1", "m2"]))
    def show(self, pick: int, message: str) -> None:
        self.both(lambda store: store.show(self.turn(pick), message))

    @rule(old=chats, new=chats)
    def move_chat(self, old: ChatKey, new: ChatKey) -> None:
        self.both(lambda store: store.move_chat(old, new))

    @rule(pick=picks, parts=st.integers(1, 3))
    def split(self, pick: int, parts: int) -> None:
        self.both(lambda store: store.outbox.split(pick + 1, tuple("abc"[:parts])))

    @rule(limit=st.integers(1, 3), wait=st.integers(0, 20))
    def claim(self, limit: int, wait: int) -> None:
        due = self.both(lambda store: store.outbox.due("http", limit))
        assert isinstance(due, tuple)
        for row in due:
            self.both(partial(self.claim_one, row, self.clock.now() + wait))

    @rule(age=st.integers(0, 100))
    def expire(self, age: int) -> None:
        self.both(lambda store: store.outbox.expire(self.clock.now() - age, "too old"))

    @rule(
        row=st.integers(1, 4), state=st.sampled_from(OutboxState), wait=st.integers(0, 20), id=st.booleans()
    )
    def mark(self, row: int, state: OutboxState, wait: int, id: bool) -> None:
        due_at = self.clock.now() + wait
        for attempt in (0, 1, 2):
            self.both(partial(self.mark_one, Mark(row, attempt, state, due_at, "m1" if id else None)))

    @rule(age=st.integers(0, 100))
    def prune(self, age: int) -> None:
        self.both(lambda store: store.prune_ephemeral(self.clock.now() - age))

    @rule(seconds=st.sampled_from([1.0, 10.0, LEASE, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.forward(seconds)

    @rule(limit=st.integers(1, 3))
    def look_at_everything(self, limit: int) -> None:
        for chat in CHATS:
            self.both(self.asking("current_session", chat))
        after: str | None = None
        while True:
            page = self.both(self.asking("sessions", Page(limit, after)))
            assert isinstance(page, SessionPage)
            if page.next is None:
                break
            after = page.next
        for session_id in self.sessions[-6:]:
            self.both(self.asking("summary", session_id))
            self.both(self.asking("log", session_id, 0))
            self.both(self.asking("entries", session_id, Page(limit)))
        for turn_id in self.turns[-6:]:
            self.both(self.asking("story", turn_id))
        self.both(self.asking("orphans", OwnerId("own_1"), self.clock.now() - 5))
        self.both(lambda store: store.outbox.due("http", limit))
        self.both(self.counts)

    @staticmethod
    def asking(method: str, *arguments: object) -> Callable[[Store], Awaitable[object]]:
        """One of the store's reads, for `both`."""
        return lambda store: getattr(store, method)(*arguments)

    @staticmethod
    async def claim_one(row: OutboxRow, until: float, store: Store) -> object:
        return await store.outbox.claim(row, until)

    @staticmethod
    async def mark_one(order: Mark, store: Store) -> object:
        return await store.outbox.mark(order)

    @staticmethod
    async def counts(store: Store) -> object:
        stats = await store.stats()
        return stats.sessions, stats.turns, stats.owed, stats.outbox


TestStoresSideBySide = StoresSideBySide.TestCase
TestStoresSideBySide.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
