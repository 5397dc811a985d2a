"""Running one turn: store lease, pool lease, agent loop, and the one commit that settles it.

The order of acquisition is always lane → store lease (fence) → pool lease → endpoint permit. `Runner.run` is
the boundary where every exception becomes an outcome.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from talaria.agent.journal import Journal
from talaria.agent.loop import CANCELLED_BY_USER, Loop, TurnContext
from talaria.agent.warm import WarmAgent
from talaria.commands.table import asks_model
from talaria.core.entries import Exchange, Hidden, Revision, SpecSet, exchanges
from talaria.core.errors import LeaseHeld, Poisoned, StaleFence, StoreError, TalariaError
from talaria.core.ledger import Began, Begin, TurnEnd
from talaria.core.specs import PinnedSpec
from talaria.core.turns import Turn, TurnState
from talaria.observe.context import log_turn
from talaria.pool.pool import Wanted
from talaria.turns.commanding import CommandRunner
from talaria.turns.live import HeadStart, LiveTurn, StopReason
from talaria.turns.parts import Parts
from talaria.turns.settled import ended, tell

_log = logging.getLogger("talaria.turns")
MAX_ATTEMPTS = 3
_FAILED_NOTE = "The turn failed before this call ended."


class Runner:
    """Runs turns. Whatever happens, a turn ends in exactly one outcome or stays resumable."""

    def __init__(self, parts: Parts, commands: CommandRunner) -> None:
        self._parts = parts
        self._commands = commands

    async def run(self, live: LiveTurn) -> None:
        """Never raises but for the cancellation of a shutdown, after which the turn is resumable."""
        live.has_begun = True
        log_turn(live.turn.id, live.turn.session_id)
        try:
            again = await self._again(live.turn)
            if live.turn.command and again is None:
                await self._commands.run(live)
            else:
                await self._run(live, again)
        except asyncio.CancelledError:
            if not live.was_stopped_by(StopReason.LOST):
                raise
            live.calm()
            _log.warning("turn %s stopped: its lease was lost", live.turn.id)
        except StaleFence:
            _log.warning("turn %s stopped: another owner has its session", live.turn.id)
        except Exception:
            # The store did not take the turn's end: it stays unsettled and the next start takes it up.
            _log.exception("turn %s was left unsettled", live.turn.id)
        finally:
            live.leave()
            live.abandon()
            self._parts.live.close(live)

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
        live.enter()
        parts.keeper.hold(session_id, fence, asked_at, lambda: live.stop(StopReason.LOST))
        # Dropped before the last commit gives the lease back, or a renewal would find it gone and cry loss.
        journal = Journal(
            parts.store, session_id, live.turn.id, fence, lambda: parts.keeper.drop(session_id, fence)
        )
        try:
            await self._answer(live, began, journal)
        finally:
            parts.keeper.drop(session_id, fence)
            if journal.end is not None:
                tell(live, ended(live.turn, journal.end, parts.clock.now()), parts.metrics, parts.clock)

    async def _begin(self, live: LiveTurn, again: Exchange | None) -> HeadStart | None:
        """Take the session's lease, waiting while another process has it. None: stopped before it began."""
        parts, turn = self._parts, live.turn
        said = turn.inbound.parts if again is None else again.said.parts
        order = Begin(
            turn_id=turn.id,
            owner=parts.keeper.owner,
            lease_seconds=parts.keeper.lease_seconds,
            user=parts.user_message(said, turn.accepted_at),
            hide=None if again is None else Hidden(again.first, again.last),
        )
        while live.reason is None or turn.attempts:
            asked_at = parts.keeper.now()
            try:
                return HeadStart(await parts.store.begin(order), asked_at)
            except LeaseHeld:
                await parts.clock.sleep(parts.keeper.lease_seconds / 3)
        return None

    async def _answer(self, live: LiveTurn, began: Began, journal: Journal) -> None:
        """Ends with the turn settled in the store, or raises: cancelled resumably, or the store failed."""
        parts = self._parts
        try:
            if began.attempts > 1:
                await self._recall(live.turn, began, journal)
            if live.was_stopped_by(StopReason.USER):
                await journal.close(TurnEnd(TurnState.CANCELLED), CANCELLED_BY_USER)
                return
            pinned, revision = await self._pin(live.turn, began, journal)
            session = began.session
            if session.ephemeral:
                await self._converse(live, await parts.builder.build(session.id, pinned.id), journal)
                return
            wanted = Wanted(session.id, session.chat_key, pinned.id, revision)
            async with parts.pool.lease(wanted) as agent:
                if began.entry is not None:
                    agent.absorb((began.entry,))
                await self._converse(live, agent, journal)
        except asyncio.CancelledError:
            if not live.was_stopped_by(StopReason.USER):
                raise
            live.calm()
            if journal.end is None:
                await journal.close(TurnEnd(TurnState.CANCELLED), CANCELLED_BY_USER)
        except StoreError:
            raise
        except TalariaError as error:
            await self._fail(journal, error)
        except Exception:
            _log.exception("turn %s failed", live.turn.id)
            await self._fail(
                journal,
                TalariaError(
                    "Something went wrong inside the gateway.", "The log has the details; please report it."
                ),
            )

    async def _fail(self, journal: Journal, error: TalariaError) -> None:
        info = error.info()
        _log.info("turn %s failed: %s", journal.turn_id, error)
        end = TurnEnd(TurnState.FAILED, reply=info.sentence(), error=info)
        await journal.close(end, _FAILED_NOTE)

    async def _recall(self, turn: Turn, began: Began, journal: Journal) -> None:
        """A restart brought this turn back: take up its steps, or give it up after three crashes."""
        story = await self._parts.store.story(turn.id)
        entries = await self._parts.store.log(began.session.id, 0)
        journal.recall((entry for entry in entries if entry.turn_id == turn.id), story.steps if story else ())
        if began.attempts > MAX_ATTEMPTS:
            raise Poisoned(
                f"This message was tried {MAX_ATTEMPTS} times, and each time the gateway went down.",
                "It will not be tried again. Send it in another form.",
            )

    # -- the agent ------------------------------------------------------------------------------------------

    async def _converse(self, live: LiveTurn, agent: WarmAgent, journal: Journal) -> None:
        journal.attach(agent)
        loop = self._loop(live, agent, journal)
        try:
            live.answer = await loop.run()
        except asyncio.CancelledError:
            if not live.was_stopped_by(StopReason.USER) or journal.end is not None:
                raise
            live.calm()
            await loop.interrupt()

    async def _pin(self, turn: Turn, began: Began, journal: Journal) -> tuple[PinnedSpec, Revision]:
        """The session's spec and the revision its agent must be at; writes a new spec when one is due."""
        parts, session, wish = self._parts, began.session, turn.inbound.model
        if session.spec_id is not None:
            pinned = await parts.builder.pinned(session.spec_id)
            if wish is None or session.ephemeral or not parts.specs.differs(pinned, wish):
                return pinned, began.before
        pinned = parts.specs.resolve(wish)
        return pinned, await journal.commit((SpecSet(pinned.id),), specs=(pinned,))

    def _loop(self, live: LiveTurn, agent: WarmAgent, journal: Journal) -> Loop:
        parts, options = self._parts, live.options
        is_stateless = not agent.pinned.spec.prompt
        context = TurnContext(
            turn_id=live.turn.id,
            emit=live.emit,
            max_steps=parts.max_steps,
            tools=None if is_stateless else parts.bind_tools(live.turn, agent.pinned.spec.tools),
            metrics=parts.metrics,
            reasoning=options.reasoning if is_stateless else self._reasoning(agent),
            max_output=options.max_output,
            sampling=options.sampling,
        )
        return Loop(agent, parts.models.get(agent.pinned.spec.provider), journal, context)

    def _reasoning(self, agent: WarmAgent) -> str | None:
        """The session's own wish, else the configured one."""
        effort = agent.reasoning or self._parts.reasoning
        return None if effort == "none" else effort
