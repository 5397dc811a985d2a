"""Starts the delegates of parked turns, wakes their parents, and stops those that nobody waits for.

The rows say everything: a parent is parked in the commit that writes its delegates, and the last commit of a
child writes the outcome. A child is accepted under the id of its row, so accepting it again finds the same
turn. What is done here may therefore be cut off at any moment; it is done again when the parent is parked
again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import UNSET

from talaria.access.budgets import account_of, tree_caps, tree_of
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.delegates import Delegate, DelegateOutcome, Descent, Report
from talaria.core.entries import WAKING
from talaria.core.errors import (
    IdempotencyConflict,
    LeaseHeld,
    LimitReached,
    NotFound,
    Overloaded,
    StoreError,
    TalariaError,
)
from talaria.core.events import DelegateChanged, ToolStarted
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import (
    ChatAddress,
    DelegateId,
    SessionId,
    TurnId,
    all_delegates,
    asking_chat,
    delegate_chat,
)
from talaria.core.messages import Text
from talaria.core.spending import from_usd
from talaria.core.tasks import Tasks, sleep_until_woken
from talaria.core.text import clean_line
from talaria.core.tools import DELEGATE
from talaria.core.turns import Inbound, ReplyPlace, RunOrder, Turn, TurnState
from talaria.store.store import Store
from talaria.tools.delegate import deadline_of, depth_of, describe_end, is_done
from talaria.tools.settings import DelegateSettings
from talaria.turns.intake import Draining
from talaria.turns.live import LiveTurn
from talaria.turns.notes import waking
from talaria.turns.run_questions import RunQuestions
from talaria.turns.sending import ChatSender
from talaria.turns.states import ENDING, LiveState
from talaria.turns.turns import Turns

_log = logging.getLogger("talaria.turns")
_LOOK_SECONDS = 30.0
_LINE = 100
_PULSE_SECONDS = 1.0  # between two events that tell what a delegate does
_LOOKS = Backoff(0.1, _LOOK_SECONDS)
_TRY_AGAIN_SECONDS = 0.25
_REPORT_AGAIN = Backoff(0.5, _LOOK_SECONDS)
_MOST_REPORT = 16_000  # characters
_HEAD = (
    "[You are a helper: another agent has handed you this task. You cannot ask it anything. Your last "
    "message is your result. Say what you found or did, and what you could not do.]"
)


@asynccontextmanager
async def open_delegates(
    turns: Turns,
    store: Store,
    sender: ChatSender,
    clock: Clock,
    settings: Callable[[], DelegateSettings],
    *,
    is_in_charge: Callable[[], bool],
) -> AsyncIterator[Delegates]:
    """Look after delegates, and put the questions of turns that nobody attends, until the context is left.

    Of several gateways, the one that `is_in_charge` takes up what others left in the background."""
    questions = RunQuestions(turns.live, turns.hosts, sender)
    delegates = Delegates(turns, store, sender, clock, settings, is_in_charge=is_in_charge)
    turns.use_delegates(delegates)
    try:
        yield delegates
    finally:
        await delegates.close()
        await questions.close()


class Delegates:
    """The children of the turns of this process."""

    def __init__(
        self,
        turns: Turns,
        store: Store,
        sender: ChatSender,
        clock: Clock,
        settings: Callable[[], DelegateSettings],
        *,
        is_in_charge: Callable[[], bool],
    ) -> None:
        self._is_in_charge = is_in_charge
        self._turns = turns
        self._store = store
        self._sender = sender
        self._clock = clock
        self._settings = settings
        self._agent_name = turns.decisions.agent_name
        self._tasks = Tasks()
        self._background: dict[tuple[TurnId, int], LiveTurn] = {}  # stand-ins of parents, by call
        self._reporting: set[DelegateId] = set()
        self._running: dict[LiveTurn, dict[DelegateId, LiveTurn]] = {}
        turns.live.on_park.append(self._look_after)
        turns.live.on_hand_out.append(self._look_after_background)

    async def close(self) -> None:
        """Let go of all parents; their rows are looked after by the next process."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def run(self) -> None:
        """Take up delegates in the background, stop children that nobody wants any more, and end sessions
        that children have left, until cancelled. This is for those whose process was killed in between."""
        for pause in _LOOKS.pauses():  # at first often: what a killed process left is found in a moment
            for live in self._turns.live:
                if (order := live.turn.inbound.order) is not None and order.descent is not None:
                    await self._stop_orphan(live, order.descent.delegate)
            with suppress(StoreError):
                if self._is_in_charge():
                    await self._take_up_background()
                for session_id in await self._store.unused_sessions(all_delegates(self._agent_name)):
                    await self._end_session(session_id)
            await self._clock.sleep(pause)

    async def _stop_orphan(self, live: LiveTurn, delegate_id: DelegateId) -> None:
        try:
            row = await self._store.find_delegate(delegate_id)
            record = None if row is None else await self._store.turn_record(row.turn_id)
        except StoreError:
            return
        if row is not None and row.report is Report.OWED:
            return  # see `_take_up_background`
        if row is None or row.outcome is not None or record is None or record.turn.state.is_final:
            self._start_task(self._cancel([live]))

    # -- in the background ----------------------------------------------------------------------------------
    # The parent of such a delegate does not wait. A `LiveTurn` that nobody follows stands in for it, parked.

    def _look_after_background(self, live: LiveTurn, delegates: Sequence[Delegate]) -> None:
        key, now = (live.turn.id, delegates[0].n), self._clock.now()
        stand_in = LiveTurn(live.turn, self._clock)
        for each in delegates:
            if not each.is_open(now):
                self._start_task(self._report(stand_in, each.id))
        if key not in self._background and (working := [each for each in delegates if each.is_open(now)]):
            self._background[key] = stand_in
            stand_in.start()
            stand_in.park((), working)
            self._start_task(self._tend(stand_in))

    async def _take_up_background(self) -> None:
        """Look after those that another process has handed out. Raises `StoreError`."""
        calls: dict[tuple[TurnId, int], list[Delegate]] = {}
        for row in await self._store.owed_delegates():
            calls.setdefault((row.turn_id, row.n), []).append(row)
        for (turn_id, _), rows in calls.items():
            record = await self._store.turn_record(turn_id)
            if record is None:
                continue
            session = await self._store.session(record.turn.session_id)
            if session is None or session.ended_at is not None:
                await self.drop(rows)
            else:
                self._look_after_background(LiveTurn.recorded(record.turn, self._clock), rows)

    async def drop(self, delegates: Iterable[Delegate]) -> None:
        """Stop delegates in the background whose results nobody wants any more. Raises `StoreError`."""
        dropped = {each.id for each in delegates}
        for key in dropped:
            await self._store.report_delegate(key)
            await self._store.settle_delegate(key, DelegateOutcome(str(TurnState.CANCELLED), ""))
        for parent, running in self._running.items():
            for key in dropped & (parent.delegates.keys() - running.keys()):
                parent.decide(key)  # it has not begun
            self._start_task(self._cancel([child for key, child in running.items() if key in dropped]))

    async def drop_of(self, session_id: SessionId, until: float) -> int:
        """Stop the delegates in the background of a session whose messages were accepted until then, and
        return how many. Raises `StoreError`."""
        found: list[Delegate] = []
        for row in await self._store.owed_delegates():
            record = await self._store.turn_record(row.turn_id)
            if record is None or record.turn.session_id != session_id:
                continue
            if record.turn.accepted_at <= until:
                found.append(row)
        await self.drop(found)
        return sum(each.outcome is None for each in found)

    async def tell(self, child: Turn, by: Turn, text: str) -> bool:
        """Let a delegate read a message of a person before its next model call. Return False if it has ended
        or waits for a decision. `by` is the turn of the command. Raises what `Turns.wake` raises."""
        order, untrusted = child.inbound.order, by.inbound.repeats_others
        assert order is not None
        # If it cannot join and a kill comes before it is stopped, it runs alone and is shown nowhere.
        alone = RunOrder(order.tools, order.cap, untrusted=order.untrusted)
        inbound = Inbound(
            child.chat_key,
            by.inbound.sender,
            (Text(text),),
            f"tell:{by.id}",
            is_unattended=True,
            run=alone,
            repeats_others=untrusted,
        )
        try:
            live = await self._turns.wake(inbound, child.session_id)
        except NotFound:
            return False
        if live.turn.merged_into is None:
            self._start_task(self._cancel([live]))
        return live.turn.merged_into is not None

    def _end_of(self, parent: LiveTurn, delegate: Delegate) -> None:
        """The delegate has an outcome: its parent resumes, or gets the report."""
        if delegate.report is Report.RESULT:
            parent.decide(delegate.id)
        else:
            self._start_task(self._report(parent, delegate.id))

    async def _report(self, parent: LiveTurn, delegate_id: DelegateId) -> None:
        """Wake the session of the parent with the outcome, once: the id is the message's key."""
        if delegate_id in self._reporting:
            return
        self._reporting.add(delegate_id)
        try:
            await self._report_once(parent.turn.session_id, delegate_id)
        finally:
            self._reporting.discard(delegate_id)
        parent.decide(delegate_id)

    async def _report_once(self, session_id: SessionId, delegate_id: DelegateId) -> None:
        for pause in _REPORT_AGAIN.pauses():
            try:
                row = await self._store.find_delegate(delegate_id)
                if row is None or row.report is not Report.OWED:
                    return
                with suppress(IdempotencyConflict):  # told in other words
                    await self._wake(session_id, row)
                hit(Failpoint.WOKEN)
                await self._store.report_delegate(delegate_id)
            except Draining:
                return
            except TalariaError as error:
                # Also while the chat is in another session: the person may return to this one.
                _log.info("the end of delegate %s is reported later: %s", delegate_id, error)
                await self._clock.sleep(pause)

    async def _wake(self, session_id: SessionId, delegate: Delegate) -> None:
        told = f"is {describe_end(delegate)}" if is_done(delegate) else describe_end(delegate)
        if len(told) > _MOST_REPORT and delegate.outcome is not None:
            told = f"{told[:_MOST_REPORT]}\n… The rest is in the session {delegate.outcome.session_id}."
        text = f"{WAKING}the delegate “{delegate.task.title}” in the background has ended. It {told}]"
        inbound = await waking(self._store, session_id, text, f"delegate:{delegate.id}")
        if delegate.outcome is None or delegate.outcome.untrusted:
            inbound = msgspec.structs.replace(inbound, repeats_others=True)
        await self._turns.wake(inbound, session_id)

    # -- a parked parent ------------------------------------------------------------------------------------

    def _look_after(self, live: LiveTurn) -> None:
        if any(each.outcome is None for each in live.delegates.values()):
            self._start_task(self._tend(live))

    async def _tend(self, parent: LiveTurn) -> None:
        """Run the open delegates of a parked turn, some at a time, until it is not parked any more."""
        self._tell_start(parent)
        waiting = [each for each in parent.delegates.values() if each.outcome is None]
        running = self._running[parent] = {}
        woken = asyncio.Event()
        watch = asyncio.ensure_future(parent.unparked())
        watch.add_done_callback(lambda _: woken.set())
        try:
            while parent.state is LiveState.PARKED:
                woken.clear()
                while waiting and self._has_room(parent):
                    delegate = waiting[0]
                    if parent.has_decided(delegate.id):  # stopped before it began
                        del waiting[0]
                        continue
                    child = await self._start(parent, delegate)
                    if child is not None:
                        running[delegate.id] = child
                        child.settled.add_done_callback(lambda _: woken.set())
                    elif await self._is_open(delegate):
                        break  # it is tried again
                    del waiting[0]
                await self._collect(parent, running)
                pause = _TRY_AGAIN_SECONDS if waiting and not running else _PULSE_SECONDS
                for key, child in running.items():
                    await self._tell(parent, parent.delegates[key], child)
                    pause = min(pause, max(0.1, deadline_of(parent.delegates[key]) - self._clock.now()))
                await sleep_until_woken(self._clock, pause, woken)
        finally:
            watch.cancel()
            if self._running.get(parent) is running:  # else it is parked again
                del self._running[parent]
            self._background = {call: each for call, each in self._background.items() if each is not parent}
            if parent.state in ENDING:
                # Its end first: a kill in between must not leave a parent that goes on with stopped children.
                await asyncio.wait((parent.settled,))
            if parent.state not in (LiveState.PARKED, LiveState.LET_GO):
                await self._cancel(running.values())

    def _has_room(self, parent: LiveTurn) -> bool:
        """Return whether another delegate may run. Calls in the background share the places of a session."""
        is_background = parent in self._background.values()
        taken = sum(
            len(running)
            for other, running in self._running.items()
            if other is parent
            or (
                is_background
                and other in self._background.values()
                and other.turn.session_id == parent.turn.session_id
            )
        )
        return taken < self._settings().max_parallel

    async def _collect(self, parent: LiveTurn, running: dict[DelegateId, LiveTurn]) -> None:
        """Note the children that have ended, and stop those whose time is over."""
        now = self._clock.now()
        for key, child in tuple(running.items()):
            delegate = parent.delegates[key]
            if child.settled.done():
                row = delegate if child.turn.state.is_final else await self._row(delegate)
                if child.turn.state.is_final or row.outcome is not None:
                    del running[key]
                    await self._tell(parent, delegate, child)
                    self._start_task(self._end_session(child.turn.session_id))
                    self._end_of(parent, delegate)
                else:  # it continues at another member, or here after its lease was lost
                    running[key] = await self._turns.find(child.turn.id)
            elif now >= deadline_of(delegate) and child.state is not LiveState.STOPPING:
                self._start_task(self._cancel([child]))

    async def _is_open(self, delegate: Delegate) -> bool:
        return (await self._row(delegate)).outcome is None

    async def _row(self, delegate: Delegate) -> Delegate:
        try:
            return await self._store.find_delegate(delegate.id) or delegate
        except StoreError:
            return delegate

    async def _start(self, parent: LiveTurn, delegate: Delegate) -> LiveTurn | None:
        """Accept the child's turn, or find it. Return None if it has to be tried again later. A task that
        cannot be accepted at all has failed."""
        try:
            child = await self._turns.receive(self._inbound(parent.turn, delegate), is_new=True)
        except (Draining, Overloaded, LimitReached, StoreError) as error:
            _log.info("delegate %s starts later: %s", delegate.id, error)
            return None
        except TalariaError as error:
            _log.warning("delegate %s could not start: %s", delegate.id, error.user_text)
            outcome = DelegateOutcome(str(TurnState.FAILED), error.info().sentence())
            await self._store.settle_delegate(delegate.id, outcome)
            self._tell_outcome(parent, delegate, outcome)
            self._end_of(parent, delegate)
            return None
        hit(Failpoint.HANDED_OUT)
        return child

    def _inbound(self, parent: Turn, delegate: Delegate) -> Inbound:
        above, task = parent.inbound.order, delegate.task
        asked_in = self._sender.place_of(parent.chat_key, parent.inbound.address)
        may_ask = parent.inbound.is_unattended is not True
        if above is not None and above.asked_in is not None:
            asked_in, may_ask = above.asked_in, above.may_ask
        until = deadline_of(delegate)
        order = RunOrder(
            tools=task.tools,
            cap=task.cap or self._cap_of(task.agent),
            deadline=max(1.0, until - delegate.asked_at),
            asked_in=ReplyPlace(asked_in.chat_key, asked_in.address),
            job_name=task.title,
            may_ask=may_ask,
            untrusted=task.untrusted,
            is_urgent=not parent.inbound.gives_way,
            agent=task.agent,
            descent=Descent(
                delegate.id,
                parent.id,
                TurnId(tree_of(parent)) or parent.id,
                account_of(parent) or parent.session_id,
                depth_of(parent.inbound) + 1,
                until,
                tree_caps(parent),
            ),
        )
        return Inbound(
            delegate_chat(
                ChatAddress.parse(parent.chat_key).agent, delegate.id, asking_chat(parent.chat_key)
            ),
            parent.inbound.sender,
            (Text(f"{_HEAD}\n\n{task.text}"),),
            key=delegate.id,  # accepted again after a crash, it is the same turn
            model=task.model or None,
            is_unattended=True,
            run=order,
            repeats_others=parent.inbound.repeats_others if parent.inbound.repeats_others is True else UNSET,
        )

    def _cap_of(self, agent: str) -> int:
        named = self._turns.agents.specs.agents.get(agent)
        return 0 if named is None else from_usd(named.budget_usd)

    # -- ends -----------------------------------------------------------------------------------------------

    async def _cancel(self, children: Iterable[LiveTurn]) -> None:
        for child in children:
            try:
                turn = await self._turns.cancel(child)
                await self._end_session(turn.session_id)
            except TalariaError as error:
                _log.warning("delegate turn %s could not be stopped: %s", child.turn.id, error.user_text)

    async def _end_session(self, session_id: SessionId) -> None:
        """End the session of a child, with its processes."""
        try:
            await self._turns.end(session_id)
        except (LeaseHeld, NotFound, StoreError) as error:
            _log.info("session %s of a delegate is ended later: %s", session_id, error)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, "delegates").add_done_callback(_log_failure)

    # -- what followers of the parent see -------------------------------------------------------------------

    def _tell_start(self, parent: LiveTurn) -> None:
        """Emit the state of all delegates. If an earlier process parked the turn, emit its calls too."""
        if not parent.begins:
            for call_id in dict.fromkeys(each.call_id for each in parent.delegates.values()):
                parent.emit(ToolStarted(call_id, DELEGATE, "{}"))
        for delegate in parent.delegates.values():
            if delegate.id not in parent.below:
                outcome = delegate.outcome or DelegateOutcome(str(TurnState.ACCEPTED), "")
                self._tell_outcome(parent, delegate, outcome)

    def _tell_outcome(self, parent: LiveTurn, delegate: Delegate, outcome: DelegateOutcome) -> None:
        seconds = max(0.0, (delegate.ended_at or self._clock.now()) - delegate.asked_at)
        call_id, title, state = delegate.call_id, delegate.task.title, TurnState(outcome.state)
        line = clean_line(outcome.text, _LINE) if state is TurnState.FAILED else ""
        parent.emit_below(DelegateChanged(call_id, delegate.id, outcome.turn_id, title, state, line, seconds))

    async def _tell(self, parent: LiveTurn, delegate: Delegate, child: LiveTurn) -> None:
        """Tell followers of the parent what a child does, and those below it, if that has changed."""
        for below in tuple(child.below.values()):
            each = msgspec.structs.replace(below, call_id=delegate.call_id)
            if child.turn.state.is_final and not each.state.is_final:  # stopped with the child
                each = msgspec.structs.replace(each, state=TurnState.CANCELLED, line="")
            if parent.below.get(each.delegate_id) != each:
                parent.emit_below(each)
        last = parent.below.get(delegate.id)
        state = child.turn.state
        line = "" if state.is_final else child.doing()
        if last is not None and (last.state, last.line) == (state, line):
            return
        cost = child.spent.cost_usd if child.spent.calls else await self._cost(child.turn.id)
        ended_at = child.turn.ended_at or self._clock.now()
        seconds = max(0.0, ended_at - delegate.asked_at)
        title = delegate.task.title
        parent.emit_below(
            DelegateChanged(
                delegate.call_id, delegate.id, child.turn.id, title, state, line, seconds, cost or ""
            )
        )

    async def _cost(self, turn_id: TurnId) -> str | None:
        try:
            record = await self._store.turn_record(turn_id)
        except StoreError:
            return None
        return record.spent.cost_usd if record is not None and record.spent.calls else None


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("looking after delegates failed", exc_info=error)
