"""`Store`: the session log and the answer ledger, in SQL on an engine's `Executor`.

Its contract is the docstrings of its methods and of the orders and queries that they run, with the suites in
`tests/contracts/`, which run on every engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Self

import msgspec

from talaria.core.clock import Clock
from talaria.core.cluster import Adopted, Here, MemberFigures, Wake
from talaria.core.errors import StoreError
from talaria.core.ids import JobId, OwnerId, SessionId, TurnId
from talaria.core.jobs import AddJob, EditJob, Job, JobBell, SettleSlot, Slot
from talaria.core.ledger import (
    Commit,
    Committed,
    Integrity,
    Renewal,
    StoreStats,
)
from talaria.core.turns import TurnState
from talaria.store.sql import (
    announcements,
    binding,
    branches,
    cluster,
    delegates,
    delivery,
    imports,
    jobs,
    leases,
    oauth,
    orders,
    pairing,
    queries,
    retention,
    rules,
    slots,
    spending,
    taints,
    tokens,
)
from talaria.store.sql import log as log_rows
from talaria.store.sql import questions as asked
from talaria.store.sql.cluster import LocalWakes, WakeLine
from talaria.store.sql.executor import Executor, SqlPort, reads, reads_now, writes


class Store(SqlPort):
    """The session log and the answer ledger, and the care of their database.

    Every writing method is one transaction: it is done whole and returns, or it raises and nothing was done.
    A write that was submitted is finished even if its caller is cancelled; the cancellation is delivered when
    the write is done (`core.tasks.finish` relies on it). Methods marked *durable* survive a power cut once
    they return; the others survive the death of the process. Reads see all earlier commits. A read of
    something that does not exist returns None.

    `commit` writes what a call cost in place of the reservation of its attempt. A reservation that no commit
    has settled belongs to a call that may have been sent, so it is spent: when its turn ends or begins again,
    when `reclaim` finds its owner dead, and when its owner calls `yield_turns`.
    """

    def __init__(self, executor: Executor, wakes: WakeLine | None = None) -> None:
        super().__init__(executor)
        self.outbox = Outbox(executor)
        self.retention = RetentionStore(executor)
        self.histories = Histories(executor)
        self.pairings = Pairings(executor)
        self.tokens = Tokens(executor)
        self.oauth = OAuthGrants(executor)
        self.responses = Responses(executor)
        self.recall = RecallStore(executor)
        self.jobs = JobStore(executor)
        self.taints = Taints(executor)
        self.cluster = ClusterStore(executor, wakes or LocalWakes())
        self.from_thread = ThreadOrders(executor)

    @property
    def clock(self) -> Clock:
        """The clock that rows are dated by. On PostgreSQL `now` is the database's time, the same for all."""
        return self._executor.clock

    # -- the database

    @property
    def integrity(self) -> Integrity:
        """The state of the database's files. PostgreSQL recovers from its own crash by itself."""
        return Integrity.CLEAN_END

    @property
    def trouble(self) -> StoreError | None:
        """Why the last write failed, or that a write hangs or was slow; None once a write has succeeded in
        good time. `probe` tries whether one does. Cheap."""
        return None

    async def probe(self) -> None:
        """Write to the disk, changing nothing. Raises `StoreError` while that fails."""
        await self._executor.write(lambda tx: None)

    async def look(self) -> None:
        """Look whether the database's files are still at their paths; `trouble` tells it if they are not."""

    async def verify(self) -> str | None:
        """Look whether the database is whole, beside all other work, and return the damage found, or None.

        Nothing is written any more once damage was found. Raises `StoreError` if the store closes meanwhile.
        """
        return None

    async def snapshot(self, path: Path) -> None:
        """Write a whole, compact copy of the database to the new file `path` (0600), beside all other work.

        Raises `StoreError`; then there is no file.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Wait no longer for a database that does not come back: a write whose outcome is not known raises
        `StoreError`. For the end of a process; the next start reads what there is."""

    async def close(self) -> None:
        """Finish what was submitted, then close. Later calls raise `StoreError`."""
        await self._executor.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # -- writing

    accept = writes(orders.accept, is_durable=True)
    amend = writes(orders.amend, is_durable=True)
    begin = writes(orders.begin)
    send = writes(orders.send, is_durable=True)
    announce = writes(announcements.announce)
    settle = writes(orders.settle, is_durable=True)
    show = writes(orders.show)
    mark_answered = writes(orders.mark_answered)
    ask = writes(asked.ask, is_durable=True)
    decide = writes(asked.decide, is_durable=True)
    show_question = writes(asked.show_question)
    settle_delegate = writes(delegates.settle, is_durable=True)
    report_delegate = writes(delegates.report, is_durable=True)
    reserve = writes(spending.reserve)
    charge = writes(spending.charge)
    hold = writes(leases.hold)
    renew = writes(leases.renew)
    end_session = writes(leases.end_session)
    delete_session = writes(retention.delete_session, is_durable=True)
    retitle = writes(orders.retitle)
    mark = writes(orders.mark)
    end_unused = writes(leases.end_unused)
    reclaim = writes(leases.reclaim)
    yield_turns = writes(leases.yield_turns, is_durable=True)
    forgive = writes(leases.forgive)
    set_cursor = writes(delivery.set_cursor, is_durable=True)
    move_chat = writes(delivery.move_chat, is_durable=True)
    import_session = writes(imports.import_session, is_durable=True)
    import_person = writes(imports.import_person, is_durable=True)
    _prune_ephemeral = writes(retention.prune_ephemeral)

    async def commit(self, order: Commit) -> Committed:
        """Append entries and move the turn's steps; see `Commit`. Durable when it ends a turn or
        parks it."""
        is_durable = order.end is not None or bool(order.ask or order.delegates or order.background)
        return await self._executor.write(lambda tx: orders.commit(tx, order), is_durable=is_durable)

    async def prune_ephemeral(self, older_than: float) -> int:
        """Delete ephemeral sessions that were not used since `older_than`, with all rows; return how many.

        A session with an unsettled turn is left alone. Deletes whole sessions, in several transactions.
        """
        total = 0
        while True:
            pruned = await self._prune_ephemeral(older_than)
            total += pruned
            if pruned < rules.BATCH:
                return total

    # -- reading

    unannounced = reads(announcements.unannounced)
    cursor = reads(delivery.cursor)
    cursors = reads(delivery.cursors)
    session = reads(queries.session)
    current_session = reads(queries.current_session)
    sessions = reads(queries.sessions)
    entries = reads(queries.entries)
    entries_before = reads(queries.entries_before)
    turn_sums = reads(queries.turn_sums)
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
    find_delegate = reads(delegates.find)
    owed_delegates = reads(delegates.owed)
    turns_within = reads(delegates.turns_within)
    unused_sessions = reads(delegates.unused_sessions)
    is_granted = reads(asked.is_granted)
    is_granted_to_job = reads(asked.is_granted_to_job)
    has_job_asked = reads(asked.has_job_asked)
    summary = reads(queries.summary)
    recent_of_session = reads(queries.recent_of_session)
    recent_requests = reads(queries.recent_requests)
    spending = reads(spending.spending)
    open_questions = reads_now(asked.open_questions)
    closed_questions = reads_now(asked.closed_questions)
    orphans = reads_now(leases.orphans)
    _counts = reads(queries.counts)

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
            oldest_seconds=0.0 if oldest is None else max(0.0, self.clock.now() - oldest),
        )


