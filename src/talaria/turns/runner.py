"""Running one turn: store lease, pool lease, agent loop, and the one commit that settles it.

The order of acquisition is always lane, store lease (fence), pool lease, endpoint permit. What is held is
given back in the opposite order before a turn is closed, parked or tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from talaria.agent.journal import Journal
from talaria.agent.loop import Loop
from talaria.agent.warm import WarmAgent
from talaria.cluster.leases import LeaseKeeper
from talaria.commands.command import parse_command
from talaria.core.backoff import Backoff
from talaria.core.delegates import Delegate, Report
from talaria.core.entries import Exchange, Hidden
from talaria.core.errors import (
    IllegalMove,
    LeaseHeld,
    LimitReached,
    StaleFence,
    StoreError,
    TalariaError,
    TurnElsewhere,
)
from talaria.core.events import QuestionAsked, Reset
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import SessionId
from talaria.core.ledger import Began, Begin, TurnEnd, ended_turn
from talaria.core.questions import Question
from talaria.core.tasks import finish
from talaria.core.turns import Turn, TurnState
from talaria.observe.logs import log_turn
from talaria.observe.loop_watch import Load
from talaria.pool.pool import Wanted
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.command_turns import INTERNAL, CommandRunner
from talaria.turns.crashes import MAX_CRASHES, Quarantine
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.questions import Decisions
from talaria.turns.settings import TurnSettings
from talaria.turns.slash import COMPACT, SlashCommands, asks_model, read_exchanges
from talaria.turns.states import ENDING, INTERRUPTIONS, LiveState
from talaria.turns.titles import Titles

_log = logging.getLogger("talaria.turns")
_MOST_ATTEMPTS = 30  # for a turn that takes longer to kill the process than the quarantine watches it
_FREE_LOSSES = 3  # lost leases in this process; further ones count as crashes, so that tries have an end
_TRY_AGAIN = Backoff(0.1, 30.0)
_CALM_SECONDS = 0.5
CANCELLED_BY_USER = "Cancelled by the user before it ended."
_FAILED = "The turn failed before this call ended."


class _Attempt(msgspec.Struct):
    """An attempt at a turn; the first has the `number` 0. `began` and `journal` are set while this process
    holds the session's lease."""

    live: LiveTurn
    task: asyncio.Task[Any]
    number: int = 0
    began: Began | None = None
    journal: Journal | None = None
    loop: Loop | None = None
    is_recalled: bool = False


