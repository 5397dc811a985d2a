"""Turns that are commands: run the command, and settle its turn."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from talaria.access.approvals import Decider, QuestionClosed
from talaria.agent.journal import Journal
from talaria.cluster.leases import LeaseKeeper
from talaria.commands.command import Command, CommandCall, CommandResult, parse_command
from talaria.core.backoff import Backoff
from talaria.core.errors import LeaseHeld, NotFound, TalariaError
from talaria.core.ids import SessionId
from talaria.core.ledger import Begin, Page, TurnEnd, ended_turn
from talaria.core.messages import Image
from talaria.core.questions import QuestionKind, chosen
from talaria.core.shells import ProcessState
from talaria.core.turns import Turn, TurnState
from talaria.models.wire import part_text
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.questions import MAX_ANSWER, Decisions
from talaria.turns.slash import SlashCommands

_log = logging.getLogger("talaria.turns")
ANSWER = "answer"  # the command of a message that answers a question; nobody types it
INTERNAL = TalariaError(
    "Something went wrong inside the gateway.", "The log has the details; please report it."
)


class CommandRunner(msgspec.Struct, eq=False):
    """Answers commands. A command that appends entries takes the session's lease to do so."""

    _store: Store
    _keeper: LeaseKeeper
    _agents: Agents
    _live: LiveTurns
    _slash: SlashCommands
    _decisions: Decisions
    _end_session: Callable[[SessionId], Awaitable[object]]

    async def run(self, live: LiveTurn) -> None:
        """Answer the command and settle its turn. Raises store errors if the end cannot be written."""
        turn = live.turn
        result, end = await self._answer(turn)
        if ended := await self._end_sessions(turn, result.ends):
            told = "Its background process was" if ended == 1 else f"Its {ended} background processes were"
            end = msgspec.structs.replace(end, reply=f"{end.reply} {told} ended.")
        self._live.settle(live, await self._settle(turn, result, end))

    async def _end_sessions(self, turn: Turn, session_ids: Sequence[SessionId]) -> int:
        """End sessions of the turn's chat. Return how many background processes that ended."""
        ended = 0
        for session_id in session_ids:
            try:
                with self._agents.workspace(session_id, turn.chat_key) as workspace:
                    processes = await workspace.processes.list()
                    await self._end_session(session_id)
                ended += sum(process.state is ProcessState.RUNNING for process in processes)
            except (LeaseHeld, NotFound) as error:
                _log.info("session %s goes on after /new: %s", session_id, error)
        return ended

    async def _answer(self, turn: Turn) -> tuple[CommandResult, TurnEnd]:
        """Carry out the command. A failure is the end of the turn, and nothing is committed with it."""
        try:
            result = await self._carry_out(turn)
        except TalariaError as error:
            return CommandResult(""), TurnEnd.failed(error)
        except Exception:
            _log.exception("the command of turn %s failed", turn.id)
            return CommandResult(""), TurnEnd.failed(INTERNAL)
        end = TurnEnd(TurnState.DONE, reply=result.reply, buttons=result.buttons, files=result.files)
        return result, end

    async def _carry_out(self, turn: Turn) -> CommandResult:
        if turn.command == ANSWER and parse_command(turn.inbound.text) is None:
            return CommandResult(await self._pass_on(turn))
        command = parse_command(turn.inbound.text, with_digits=True) or Command(turn.command)
        extra = self._agents.commands.find(command.name)
        if extra is None or extra.run is None:
            return await self._slash.run(command, turn)
        sender = turn.inbound.sender
        call = CommandCall(command.name, command.args, turn.id, turn.session_id, turn.chat_key, sender)
        return CommandResult(self._agents.secrets(await extra.run(call)))

    async def _pass_on(self, turn: Turn) -> str:
        """Pass a message on as the answer to the chat's oldest open question of its sender. The answer's own
        turn has nothing to say where the reply to the question follows in the same chat."""
        page = await self._decisions.listing(Page(), turn.chat_key)
        for item in page.items:
            is_theirs = item.turn.inbound.sender.id == turn.inbound.sender.id
            is_here = item.turn.chat_key == turn.chat_key
            if item.question.kind is QuestionKind.ANSWER and is_here and is_theirs:
                said = (part for part in turn.inbound.parts if not isinstance(part, Image))
                text = "\n".join(map(part_text, said))[:MAX_ANSWER]
                if turn.inbound.address is not None:  # a chat platform, which lists the choices with numbers
                    text = chosen(text, item.question.choices)
                await self._decisions.decide_as(Decider.of(turn), item.question.id, text)
                return "" if turn.inbound.address is not None else f"Passed on to {item.turn.id}."
        raise QuestionClosed("Nothing waits for this answer any more.", "Send it again as a message.")

    async def _settle(self, turn: Turn, result: CommandResult, end: TurnEnd) -> Turn:
        clock, keeper = self._agents.clock, self._keeper
        if not result.entries and not turn.attempts:
            return await self._store.settle(turn.id, end)
        order = Begin(turn.id, keeper.owner, keeper.lease_seconds)
        for pause in Backoff(0.1, keeper.lease_seconds / 3).pauses():
            await keeper.wait_until_in()
            try:
                began = await self._store.begin(order)
                break
            except LeaseHeld:
                await clock.sleep(pause)
        journal = Journal(self._store, began.session.id, turn.id, began.fence)
        await journal.commit(result.entries, end=end, specs=result.specs)
        return ended_turn(turn, end, journal.ended_at)