class ThreadedStore(Store):
    """A store whose engine has threads, and may not answer."""

    stats_seconds = 2.0  # to wait for the counts
    _ROUNDS = 8

    def __init__(self, executor: Executor, wakes: WakeLine | None = None) -> None:
        super().__init__(executor, wakes)
        no_turns = {str(state): 0 for state in TurnState}
        self._counted = StoreStats(executor.engine, executor.schema, 0, 0, 0, no_turns, 0, 0)

    async def stats(self) -> StoreStats:
        """See `Store.stats`. The counts are those of the last time if the database does not answer now."""
        self._executor.check_open()
        counting = asyncio.create_task(self._count(), name="store-stats")
        try:
            for _ in range(self._ROUNDS):
                await asyncio.wait((counting,), timeout=self.stats_seconds / self._ROUNDS)
                if counting.done() or self.trouble is not None:
                    break
        finally:
            counting.cancel()
        trouble = self.trouble
        if counting.done():
            self._counted = counting.result()
        elif trouble is None:
            trouble = self._note_silence()
        text, kind = ("", "") if trouble is None else (trouble.user_text, trouble.type)
        return msgspec.structs.replace(
            self._counted, integrity=self.integrity.value, trouble=text, trouble_type=kind
        )

    async def _count(self) -> StoreStats:
        try:
            size, wal = await self._sizes()
            counted = await super().stats()
        except StoreError:
            if self.trouble is None:
                raise
            return self._counted
        return msgspec.structs.replace(counted, size_bytes=size, wal_bytes=wal)

    async def _sizes(self) -> tuple[int, int]:
        """Return the bytes of the database and of its write-ahead log."""
        raise NotImplementedError

    def _note_silence(self) -> StoreError | None:
        """Return the error for a database that did not answer within `stats_seconds`, if that is trouble."""
        return None


