"""`SqlStore`: the store's ports in SQL, on an engine's `Executor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from talaria.core.clock import Clock
from talaria.core.cluster import Adopted, Here, Member, Waiting, Wake
from talaria.core.delivery import OutboxRow
from talaria.core.ids import ChatKey, JobId, OwnerId, TurnId
from talaria.core.jobs import AddJob, EditJob, Job, JobBell, SettleSlot, Slot
from talaria.core.ledger import AskedQuestion, Commit, Committed, Page, QuestionPage, StoreStats
from talaria.core.turns import Turn
from talaria.store.sql import (
    announcements,
    branches,
    chains,
    cluster,
    deletion,
    delivery,
    jobs,
    leases,
    orders,
    pairing,
    queries,
    retention,
    rules,
    sending,
    slots,
    spending,
    taints,
    tokens,
)
from talaria.store.sql import log as log_rows
from talaria.store.sql import questions as asked
from talaria.store.sql.executor import Executor, SqlPort, reads, writes
from talaria.store.sql.wakes import LocalWakes, WakeLine


class SqlStore(SqlPort):
    """See `core.store_ports.Store` for what each method promises. The caller closes the executor."""

    def __init__(self, executor: Executor, clock: Clock, wakes: WakeLine | None = None) -> None:
        super().__init__(executor)
        self._clock = clock
        self.outbox = SqlOutbox(executor, clock)
        self.retention = SqlRetention(executor)
        self.histories = SqlHistories(executor)
        self.pairings = SqlPairings(executor)
        self.tokens = SqlTokens(executor)
        self.responses = SqlResponses(executor)
        self.recall = SqlRecall(executor)
        self.jobs = SqlJobs(executor)
        self.taints = SqlTaints(executor)
        self.cluster = SqlCluster(executor, clock, wakes or LocalWakes())

    @property
    def clock(self) -> Clock:
        return self._clock

    def abandon(self) -> None:
        """A database in this process's own file or memory comes to an end with every write."""

    # -- writing

    accept = writes(orders.accept, is_durable=True)
    begin = writes(orders.begin)
    send = writes(sending.send, is_durable=True)
    announce = writes(announcements.announce)
    settle = writes(orders.settle, is_durable=True)
    show = writes(orders.show)
    mark_answered = writes(orders.mark_answered)
    ask = writes(asked.ask, is_durable=True)
    decide = writes(asked.decide, is_durable=True)
    show_question = writes(asked.show_question)
    reserve = writes(spending.reserve)
    charge = writes(spending.charge)
    hold = writes(leases.hold)
    renew = writes(leases.renew)
    end_session = writes(leases.end_session)
    delete_session = writes(deletion.delete_session, is_durable=True)
    retitle = writes(orders.retitle)
    end_unused = writes(leases.end_unused)
    reclaim = writes(leases.reclaim)
    bury = writes(leases.bury, is_durable=True)
    yield_turns = writes(leases.yield_turns, is_durable=True)
    forgive = writes(leases.forgive)
    set_cursor = writes(delivery.set_cursor, is_durable=True)
    move_chat = writes(delivery.move_chat, is_durable=True)
    _prune_ephemeral = writes(retention.prune_ephemeral)

    async def commit(self, order: Commit) -> Committed:
        is_durable = order.end is not None or bool(order.ask)
        return await self._executor.write(lambda tx: orders.commit(tx, order), is_durable=is_durable)

    async def prune_ephemeral(self, older_than: float) -> int:
        """Whole sessions at a time, in as many transactions as it takes."""
        total = 0
        while True:
            pruned = await self._prune_ephemeral(older_than)
            total += pruned
            if pruned < rules.BATCH:
                return total

    # -- reading

    unannounced = reads(announcements.unannounced)
    cursor = reads(delivery.cursor)
    session = reads(queries.session)
    current_session = reads(queries.current_session)
    sessions = reads(queries.sessions)
    entries = reads(queries.entries)
    log = reads(queries.log)
    shown_log = reads(queries.shown_log)
    turn_log = reads(queries.turn_log)
    notes = reads(queries.notes)
    last_input = reads(queries.last_input)
    spoken = reads(queries.spoken)
    sent_files = reads(queries.sent_files)
    spec = reads(queries.spec)
    turn_record = reads(queries.turn_record)
    questions = reads(asked.questions)
    find_question = reads(asked.find_question)
    is_granted = reads(asked.is_granted)
    is_granted_to_job = reads(asked.is_granted_to_job)
    has_job_asked = reads(asked.has_job_asked)
    summary = reads(queries.summary)
    recent_of_session = reads(queries.recent_of_session)
    recent_requests = reads(queries.recent_requests)
    spending = reads(spending.spending)
    _open_questions = reads(asked.open_questions)
    _closed_since = reads(asked.closed_since)
    _orphans = reads(leases.orphans)
    _counts = reads(queries.counts)

    async def orphans(self, owner: OwnerId, accepted_before: float) -> Sequence[Turn]:
        return await self._orphans(self._clock.now(), owner, accepted_before)

    async def open_questions(self, page: Page, within: str = "") -> QuestionPage:
        return await self._open_questions(self._clock.now(), page, within)

    async def closed_questions(self, since: float, within: str) -> Sequence[AskedQuestion]:
        return await self._closed_since(self._clock.now(), since, within)

    async def stats(self) -> StoreStats:
        sessions, turns, unsent, oldest = await self._counts()
        return StoreStats(
            engine=self._executor.engine,
            schema=self._executor.schema,
            size_bytes=0,
            wal_bytes=0,
            sessions=sessions,
            turns=turns,
            owed=sum(turns[state] for state in rules.UNSETTLED),
            outbox=sum(unsent.values()),
            unsent=unsent,
            oldest_seconds=0.0 if oldest is None else max(0.0, self._clock.now() - oldest),
        )