class Runner:
    """The one place where a turn is begun, interrupted, tried again, parked and ended."""

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        agents: Agents,
        live: LiveTurns,
        settings: TurnSettings,
        *,
        decisions: Decisions,
        end_session: Callable[[SessionId], Awaitable[object]],
        titles: Titles,
        load: Load | None = None,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._agents = agents
        self._live = live
        self._titles = titles
        self._settings = settings
        self._clock = agents.clock
        self.slash = slash = SlashCommands(store, agents, live, settings, decisions)
        self._commands = CommandRunner(store, keeper, agents, live, slash, decisions, end_session)
        self._quarantine = Quarantine(store, agents.clock, live)
        self._load = load or Load()
        self._is_leaving = False
        self._gate: asyncio.Future[bool] | None = None  # while turns are held; its result: they may begin

    async def run(self, live: LiveTurn) -> None:
        """Run the turn until it is settled, parked or let go.

        Raises nothing but the `CancelledError` of a shutdown; the turn is let go then and stays resumable.
        """
        log_turn(live.turn.id, live.turn.session_id)
        task = asyncio.current_task()
        assert task is not None
        task.set_name(f"turn {live.turn.id}")  # so that the loop's watch can name the turn
        try:
            live.start()
            for number, pause in enumerate(_TRY_AGAIN.pauses()):
                await self._attempt(_Attempt(live, task, number))
                if live.state.is_over or live.state is LiveState.PARKED:
                    return
                live.start()
                await self._clock.sleep(pause)
        finally:
            if live.state is not LiveState.PARKED:
                self._live.let_go(live)

    @property
    def is_held(self) -> bool:
        return self._gate is not None

    def hold(self) -> None:
        """Begin no turns until `release`. A turn that waits can be stopped, and commands are answered."""
        self._gate = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Begin the turns that were held."""
        self._open_gate(may_begin=True)

    def let_go_held(self) -> None:
        """Let the turns go that are held, because the gateway shuts down."""
        self._is_leaving = True
        self._open_gate(may_begin=False)

    def _open_gate(self, *, may_begin: bool) -> None:
        gate, self._gate = self._gate, None
        if gate is not None and not gate.done():
            gate.set_result(may_begin)

    async def _attempt(self, attempt: _Attempt) -> None:
        """Try once. Afterwards the turn is over, or has to be tried again before its chat goes on."""
        live, task, is_shutdown = attempt.live, attempt.task, False
        earlier = task.cancelling()
        try:
            try:
                live.hold_task(task)
                await self._answer(attempt)
            except asyncio.CancelledError:
                is_shutdown = live.state not in INTERRUPTIONS or task.uncancel() > earlier
                if is_shutdown and live.state not in ENDING:
                    await self._record_calls(attempt)
                    raise
            finally:
                live.hold_task(None)
            if live.state in ENDING:
                await self._close(attempt)
        except TurnElsewhere as error:
            _log.info("turn %s goes on elsewhere: %s", live.turn.id, error)
            self._live.let_go(live)
        except (StaleFence, LeaseHeld, IllegalMove) as error:
            _log.warning("turn %s stopped: another owner has its session (%s)", live.turn.id, error)
            self._live.let_go(live)
        except StoreError as error:
            level = logging.DEBUG if attempt.number else logging.ERROR  # `StoreWatch` logs when it is over
            _log.log(level, "turn %s waits for the store: %s", live.turn.id, error)
            if is_shutdown:
                self._live.let_go(live)
        except Exception:
            _log.exception("turn %s was left unsettled", live.turn.id)
            self._live.let_go(live)
        finally:
            self._conclude(attempt)

    async def _record_calls(self, attempt: _Attempt) -> None:
        """Record what the model call cost that the shutdown cancelled. If that fails, the call counts as all
        that was reserved for it."""
        journal = attempt.journal
        if journal is None or journal.end is not None or journal.asked or journal.awaited or not journal.owes:
            return
        try:
            await journal.commit()
        except StoreError as error:
            _log.warning("the cost of a call of turn %s was not recorded: %s", journal.turn_id, error)

    def _conclude(self, attempt: _Attempt) -> None:
        """Stop renewing the lease, and tell followers if the turn was parked or has ended."""
        live, journal = attempt.live, attempt.journal
        if journal is None:
            return
        self._keeper.drop(journal.session_id, journal.fence)
        if (journal.asked or journal.awaited) and live.state is LiveState.RUNNING:
            live.park(journal.asked, journal.awaited)
        if (end := journal.end) is None:
            return
        hit(Failpoint.ENDED)
        at = journal.ended_at
        self._live.settle(live, ended_turn(live.turn, end, at))
        if end.state is TurnState.DONE and self._agents.memories is not None:
            self._agents.memories.note_end(live.turn, end.reply or "")
        if attempt.began is not None:
            self._titles.consider(attempt.began.session, attempt.began.before, live.turn)
        if live.steers:
            joined = [steer for steer in live.steers if _has_joined(steer, journal)]
            live.steers = [steer for steer in live.steers if steer not in joined]
            for steer in joined:
                self._live.settle(steer, ended_turn(steer.turn, end, at))

    # -- answering ------------------------------------------------------------------------------------------

    async def _answer(self, attempt: _Attempt) -> None:
        """Begin the turn and let its agent answer. What goes wrong after the beginning is the turn's end.

        Raises store errors if the turn cannot be begun, or if its end cannot be written.
        """
        live = attempt.live
        if live.state is not LiveState.STARTING:
            return  # it was stopped while it was queued, or between two attempts
        if live.amending is not None:
            await asyncio.wait((live.amending,))  # the message that is begun is the edited one
        if live.turn.state is TurnState.WAITING and await self._still_waits(live):
            return
        again = await self._find_retried(live.turn)
        if live.turn.command and again is None and live.turn.command != COMPACT:
            if self._keeper.is_out:  # another member may have it; it is found again if none has
                self._live.let_go(live)
                return
            live.hold_task(None)  # a command is brief, and is not interrupted
            await self._commands.run(live)
            return
        is_refused = self._gate is not None and not await asyncio.shield(self._gate)
        if live.turn.inbound.gives_way and live.began is None and not is_refused:
            is_refused = not await self._calm()
        if is_refused or (live.began is None and not await self._agents.wait_for_model(self._store, live)):
            self._live.let_go(live)
            return
        if not live.begins:
            await self._quarantine.enter(live)
        await self._begin(attempt, again)
        try:
            await self._converse(attempt)
        except StaleFence:
            raise
        except TalariaError as error:
            await self._fail(attempt, error)
        except Exception:
            _log.exception("turn %s failed", live.turn.id)
            await self._fail(attempt, INTERNAL)

    async def _calm(self) -> bool:
        """Wait until scheduled turns may begin. Return False if the gateway shuts down first."""
        while self._load.runs_wait() and not self._is_leaving:
            await self._clock.sleep(_CALM_SECONDS)
        return not self._is_leaving

    async def _still_waits(self, live: LiveTurn) -> bool:
        """Park a turn that is `waiting` in the store if one of its questions is open, or a delegate works."""
        record = await self._store.turn_record(live.turn.id)
        questions = record.questions if record is not None else ()
        now = self._clock.now()
        delegates = () if record is None else record.delegates
        awaited = [each for each in delegates if each.report is Report.RESULT]
        waits: list[Question | Delegate] = [*questions, *awaited]
        if record is None or not any(each.is_open(now) for each in waits):
            return False
        if not live.begins:  # an earlier process asked
            names = {step.n: step.name for step in record.steps}
            for question in questions:
                if question.is_open(now):
                    live.emit(QuestionAsked.of(question, names[question.n]))
        live.park(questions, awaited)
        return live.state is LiveState.PARKED

    async def _find_retried(self, turn: Turn) -> Exchange | None:
        """Return the exchange that a `/retry` repeats; None for every other turn."""
        if not turn.command or not asks_model(turn.command):
            return None
        earlier = await read_exchanges(self._store, turn.session_id)
        return earlier[-1] if earlier else None

    async def _converse(self, attempt: _Attempt) -> None:
        live, began, journal = attempt.live, attempt.began, attempt.journal
        assert began is not None and journal is not None
        if began.crashes >= MAX_CRASHES or began.attempts > _MOST_ATTEMPTS:
            raise await self._quarantine.verdict(live.turn)
        agents, session = self._agents, began.session
        if not agents.routes.models.is_prepared:
            await agents.routes.models.prepare()
        pinned, revision = await agents.pin(live.turn, began, journal)
        if session.ephemeral:
            journal.attach(agent := await agents.builder.build(session.id, pinned.id), is_kept=False)
            await self._loop(attempt, journal, agent)
            return
        wanted = Wanted(session.id, session.chat_key, pinned.id, revision)
        async with agents.pool.lease(wanted) as agent:
            if began.entry is not None:
                agent.absorb((began.entry,))
            journal.attach(agent)
            await self._loop(attempt, journal, agent)

    async def _loop(self, attempt: _Attempt, journal: Journal, agent: WarmAgent) -> None:
        live = attempt.live
        attempt.loop = self._agents.loop(live, agent, journal, self._settings)
        try:
            if live.turn.command == COMPACT:
                await self._compact(live, agent, journal)
                return
            live.completion = await attempt.loop.run()
            live.steps, live.spent = tuple(journal.steps.values()), journal.spent
        finally:
            journal.attach(None)

    async def _compact(self, live: LiveTurn, agent: WarmAgent, journal: Journal) -> None:
        """Compact the conversation because a person asked for it, and tell what came of it."""
        command = parse_command(live.turn.inbound.text)
        keeper = self._agents.compaction.keep(live.turn, agent, journal, live.emit)
        reply = await keeper.compact_now(command.args if command else "")
        await journal.commit(end=TurnEnd(TurnState.DONE, reply=reply, usage=journal.usage))

    # -- beginning ------------------------------------------------------------------------------------------

    async def _begin(self, attempt: _Attempt, again: Exchange | None = None) -> None:
        """Take the session's lease, waiting while another process has it, and recall earlier attempts.

        Raises `LeaseHeld` if another process took the session from this turn.
        """
        live, keeper = attempt.live, self._keeper
        if live.began is not None:
            self._hold(attempt, live.began, live.asked_at)
        else:
            turn = live.turn
            said = turn.inbound if again is None else again.said
            parts = () if turn.command == COMPACT else said.parts
            order = Begin(
                turn_id=turn.id,
                owner=keeper.owner,
                lease_seconds=keeper.lease_seconds,
                user=self._settings.user_message(parts, turn.accepted_at, said.untrusted),
                hide=None if again is None else Hidden(again.first, again.last),
                is_forgiven=live.begins > 0 and live.losses <= _FREE_LOSSES,
            )
            for pause in Backoff(0.1, keeper.lease_seconds / 3).pauses():
                await keeper.wait_until_in()
                try:
                    await finish(self._take(attempt, order))
                    break
                except LeaseHeld:
                    if live.begins or self._live.has_begun_behind(live):
                        raise
                    await self._clock.sleep(pause)
        await self._recall(attempt)

    async def _take(self, attempt: _Attempt, order: Begin) -> None:
        asked_at = self._keeper.now()
        self._hold(attempt, await self._store.begin(order), asked_at)

    def _hold(self, attempt: _Attempt, began: Began, asked_at: float) -> None:
        """The turn is begun: renew its lease from now on."""
        live, keeper = attempt.live, self._keeper
        session_id, fence = began.session.id, began.fence
        attempt.is_recalled = live.began is not None or not live.turn.attempts
        if live.begins and live.turn.state is not TurnState.WAITING:
            live.is_resumed = True
            live.emit(Reset())  # what was streamed before is void; a parked turn goes on where it was
        live.run(began)
        attempt.began = began
        # Dropped before the last commit gives the lease back, or a renewal would take it for lost.
        attempt.journal = Journal(
            self._store, session_id, live.turn.id, fence, lambda: keeper.drop(session_id, fence)
        )
        keeper.hold(session_id, fence, asked_at, live.lose)
        hit(Failpoint.BEGUN)

    async def _recall(self, attempt: _Attempt) -> None:
        """Read what earlier attempts have committed, once. A turn cannot be closed without it."""
        live, began, journal = attempt.live, attempt.began, attempt.journal
        assert began is not None and journal is not None
        if attempt.is_recalled:
            return
        record = await self._store.turn_record(live.turn.id)
        for steer in live.steers:
            if (joined := await self._store.turn_record(steer.turn.id)) is not None:
                steer.turn = joined.turn
        if record is not None:
            journal.recall(await self._store.turn_log(began.session.id, live.turn.id), record)
        attempt.is_recalled = True

    # -- ending ---------------------------------------------------------------------------------------------

    async def _close(self, attempt: _Attempt) -> None:
        """End an interrupted turn in the store: cancelled by a person, or failed at its time limit."""
        live = attempt.live
        if (parked := attempt.journal) is not None and (parked.asked or parked.awaited):
            # It was parked in the same moment, so its lease is given back.
            live.turn = msgspec.structs.replace(live.turn, state=TurnState.WAITING)
            attempt.journal = None
        if attempt.journal is None:
            if not live.turn.attempts:
                turn = await self._store.settle(live.turn.id, TurnEnd(TurnState.CANCELLED))
                self._live.settle(live, turn)
                return
            await self._begin(attempt)
        await self._recall(attempt)
        journal = attempt.journal
        assert journal is not None
        if journal.end is not None:
            return
        if live.state is LiveState.OVERDUE:
            await self._fail(attempt, self._too_late(live.turn))
            return
        said = attempt.loop.said() if attempt.loop is not None else None
        end = TurnEnd(TurnState.CANCELLED, reply=said.text if said else None, usage=journal.usage)
        await journal.close(end, CANCELLED_BY_USER, said)

    async def _fail(self, attempt: _Attempt, error: TalariaError) -> None:
        journal = attempt.journal
        assert journal is not None
        _log.info("turn %s failed: %s", journal.turn_id, error)
        if journal.end is None and not (
            journal.asked or journal.awaited
        ):  # a turn that was parked has given its lease back
            said = attempt.loop.said() if attempt.loop is not None else None
            await journal.close(TurnEnd.failed(error, journal.usage), _FAILED, said)

    def _too_late(self, turn: Turn) -> LimitReached:
        seconds, order = self._settings.seconds_of(turn), turn.inbound.order
        hint = "Send a message to continue it, or raise `agent.turn_timeout`."
        if order is not None and order.deadline:
            hint = "Give the job a later deadline, or less to do."
        return LimitReached(f"The turn was stopped because it took longer than {seconds:g} seconds.", hint)


def _has_joined(steer: LiveTurn, journal: Journal) -> bool:
    return steer.turn.id in journal.taken or steer.turn.state is not TurnState.ACCEPTED