class Outbox(SqlPort):
    """Replies to send. The store writes a row in the transaction that ends its turn. The rows of one address
    are sent in order."""

    due = reads_now(delivery.due)
    next_due = reads(delivery.next_due)
    is_owed = reads(delivery.is_owed)
    split = writes(delivery.split)
    claim = writes(delivery.claim, is_durable=True)
    mark = writes(delivery.mark, is_durable=True)
    expire = writes(delivery.expire)


class RetentionStore(SqlPort):
    """Forgetting by rule, in small transactions. Unsettled turns and unsent replies are never touched."""

    forget_turns = writes(retention.forget_turns)
    prune_ended = writes(retention.prune_ended)
    prune_runs = writes(retention.prune_runs)
    prune_specs = writes(retention.prune_specs)
    purge_deleted = writes(retention.purge)
    removals = reads(retention.removals)
    mentioned_results = reads(retention.mentioned_results)
    forget_removals = writes(retention.forget_removals)


class RecallStore(SqlPort):
    """All logs, as far as they may be read. A deleted session has no log, except for what its branches know
    of it."""

    changed = reads(branches.changed)
    totals = reads(branches.totals)
    known_sessions = reads(branches.known_sessions)
    kept_parents = reads(branches.kept_parents)
    lineage = reads(branches.lineage)
    slice = reads(branches.slice_log)
    entry = reads(branches.entry)
    is_tainted = reads(log_rows.is_tainted)


class Taints(SqlPort):
    """The rows of tainted folders; see `core.trust`."""

    mark = writes(taints.mark, is_durable=True)
    find = reads(taints.find)
    clear = writes(taints.clear, is_durable=True)


class Responses(SqlPort):
    """Stored responses. `Store.accept` writes them."""

    find = reads(binding.find)
    input_entries = reads(binding.input_entries)
    delete = writes(binding.delete, is_durable=True)
    prune = writes(binding.prune)