class SqlOutbox(SqlPort):
    """See `core.store_ports.Outbox`."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        super().__init__(executor)
        self._clock = clock

    async def due(self, channel: str, limit: int, now: float | None = None) -> Sequence[OutboxRow]:
        return await self._due(channel, self._clock.now() if now is None else now, limit)

    _due = reads(delivery.due)
    next_due = reads(delivery.next_due)
    split = writes(delivery.split)
    claim = writes(delivery.claim, is_durable=True)
    mark = writes(delivery.mark, is_durable=True)
    expire = writes(delivery.expire)


class SqlRetention(SqlPort):
    """See `core.store_ports.Retention`."""

    forget_turns = writes(retention.forget_turns)
    prune_ended = writes(retention.prune_ended)
    prune_runs = writes(retention.prune_runs)
    prune_specs = writes(retention.prune_specs)
    purge_deleted = writes(deletion.purge)
    removals = reads(deletion.removals)
    mentioned_results = reads(deletion.mentioned_results)
    forget_removals = writes(deletion.forget_removals)


class SqlRecall(SqlPort):
    """See `core.recall_port.RecallStore`."""

    changed = reads(branches.changed)
    totals = reads(branches.totals)
    known_sessions = reads(branches.known_sessions)
    kept_parents = reads(branches.kept_parents)
    lineage = reads(branches.lineage)
    slice = reads(branches.slice_log)
    entry = reads(branches.entry)
    is_tainted = reads(log_rows.is_tainted)


class SqlTaints(SqlPort):
    """See `core.trust.Taints`."""

    mark = writes(taints.mark, is_durable=True)
    find = reads(taints.find)
    clear = writes(taints.clear, is_durable=True)


class SqlResponses(SqlPort):
    """See `core.store_ports.Responses`."""

    find = reads(chains.find)
    input_entries = reads(chains.input_entries)
    delete = writes(chains.delete, is_durable=True)
    prune = writes(chains.prune)


class SqlJobs(SqlPort):
    """See `core.job_port.JobStore`."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.bell = JobBell()

    _add = writes(jobs.add, is_durable=True)
    _edit = writes(jobs.edit, is_durable=True)
    _fire = writes(slots.fire, is_durable=True)
    _settle = writes(sending.settle_slot, is_durable=True)
    remove = writes(jobs.remove, is_durable=True)
    advance = writes(slots.advance, is_durable=True)
    claim = writes(slots.claim, is_durable=True)
    renew = writes(slots.renew)
    rewind = writes(slots.rewind, is_durable=True)
    ahead_of = reads(slots.ahead_of)
    is_any = reads(slots.is_any)
    is_waiting = reads(slots.is_waiting)
    prune = writes(slots.prune)
    find = reads(jobs.find)
    due = reads(jobs.due)
    next_due = reads(slots.next_due)
    listing = reads(jobs.listing)
    finished = reads(jobs.finished)
    slot = reads(slots.slot)
    awaiting = reads(jobs.awaiting)
    skipped = reads(slots.skipped)
    counts = reads(slots.counts)
    slots = reads(slots.slots)

    async def add(self, order: AddJob) -> Job:
        job = await self._add(order)
        self.bell.ring()
        return job

    async def edit(self, order: EditJob) -> Job:
        job = await self._edit(order)
        self.bell.ring()
        return job

    async def fire(self, job_id: JobId, instant: float, *, is_manual: bool = False) -> Slot | None:
        slot = await self._fire(job_id, instant, is_manual=is_manual)
        self.bell.ring()
        return slot

    async def settle(self, order: SettleSlot) -> Slot:
        slot = await self._settle(order)
        self.bell.ring()
        return slot


