"""Running command turns: gathers what a command may know, runs it, and settles its turn."""

from __future__ import annotations

from collections.abc import Callable

from talaria.agent.journal import Journal
from talaria.commands.parse import Command, parse_command
from talaria.commands.table import CommandView, Outcome, run_command
from talaria.core.errors import LeaseHeld, NoModel, NotFound, StoreError, TalariaError
from talaria.core.ids import ChatKey
from talaria.core.ledger import Begin, TurnEnd
from talaria.core.turns import Turn, TurnState
from talaria.turns.live import LiveTurn, StopReason
from talaria.turns.parts import Parts
from talaria.turns.settled import ended, tell


class CommandRunner:
    """A command reads, answers and is settled; one that appends takes the session's lease to do so."""

    def __init__(self, parts: Parts, waiting: Callable[[ChatKey], int]) -> None:
        self._parts = parts
        self._waiting = waiting

    async def run(self, live: LiveTurn) -> None:
        """Raises store errors; the turn is unsettled then."""
        parts, turn = self._parts, live.turn
        if live.was_stopped_by(StopReason.USER):
            outcome, end = Outcome(""), TurnEnd(TurnState.CANCELLED)
        else:
            outcome, end = await self._outcome(turn)
        if outcome.stop and (running := parts.live.running_in(turn.chat_key)) is not None:
            running.stop(StopReason.USER)
        tell(live, await self._settle(turn, outcome, end), parts.metrics, parts.clock)

    async def _outcome(self, turn: Turn) -> tuple[Outcome, TurnEnd]:
        command = parse_command(turn.inbound.text) or Command(turn.command)
        try:
            outcome = run_command(command, await self._view(turn))
        except StoreError:
            raise
        except TalariaError as error:
            info = error.info()
            return Outcome(""), TurnEnd(TurnState.FAILED, reply=info.sentence(), error=info)
        return outcome, TurnEnd(TurnState.DONE, reply=outcome.reply)

    async def _settle(self, turn: Turn, outcome: Outcome, end: TurnEnd) -> Turn:
        parts = self._parts
        if not outcome.entries and not turn.attempts:
            return await parts.store.settle(turn.id, end)
        while True:
            try:
                began = await parts.store.begin(
                    Begin(turn.id, parts.keeper.owner, parts.keeper.lease_seconds)
                )
                break
            except LeaseHeld:
                await parts.clock.sleep(parts.keeper.lease_seconds / 3)
        journal = Journal(parts.store, began.session.id, turn.id, began.fence)
        await journal.commit(outcome.entries, end=end)
        return ended(turn, end, parts.clock.now())

    async def _view(self, turn: Turn) -> CommandView:
        parts = self._parts
        summary = await parts.store.summary(turn.session_id)
        if summary is None:
            raise NotFound(f"The session {turn.session_id} is gone.", "Start a new one with /new.")
        model, tools = "no model yet", parts.tool_names
        if summary.current.spec_id is not None:
            spec = (await parts.builder.pinned(summary.current.spec_id)).spec
            model, tools = f"{spec.provider}/{spec.model}", spec.tools
        else:
            try:
                spec = parts.specs.resolve().spec
                model = f"{spec.provider}/{spec.model}"
            except NoModel as error:
                model = f"no model ({error.user_text})"
        running = parts.live.running_in(turn.chat_key)
        return CommandView(
            summary=summary,
            sender=turn.inbound.sender,
            agent=parts.agent_name,
            model=model,
            tools=tools,
            running=running.turn.id if running else None,
            waiting=self._waiting(turn.chat_key),
            warm=parts.pool.describe(turn.session_id),
        )
