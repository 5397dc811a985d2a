"""Running command turns: gathers what a command may know, runs it, and settles its turn."""

from __future__ import annotations

import logging
from collections.abc import Callable

from talaria.agent.journal import Journal
from talaria.commands.slash import (
    SLASH_COMMANDS,
    Command,
    CommandContext,
    CommandResult,
    SpecChange,
    canonical,
    parse_command,
    run_command,
)
from talaria.core.entries import Exchange, ReasoningSet, SpecSet, exchanges
from talaria.core.errors import LeaseHeld, NoModel, NotFound, TalariaError
from talaria.core.ids import ChatKey
from talaria.core.ledger import Begin, TurnEnd
from talaria.core.specs import PinnedSpec
from talaria.core.turns import Turn, TurnState
from talaria.turns.live import LiveTurn, StopReason
from talaria.turns.parts import Parts
from talaria.turns.patience import pauses
from talaria.turns.settled import INTERNAL, ended, failure, tell

_log = logging.getLogger("talaria.turns")


class CommandRunner:
    """A command reads, answers and is settled; one that appends takes the session's lease to do so."""

    def __init__(self, parts: Parts, waiting: Callable[[ChatKey], int]) -> None:
        self._parts = parts
        self._waiting = waiting

    async def run(self, live: LiveTurn) -> None:
        """Raises store errors when the end cannot be written; the turn is unsettled then."""
        parts, turn = self._parts, live.turn
        specs: tuple[PinnedSpec, ...] = ()
        if live.was_stopped_by(StopReason.USER):
            outcome, end = CommandResult(""), TurnEnd(TurnState.CANCELLED)
        else:
            outcome, end, specs = await self._outcome(turn)
        if outcome.stop and (running := parts.live.running_in(turn.chat_key)) is not None:
            running.stop(StopReason.USER)
        tell(live, await self._settle(turn, outcome, end, specs), parts.metrics, parts.clock)

    async def _outcome(self, turn: Turn) -> tuple[CommandResult, TurnEnd, tuple[PinnedSpec, ...]]:
        command = parse_command(turn.inbound.text) or Command(turn.command)
        specs: tuple[PinnedSpec, ...] = ()
        try:
            view = await self._view(turn)
            outcome = run_command(command, view)
            if outcome.spec_change is not None:
                outcome, specs = self._respec(view, outcome.spec_change)
        except TalariaError as error:
            return CommandResult(""), failure(error), ()
        except Exception:
            _log.exception("the command of turn %s failed", turn.id)
            return CommandResult(""), failure(INTERNAL), ()
        return outcome, TurnEnd(TurnState.DONE, reply=outcome.reply, buttons=outcome.buttons), specs

    def _respec(self, view: CommandContext, wish: SpecChange) -> tuple[CommandResult, tuple[PinnedSpec, ...]]:
        """Pin the session to what is wished, and else to its own model under the configuration of now."""
        model = wish.model or (view.model if view.session.spec_id else None)
        pinned = self._parts.specs.resolve(model, wish.tools)
        name = f"{pinned.spec.provider}/{pinned.spec.model}"
        if pinned.id == view.session.spec_id:
            return CommandResult(f"Nothing has changed: this session uses {name}."), ()
        tools = ", ".join(pinned.spec.tools) or "no tools"
        reply = f"From the next message on this session uses {name} with {tools}."
        return CommandResult(reply, (SpecSet(pinned.id),)), (pinned,)

    async def _settle(
        self, turn: Turn, outcome: CommandResult, end: TurnEnd, specs: tuple[PinnedSpec, ...]
    ) -> Turn:
        parts = self._parts
        if not outcome.entries and not turn.attempts:
            return await parts.store.settle(turn.id, end)
        order = Begin(turn.id, parts.keeper.owner, parts.keeper.lease_seconds)
        for seconds in pauses(parts.keeper.lease_seconds / 3):
            try:
                began = await parts.store.begin(order)
                break
            except LeaseHeld:
                await parts.clock.sleep(seconds)
        journal = Journal(parts.store, began.session.id, turn.id, began.fence)
        await journal.commit(outcome.entries, end=end, specs=specs)
        return ended(turn, end, parts.clock.now())

    async def _view(self, turn: Turn) -> CommandContext:
        parts = self._parts
        summary = await parts.store.summary(turn.session_id)
        if summary is None:
            raise NotFound(f"The session {turn.session_id} is gone.", "Start a new one with /new.")
        model, tools = "no model yet", parts.specs.tool_names
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
        seen, reasoning = await self._read_log(turn)
        return CommandContext(
            summary=summary,
            sender=turn.inbound.sender,
            agent=parts.agent_name,
            model=model,
            tools=tools,
            running=running.turn.id if running else None,
            waiting=self._waiting(turn.chat_key),
            warm=parts.pool.describe(turn.session_id),
            models=tuple(parts.specs.names()),
            listed=tuple(parts.specs.listed()) if canonical(turn.command) == "model" else (),
            abilities=parts.specs.abilities(*model.split("/", 1)).describe() if "/" in model else "",
            all_tools=parts.specs.tool_names,
            exchanges=seen,
            reasoning=reasoning,
            account=await parts.budgets.account(turn) if canonical(turn.command) == "usage" else None,
        )

    async def _read_log(self, turn: Turn) -> tuple[tuple[Exchange, ...], str]:
        """What the model sees and how much it shall think, for commands that want to know."""
        spec = SLASH_COMMANDS.get(canonical(turn.command))
        if spec is None or not spec.reads_log:
            return (), ""
        log = await self._parts.store.log(turn.session_id, 0)
        efforts = [entry.body.effort for entry in log if isinstance(entry.body, ReasoningSet)]
        return tuple(exchanges(log)), efforts[-1] if efforts else ""
