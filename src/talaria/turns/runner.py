"""Running one turn: store lease, pool lease, agent loop, and the one commit that settles it.

The order of acquisition is always lane → store lease (fence) → pool lease → endpoint permit. `Runner.run` is
the boundary where every exception becomes an outcome.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from talaria.agent.calling import Caller
from talaria.agent.context import TurnContext
from talaria.agent.journal import Journal
from talaria.agent.loop import CANCELLED_BY_USER, Loop
from talaria.agent.warm import WarmAgent
from talaria.commands.slash import asks_model
from talaria.core.entries import Exchange, Hidden, Revision, SpecSet, exchanges
from talaria.core.errors import (
    IllegalMove,
    LeaseHeld,
    LimitReached,
    Poisoned,
    StaleFence,
    StoreError,
    TalariaError,
)
from talaria.core.events import Reset
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ledger import Began, Begin, TurnEnd
from talaria.core.specs import PinnedSpec
from talaria.core.turns import Turn, TurnState
from talaria.observe.lines import log_turn
from talaria.pool.pool import Wanted
from talaria.turns.arriving import await_model
from talaria.turns.commanding import CommandRunner
from talaria.turns.live import HeadStart, LiveTurn, StopReason
from talaria.turns.parts import Parts
from talaria.turns.patience import pauses
from talaria.turns.probation import Probation
from talaria.turns.settled import INTERNAL, ended, failure, tell
from talaria.turns.steering import LiveSteering

_log = logging.getLogger("talaria.turns")
MAX_ATTEMPTS = 3
_MOST_ATTEMPTS = 30  # for one that takes longer to kill than suspects are watched
_LONGEST_PAUSE = 30.0
_ENDING = (StopReason.USER, StopReason.DEADLINE)
_FAILED_NOTE = "The turn failed before this call ended."


class Runner:
    """Runs turns. Whatever happens, a turn ends in exactly one outcome or stays resumable."""

    def __init__(self, parts: Parts, commands: CommandRunner) -> None:
        self._parts = parts
        self._commands = commands
        self._probation = Probation(parts.store, parts.clock)

    async def run(self, live: LiveTurn) -> None:
        """Never raises but for the cancellation of a shutdown, after which the turn is resumable."""
        live.has_begun = True
        log_turn(live.turn.id, live.turn.session_id)
        try:
            await self._probation.enter(live)
            live.began_at = self._parts.clock.elapsed()
            for seconds in pauses(_LONGEST_PAUSE):
                if await self._is_through(live):
                    break
                live.take_up_again()
                await self._parts.clock.sleep(seconds)
        finally:
            self._parts.live.close(live)
            live.abandon()

    def drain(self) -> None:
        """Nothing is begun any more."""
        self._probation.drain()

    async def _is_through(self, live: LiveTurn) -> bool:
        """One try. False: the turn is unsettled and ours to take up again, before its chat goes on."""
        try:
            again = await self._again(live.turn)
            if live.turn.command and again is None:
                await self._commands.run(live)
            elif await await_model(live, self._parts):
                await self._run(live, again)
        except asyncio.CancelledError:
            if not live.was_stopped_by(StopReason.LOST):
                raise
            live.calm()
            _log.warning("turn %s stopped: its lease was lost", live.turn.id)
            return False
        except (StaleFence, LeaseHeld, IllegalMove) as error:
            _log.warning("turn %s stopped: another owner has its session (%s)", live.turn.id, error)
        except StoreError as error:
            _log.error("turn %s waits for the store: %s", live.turn.id, error)
            return False
        except Exception:
            _log.exception("turn %s was left unsettled", live.turn.id)
        finally:
            live.leave()
        return True

    async def _again(self, turn: Turn) -> Exchange | None:
        """What `/retry` asks again, at the moment when it is its turn; None for everything else."""
        if not turn.command or not asks_model(turn.command):
            return None
        log = await self._parts.store.log(turn.session_id, 0)
        earlier = exchanges(log)
        return earlier[-1] if earlier else None

    async def _run(self, live: LiveTurn, again: Exchange | None) -> None:
        parts = self._parts
        start = live.head_start or await self._begin(live, again)
        if start is None:
            turn = await parts.store.settle(live.turn.id, TurnEnd(TurnState.CANCELLED))
            tell(live, turn, parts.metrics, parts.clock)
            return
        began, asked_at = start.began, start.asked_at
        session_id, fence = began.session.id, began.fence
        live.turn = msgspec.structs.replace(live.turn, state=TurnState.RUNNING, attempts=began.attempts)
        if live.is_taken_up_again and began.attempts > 1:
            live.emit(Reset())
        # Dropped before the last commit gives the lease back, or a renewal would find it gone and cry loss.
        journal = Journal(
            parts.store, session_id, live.turn.id, fence, lambda: parts.keeper.drop(session_id, fence)
        )
        live.was_begun_here = True
        hit(Failpoint.BEGUN)
        if began.attempts > 1:  # not to be stopped here: who has not recalled cannot close the turn
            await self._recall(live, began, journal)
        live.enter()
        parts.keeper.hold(session_id, fence, asked_at, lambda: live.stop(StopReason.LOST))
        try:
            await self._answer(live, began, journal)
        finally:
            parts.keeper.drop(session_id, fence)
            if journal.end is not None:
                self._tell(live, journal, journal.end)

    def _tell(self, live: LiveTurn, journal: Journal, end: TurnEnd) -> None:
        """Those who follow the turn, and those who follow what joined it; the rest of `live.steers` are turns
        of their own from now on."""
        hit(Failpoint.ENDED)
        parts, now = self._parts, self._parts.clock.now()
        tell(live, ended(live.turn, end, now), parts.metrics, parts.clock)
        joined = [steer for steer in live.steers if _has_joined(steer, journal)]
        live.steers = [steer for steer in live.steers if not _has_joined(steer, journal)]
        for steer in joined:
            tell(steer, ended(steer.turn, end, now), parts.metrics, parts.clock)
            parts.live.close(steer)

    async def _begin(self, live: LiveTurn, again: Exchange | None) -> HeadStart | None:
        """Take the session's lease, waiting while another process has it. None: stopped before it began.

        Raises `LeaseHeld` when another process took the session from this turn.
        """
        parts, turn = self._parts, live.turn
        said = turn.inbound.parts if again is None else again.said.parts
        order = Begin(
            turn_id=turn.id,
            owner=parts.keeper.owner,
            lease_seconds=parts.keeper.lease_seconds,
            user=parts.user_message(said, turn.accepted_at),
            hide=None if again is None else Hidden(again.first, again.last),
            is_forgiven=live.was_begun_here,
        )
        for seconds in pauses(parts.keeper.lease_seconds / 3):
            if live.reason is not None and not turn.attempts:
                break
            asked_at = parts.keeper.now()
            try:
                return HeadStart(await parts.store.begin(order), asked_at)
            except LeaseHeld:
                if live.is_taken_up_again and turn.attempts:
                    raise
                await parts.clock.sleep(seconds)
        return None

    async def _answer(self, live: LiveTurn, began: Began, journal: Journal) -> None:
        """Ends with the turn settled in the store, or raises: cancelled resumably, or the store failed."""
        try:
            await self._answer_or_fail(live, began, journal)
        except asyncio.CancelledError:
            if live.reason not in _ENDING:
                raise
            live.calm()
            if journal.end is not None:
                return
            if live.was_stopped_by(StopReason.USER):
                await self._cancel(journal)
            else:
                await self._fail(journal, self._too_late())

    async def _answer_or_fail(self, live: LiveTurn, began: Began, journal: Journal) -> None:
        try:
            if live.was_stopped_by(StopReason.USER):
                await self._cancel(journal)
            else:
                await self._with_agent(live, began, journal)
        except StaleFence:
            raise
        except TalariaError as error:
            await self._fail(journal, error)
        except Exception:
            _log.exception("turn %s failed", live.turn.id)
            await self._fail(journal, INTERNAL)

    async def _with_agent(self, live: LiveTurn, began: Began, journal: Journal) -> None:
        if began.crashes >= MAX_ATTEMPTS or began.attempts > _MOST_ATTEMPTS:
            raise Poisoned(
                f"This message was tried {MAX_ATTEMPTS} times, the gateway went down each time, and it is "
                "not tried again.",
                "Send it in another form.",
            )
        parts, session = self._parts, began.session
        pinned, revision = await self._pin(live.turn, began, journal)
        if session.ephemeral:
            await self._converse(live, await parts.builder.build(session.id, pinned.id), journal)
            return
        wanted = Wanted(session.id, session.chat_key, pinned.id, revision)
        async with parts.pool.lease(wanted) as agent:
            if began.entry is not None:
                agent.absorb((began.entry,))
            await self._converse(live, agent, journal)

    async def _cancel(self, journal: Journal) -> None:
        await journal.close(TurnEnd(TurnState.CANCELLED, usage=journal.usage), CANCELLED_BY_USER)

    async def _fail(self, journal: Journal, error: TalariaError) -> None:
        _log.info("turn %s failed: %s", journal.turn_id, error)
        if journal.end is None:
            await journal.close(failure(error, journal.usage), _FAILED_NOTE)

    def _too_late(self) -> LimitReached:
        return LimitReached(
            f"The turn was stopped because it took longer than {self._parts.turn_seconds:g} seconds.",
            "Send a message to let it go on, or raise `agent.turn_timeout`.",
        )

    async def _recall(self, live: LiveTurn, began: Began, journal: Journal) -> None:
        """A restart brought this turn back: take up its steps, and who had joined it."""
        store, turn = self._parts.store, live.turn
        record = await store.turn_record(turn.id)
        for steer in live.steers:
            if (joined := await store.turn_record(steer.turn.id)) is not None:
                steer.turn = joined.turn
        entries = await self._parts.store.log(began.session.id, 0)
        if record is not None:
            own = (entry for entry in entries if entry.turn_id == turn.id)
            journal.recall(own, record.steps, record.spent)

    # -- the agent ------------------------------------------------------------------------------------------

    async def _converse(self, live: LiveTurn, agent: WarmAgent, journal: Journal) -> None:
        journal.attach(agent)
        loop = self._loop(live, agent, journal)
        try:
            live.answer = await loop.run()
        except asyncio.CancelledError:
            if live.reason not in _ENDING or journal.end is not None:
                raise
            live.calm()
            await loop.interrupt(None if live.was_stopped_by(StopReason.USER) else self._too_late())
        finally:
            journal.attach(None)

    async def _pin(self, turn: Turn, began: Began, journal: Journal) -> tuple[PinnedSpec, Revision]:
        """The session's spec and the revision its agent must be at; writes a new spec when one is due."""
        parts, session = self._parts, began.session
        wish, only = turn.inbound.model, None
        if session.spec_id is not None:
            pinned = await parts.builder.pinned(session.spec_id)
            spec = pinned.spec
            # A provider that is spoken to in another way by now needs other bytes than the stored ones.
            is_spoken = spec.api == parts.models.wire(spec.provider).name
            if session.ephemeral or (is_spoken and (wish is None or not parts.specs.differs(pinned, wish))):
                return pinned, began.before
            wish, only = wish or f"{spec.provider}/{spec.model}", spec.tools
        pinned = parts.specs.resolve(wish, only)
        return pinned, await journal.commit((SpecSet(pinned.id),), specs=(pinned,))

    def _loop(self, live: LiveTurn, agent: WarmAgent, journal: Journal) -> Loop:
        parts, options = self._parts, live.options
        is_stateless = not agent.pinned.spec.prompt
        context = TurnContext(
            turn_id=live.turn.id,
            emit=live.emit,
            max_steps=parts.max_steps,
            tools=parts.bind_tools(live.turn, agent, live.emit),
            metrics=parts.metrics,
            budget=parts.budgets.of(live.turn),
            reasoning=options.reasoning if is_stateless else self._reasoning(agent),
            max_output=options.max_output,
            sampling=options.sampling,
            steering=None if is_stateless else LiveSteering(live, parts),
        )
        return Loop(Caller(agent, journal, context, parts.routes), journal, context)

    def _reasoning(self, agent: WarmAgent) -> str | None:
        """The session's own wish, else the configured one."""
        effort = agent.reasoning or self._parts.reasoning
        return None if effort == "none" else effort


def _has_joined(steer: LiveTurn, journal: Journal) -> bool:
    return steer.turn.id in journal.taken or steer.turn.state is not TurnState.ACCEPTED