class SqlHistories(SqlPort):
    """See `core.store_ports.Histories`."""

    find = reads(queries.find)
    recent = reads(queries.recent)
    history = reads(queries.history)


class SqlPairings(SqlPort):
    """See `core.store_ports.Pairings`."""

    is_paired = reads(pairing.is_paired)
    ask = writes(pairing.ask)
    approve = writes(pairing.approve, is_durable=True)
    invite = writes(pairing.invite, is_durable=True)
    redeem = writes(pairing.redeem, is_durable=True)
    revoke = writes(pairing.revoke, is_durable=True)
    listing = writes(pairing.listing)


class SqlTokens(SqlPort):
    """See `core.store_ports.Tokens`."""

    find = reads(tokens.find)
    listing = reads(tokens.listing)
    add = writes(tokens.add, is_durable=True)
    revoke = writes(tokens.revoke, is_durable=True)
    note_use = writes(tokens.note_use)


class SqlCluster(SqlPort):
    """See `core.cluster_port.ClusterStore`."""

    def __init__(self, executor: Executor, clock: Clock, wakes: WakeLine) -> None:
        super().__init__(executor)
        self._clock = clock
        self._wakes = wakes

    join = writes(cluster.join, is_durable=True)
    renew_member = writes(cluster.renew_member)
    drain_member = writes(cluster.drain_member, is_durable=True)
    leave = writes(cluster.leave, is_durable=True)
    place_chat = writes(cluster.place_chat)
    chat_place = reads(cluster.chat_place)
    note_processes = writes(cluster.note_processes)
    forget_loss = writes(cluster.forget_loss)
    ask_stop = writes(cluster.ask_stop, is_durable=True)
    take_role = writes(cluster.take_role)
    give_role = writes(cluster.give_role)
    roles = reads(cluster.roles)
    _members = reads(cluster.members)
    _member_of = reads(cluster.member_of)
    _member_of_turn = reads(cluster.member_of_turn)
    _waiting_here = reads(cluster.waiting_here)
    _left_turns = reads(cluster.left_turns)
    _adopt = writes(cluster.adopt, is_durable=True)

    async def members(self) -> Sequence[Member]:
        return await self._members(self._clock.now() - cluster.SHOWN_SECONDS)

    async def member_of(self, chat_key: ChatKey) -> Member | None:
        return await self._member_of(self._clock.now(), chat_key)

    async def member_of_turn(self, turn_id: TurnId) -> Member | None:
        return await self._member_of_turn(self._clock.now(), turn_id)

    async def waiting_here(self, owner: OwnerId) -> Sequence[Waiting]:
        return await self._waiting_here(self._clock.now(), owner)

    async def adopt(self, here: Here) -> Adopted:
        """Write only if there is something to take over."""
        if not await self._left_turns(self._clock.now(), here):
            return Adopted()
        return await self._adopt(here)

    async def wake(self, what: Wake, owner: OwnerId | None = None) -> None:
        self._wakes.wake(what, owner)

    def listen(self, owner: OwnerId, heard: Callable[[Wake], None]) -> AbstractAsyncContextManager[None]:
        return self._wakes.listen(owner, heard)
