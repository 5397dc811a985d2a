"""Starts the delegates of parked turns, wakes their parents, and stops those that nobody waits for.

The rows say everything: a parent is parked in the commit that writes its delegates, and the last commit of a
child writes the outcome. A child is accepted under the id of its row, so accepting it again finds the same
turn. What is done here may therefore be cut off at any moment; it is done again when the parent is parked
again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import UNSET

from talaria.access.budgets import account_of, tree_caps, tree_of
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.delegates import Delegate, DelegateOutcome, Descent
from talaria.core.errors import LeaseHeld, LimitReached, NotFound, Overloaded, StoreError, TalariaError
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
from talaria.tools.delegate import deadline_of, depth_of
from talaria.tools.settings import DelegateSettings
from talaria.turns.intake import Draining
from talaria.turns.live import LiveTurn
from talaria.turns.run_questions import RunQuestions
from talaria.turns.sending import ChatSender
from talaria.turns.states import LiveState
from talaria.turns.turns import Turns

_log = logging.getLogger("talaria.turns")
_LOOK_SECONDS = 30.0
_LINE = 100
_PULSE_SECONDS = 1.0  # between two events that tell what a delegate does
_LOOKS = Backoff(0.1, _LOOK_SECONDS)
_TRY_AGAIN_SECONDS = 0.25
_HEAD = (
    "[You are a helper: another agent has handed you this task. You cannot ask it anything. Your last "
    "message is your result. Say what you found or did, and what you could not do.]"
)


@asynccontextmanager
async def open_delegates(
    turns: Turns, store: Store, sender: ChatSender, clock: Clock, settings: Callable[[], DelegateSettings]
) -> AsyncIterator[Delegates]:
    """Look after delegates, and put the questions of turns that nobody attends, until the context is left."""
    questions = RunQuestions(turns.live, turns.hosts, sender)
    delegates = Delegates(turns, store, sender, clock, settings)
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
    ) -> None:
        self._turns = turns
        self._store = store
        self._sender = sender
        self._clock = clock
        self._settings = settings
        self._agent_name = turns.decisions.agent_name
        self._tasks = Tasks()
        turns.live.on_park.append(self._look_after)

    async def close(self) -> None:
        """Let go of all parents; their rows are looked after by the next process."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def run(self) -> None:
        """Stop children whose parents do not wait for them any more, and end sessions that children have
        left, until cancelled. A parent does so itself; this is for those whose process was killed in
        between."""
        for pause in _LOOKS.pauses():  # at first often: what a killed process left is found in a moment
            for live in self._turns.live:
                if (order := live.turn.inbound.order) is not None and order.descent is not None:
                    await self._stop_orphan(live, order.descent.delegate)
            with suppress(StoreError):
                for session_id in await self._store.unused_sessions(all_delegates(self._agent_name)):
                    await self._end_session(session_id)
            await self._clock.sleep(pause)

    async def _stop_orphan(self, live: LiveTurn, delegate_id: DelegateId) -> None:
        try:
            row = await self._store.find_delegate(delegate_id)
            record = None if row is None else await self._store.turn_record(row.turn_id)
        except StoreError:
            return
        if row is None or row.outcome is not None or record is None or record.turn.state.is_final:
            self._start_task(self._cancel([live]))

    # -- a parked parent ------------------------------------------------------------------------------------

    def _look_after(self, live: LiveTurn) -> None:
        if any(each.outcome is None for each in live.delegates.values()):
            self._start_task(self._tend(live))

    async def _tend(self, parent: LiveTurn) -> None:
        """Run the open delegates of a parked turn, some at a time, until it is not parked any more."""
        self._tell_start(parent)
        waiting = [each for each in parent.delegates.values() if each.outcome is None]
        running: dict[DelegateId, LiveTurn] = {}
        woken = asyncio.Event()
        watch = asyncio.ensure_future(parent.unparked())
        watch.add_done_callback(lambda _: woken.set())
        try:
            while parent.state is LiveState.PARKED:
                woken.clear()
                while waiting and len(running) < self._settings().max_parallel:
                    delegate = waiting[0]
                    child = await self._start(parent, delegate)
                    if child is not None:
                        running[delegate.id] = child
                        child.settled.add_done_callback(lambda _: woken.set())
                    elif not parent.has_decided(delegate.id):
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
            if parent.state not in (LiveState.PARKED, LiveState.LET_GO):
                await self._cancel(running.values())

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
                    parent.decide(key)
                else:  # it continues at another member, or here after its lease was lost
                    running[key] = await self._turns.find(child.turn.id)
            elif now >= deadline_of(delegate) and child.state is not LiveState.STOPPING:
                self._start_task(self._cancel([child]))

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
            parent.decide(delegate.id)
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