class JobStore(SqlPort):
    """Jobs and slots. Orders ring `bell` if the scheduler should look. The end of a turn settles its slot in
    the transaction that ends the turn. `on_change` is called with a job that was written or removed here."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.bell = JobBell()
        self.on_change: Callable[[Job, bool], None] = lambda job, is_removed: None

    _add = writes(jobs.add, is_durable=True)
    _edit = writes(jobs.edit, is_durable=True)
    _fire = writes(slots.fire, is_durable=True)
    _settle = writes(orders.settle_slot, is_durable=True)
    _remove = writes(jobs.remove, is_durable=True)
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
        """Add a job; see `AddJob`. Durable. A job with the same id is returned as it is."""
        job = await self._add(order)
        self.bell.ring()
        self.on_change(job, False)
        return job

    async def edit(self, order: EditJob) -> Job:
        """Change a job; see `EditJob`. Durable. Raises `NotFound`, `HeadMoved`."""
        job = await self._edit(order)
        self.bell.ring()
        self.on_change(job, False)
        return job

    async def remove(self, job_id: JobId) -> Job:
        """Delete a job with its slots and return it. Durable. A turn that runs goes on. Raises `NotFound`."""
        job = await self._remove(job_id)
        self.on_change(job, True)
        return job

    async def fire(self, job_id: JobId, instant: float, *, is_manual: bool = False) -> Slot | None:
        """Write a slot that is due at once, and return it: a person asked for it, or the awaited process has
        ended and the job is done. Durable.

        Returns the slot that exists if there is one of this instant, None if the job has stopped waiting.
        Raises `NotFound`.
        """
        slot = await self._fire(job_id, instant, is_manual=is_manual)
        self.bell.ring()
        return slot

    async def settle(self, order: SettleSlot) -> Slot:
        """End a slot without a turn; see `SettleSlot`. Durable."""
        slot = await self._settle(order)
        self.bell.ring()
        return slot


class Histories(SqlPort):
    """Turns with everything that the ledger knows about them, for people who ask what happened."""

    find = reads(queries.find)
    recent = reads(queries.recent)
    unsettled = reads(queries.unsettled)
    owed_replies = reads(queries.owed_replies)
    history = reads(queries.history)


class Pairings(SqlPort):
    """People who are paired, and people who ask to be.

    Wrong codes are counted in the order that refuses them, so the counts hold over restarts and for all
    processes on the store. Expired rows count as absent.
    """

    is_paired = reads(pairing.is_paired)
    ask = writes(pairing.ask)
    approve = writes(pairing.approve, is_durable=True)
    invite = writes(pairing.invite, is_durable=True)
    redeem = writes(pairing.redeem, is_durable=True)
    revoke = writes(pairing.revoke, is_durable=True)
    listing = writes(pairing.listing)
    create_link = writes(pairing.create_link, is_durable=True)
    redeem_link = writes(pairing.redeem_link, is_durable=True)
    unlink = writes(pairing.unlink, is_durable=True)
    links = reads(pairing.links)


class Tokens(SqlPort):
    """Tokens with a name and a role, for callers of the HTTP API."""

    find = reads(tokens.find)
    listing = reads(tokens.listing)
    add = writes(tokens.add, is_durable=True)
    revoke = writes(tokens.revoke, is_durable=True)
    note_use = writes(tokens.note_use)


class OAuthGrants(SqlPort):
    """What OAuth logins gave the gateway; see `access.oauth`."""

    find = reads(oauth.find)
    save = writes(oauth.save, is_durable=True)
    claim = writes(oauth.claim, is_durable=True)
    renew = writes(oauth.renew, is_durable=True)
    give_up = writes(oauth.give_up, is_durable=True)
    forget = writes(oauth.forget, is_durable=True)


class ClusterStore(SqlPort):
    """The members of a cluster, their roles, wake-ups, and turns that move. The database's clock counts."""

    def __init__(self, executor: Executor, wakes: WakeLine) -> None:
        super().__init__(executor)
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
    members = reads_now(cluster.recent_members)
    member_of = reads_now(cluster.member_of)
    member_of_turn = reads_now(cluster.member_of_turn)
    waiting_here = reads(cluster.waiting_here)
    _left_turns = reads_now(cluster.left_turns)
    _adopt = writes(cluster.adopt, is_durable=True)

    async def adopt(self, here: Here) -> Adopted:
        """Take over the chats that have unsettled turns and whose member is dead or draining, unless their
        place is another one that is not gone. A chat whose turn runs under a lease that has not expired is
        left alone. Durable. Writes only if there is something to take over."""
        if not await self._left_turns(here):
            return Adopted()
        return await self._adopt(here)

    async def wake(self, what: Wake, owner: OwnerId | None = None) -> None:
        """Ask a member, or all, to look at something now. A hint: it is lost if nobody listens, and a failure
        is no error. Call it after the order that it is about has returned."""
        await self._wakes.wake(what, owner)

    def listen(self, owner: OwnerId, heard: Callable[[Wake], None]) -> AbstractAsyncContextManager[None]:
        """Call `heard` on the event loop for each wake-up, until the context is left. After a lost
        connection it is called once for everything."""
        return self._wakes.listen(owner, heard)


class ThreadOrders(SqlPort):
    """Orders for threads beside the event loop. They block, and go on while the loop is held.

    Each raises `StoreError`, also if the database has not answered after `timeout` seconds. The order may
    still be carried out then.
    """

    def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float, timeout: float
    ) -> frozenset[SessionId]:
        """See `Store.renew`."""
        write = self._executor.write_from_thread
        return write(lambda tx: leases.renew(tx, owner, renewals, lease_seconds), timeout)

    def renew_member(
        self, owner: OwnerId, figures: MemberFigures, lease_seconds: float, timeout: float
    ) -> bool:
        """See `ClusterStore.renew_member`."""
        write = self._executor.write_from_thread
        return write(lambda tx: cluster.renew_member(tx, owner, figures, lease_seconds), timeout)

    def blame(self, owner: OwnerId, turn_id: TurnId, timeout: float) -> None:
        """Record before the owner's process leaves that this turn held its event loop. Durable.

        The attempt counts as a crash of this turn. The owner's other running turns are forgiven theirs.
        """
        write = self._executor.write_from_thread
        write(lambda tx: leases.blame(tx, owner, turn_id), timeout, is_durable=True)
