"""Turns that are commands: gather what a command may know, run it, and settle its turn."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from talaria.access.approvals import QuestionClosed
from talaria.access.people import is_group
from talaria.agent.journal import Journal
from talaria.cluster.leases import LeaseKeeper
from talaria.commands.command_types import Command, CommandCall, CommandContext, CommandResult, SpecChange
from talaria.commands.file_changes import NO_COPIES, describe_diff, describe_undo
from talaria.commands.slash import SLASH_COMMANDS, canonical, parse_command, run_command
from talaria.commands.trusting import CLEARED, NO_FOLDERS, ONLY_OPERATORS, describe_taint
from talaria.commands.window_use import WindowUse
from talaria.commands.workspace_status import WorkspaceStatus
from talaria.core.background import ProcessState
from talaria.core.backoff import Backoff
from talaria.core.entries import Exchange, ReasoningSet, SpecSet, exchanges
from talaria.core.errors import LeaseHeld, NoModel, NotFound, TalariaError, ToolError
from talaria.core.ids import QuestionId, SessionId, asking_chat, jobs_within
from talaria.core.ledger import AskedQuestion, Begin, Page, TurnEnd, ended_turn
from talaria.core.memory import EditOrigin, MemoryEdit, PageContent
from talaria.core.messages import Image
from talaria.core.problems import Action, Do
from talaria.core.questions import APPROVE, DENY, QuestionKind
from talaria.core.sessions import Session
from talaria.core.specs import AgentSpec, PinnedSpec
from talaria.core.turns import Turn, TurnState
from talaria.models.known import NOTHING_KNOWN
from talaria.models.wire import part_text
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.decisions import MAX_ANSWER, Decisions, decider_of
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.settings import TurnSettings
from talaria.turns.states import LiveState

_log = logging.getLogger("talaria.turns")
_NUMBER_DIGITS = 10
_RECENT = 50  # turns among which `/why` and `/approve` look for messages
ANSWER = "answer"  # the command of a message that answers a question; nobody types it
INTERNAL = TalariaError(
    "Something went wrong inside the gateway.", "The log has the details; please report it."
)


class CommandRunner:
    """Answers commands. A command that appends entries takes the session's lease to do so."""

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
    ) -> None:
        self._end_session = end_session
        self._store = store
        self._keeper = keeper
        self._agents = agents
        self._live = live
        self._settings = settings
        self._decisions = decisions

    async def run(self, live: LiveTurn) -> None:
        """Answer the command and settle its turn. Raises store errors if the end cannot be written."""
        turn = live.turn
        outcome, end, specs = await self._outcome(turn)
        running = self._live.running_in(turn.chat_key) if outcome.stop else None
        # A `/stop` that is carried out again after a crash must not hit a message that came after it.
        if running is not None and running.turn.accepted_at <= turn.accepted_at:
            running.stop()
        if ended := await self._end_sessions(turn, outcome.ends):
            told = "Its background process was" if ended == 1 else f"Its {ended} background processes were"
            end = msgspec.structs.replace(end, reply=f"{end.reply} {told} ended.")
        self._live.settle(live, await self._settle(turn, outcome, end, specs))

    async def _end_sessions(self, turn: Turn, session_ids: Sequence[SessionId]) -> int:
        """End sessions of the turn's chat. Return how many background processes that ended."""
        ended = 0
        for session_id in session_ids:
            workspace = self._agents.builder.workspaces.open(session_id, turn.chat_key)
            try:
                processes = await workspace.processes.list()
                await self._end_session(session_id)
                ended += sum(process.state is ProcessState.RUNNING for process in processes)
            except (LeaseHeld, NotFound) as error:
                _log.info("session %s goes on after /new: %s", session_id, error)
            finally:
                self._agents.pool.give_back(workspace)
        return ended

    async def _outcome(self, turn: Turn) -> tuple[CommandResult, TurnEnd, tuple[PinnedSpec, ...]]:
        command = parse_command(turn.inbound.text, with_digits=True) or Command(turn.command)
        specs: tuple[PinnedSpec, ...] = ()
        try:
            if turn.command == ANSWER and parse_command(turn.inbound.text) is None:
                reply = await self._answer(turn)
                return CommandResult(reply), TurnEnd(TurnState.DONE, reply=reply), ()
            if (extra := self._agents.commands.find(command.name)) is not None and extra.run is not None:
                return await self._run_extra(turn, command, extra.run)
            view = await self._view(turn)
            outcome = run_command(command, view)
            if outcome.spec_change is not None:
                outcome, specs = self._respec(view, outcome.spec_change)
            elif outcome.undo_files or outcome.diff is not None:
                outcome = await self._file_changes(turn, outcome)
            if outcome.jobs is not None:
                outcome = await self._jobs(turn, outcome.jobs)
            if outcome.trust is not None:
                outcome = CommandResult(await self._trust(turn, outcome.trust))
            if outcome.edit_memory is not None:
                outcome = await self._edit_memory(turn, outcome.edit_memory)
            if (wish := outcome.decide) is not None:
                decider = decider_of(turn)
                await self._decisions.decide_as(decider, wish.question_id, wish.text, wish.span)
        except TalariaError as error:
            return CommandResult(""), TurnEnd.failed(error), ()
        except Exception:
            _log.exception("the command of turn %s failed", turn.id)
            return CommandResult(""), TurnEnd.failed(INTERNAL), ()
        return outcome, TurnEnd(TurnState.DONE, reply=outcome.reply, buttons=outcome.buttons), specs

    async def _run_extra(
        self, turn: Turn, command: Command, run: Callable[[CommandCall], Awaitable[str]]
    ) -> tuple[CommandResult, TurnEnd, tuple[PinnedSpec, ...]]:
        """Answer a command that is not built in. Raises what it raises."""
        sender = turn.inbound.sender
        call = CommandCall(command.name, command.args, turn.id, turn.session_id, turn.chat_key, sender)
        reply = self._agents.secrets(await run(call))
        return CommandResult(reply), TurnEnd(TurnState.DONE, reply=reply), ()

    async def _answer(self, turn: Turn) -> str:
        """Pass a message on as the answer to the chat's oldest open question of its sender. The answer's own
        turn has nothing to say where the reply to the question follows in the same chat."""
        page = await self._decisions.listing(Page(), turn.chat_key)
        for item in page.items:
            is_theirs = item.turn.inbound.sender.id == turn.inbound.sender.id
            is_here = item.turn.chat_key == turn.chat_key
            if item.question.kind is QuestionKind.ANSWER and is_here and is_theirs:
                said = (part for part in turn.inbound.parts if not isinstance(part, Image))
                text = "\n".join(map(part_text, said))[:MAX_ANSWER]
                await self._decisions.decide_as(decider_of(turn), item.question.id, text)
                return "" if turn.inbound.address is not None else f"Passed on to {item.turn.id}."
        raise QuestionClosed("Nothing waits for this answer any more.", "Send it again as a message.")

    def _respec(self, view: CommandContext, wish: SpecChange) -> tuple[CommandResult, tuple[PinnedSpec, ...]]:
        """Pin the session to the wished model, or to its own model under the current configuration."""
        model = wish.model or (view.model if view.session.spec_id else None)
        pinned = self._agents.specs.resolve(view.session.chat_key, model, wish.tools)
        name = f"{pinned.spec.provider}/{pinned.spec.model}"
        if pinned.id == view.session.spec_id:
            return CommandResult(f"Nothing has changed: this session uses {name}."), ()
        reply = f"From the next message on this session uses {name} with {_describe_tools(pinned.spec)}."
        return CommandResult(reply, (SpecSet(pinned.id),)), (pinned,)

    async def _file_changes(self, turn: Turn, outcome: CommandResult) -> CommandResult:
        """Put files back, or look at what the last turn did to them, and complete the reply.

        Files are put back before the undo is committed: after a kill the same command runs again.
        """
        checkpoints = self._agents.tool_runner.checkpoints
        if checkpoints is None:
            return msgspec.structs.replace(outcome, reply=f"{outcome.reply} {NO_COPIES}".strip())
        workspace = self._agents.builder.workspaces.open(turn.session_id, turn.chat_key)
        try:
            if outcome.diff is None:
                report = await checkpoints.undo(workspace, outcome.undo_files)
                reply = f"{outcome.reply} {describe_undo(report)}"
            else:
                diff = describe_diff(await checkpoints.last_diff(workspace), outcome.diff)
                reply = self._agents.secrets(diff)  # it has lines of files
        except OSError as error:
            raise TalariaError(
                f"The copies of files cannot be used: {error}.", "The log has more."
            ) from error
        finally:
            self._agents.pool.give_back(workspace)
        return msgspec.structs.replace(outcome, reply=reply)

    async def _edit_memory(self, turn: Turn, edit: MemoryEdit) -> CommandResult:
        """Edit the memory of the turn's chat. A command that runs again after a kill edits it once."""
        memories = self._agents.memories
        if memories is None or memories.provider is None:
            return CommandResult("")
        origin = EditOrigin(turn.id, turn.session_id, self._agents.clock.now())
        try:
            return CommandResult(await memories.provider.edit(memories.place(turn.chat_key), edit, origin))
        except ToolError as error:
            return CommandResult(error.info().sentence())

    async def _trust(self, turn: Turn, args: str) -> str:
        """Show whether the folders of the chat are tainted, or clear them."""
        trust, key = self._agents.folder_trust, turn.chat_key
        if trust is None:
            return NO_FOLDERS
        taint = await trust.find(key)
        if taint is None or args != "clear":
            return describe_taint(taint, self._settings.stamp)
        if (is_group(key) or trust.is_shared(key)) and not turn.inbound.sender.is_operator:
            return ONLY_OPERATORS
        await trust.clear(key)
        return CLEARED

    async def _jobs(self, turn: Turn, args: str) -> CommandResult:
        from talaria.turns.job_commands import JobCommands  # noqa: PLC0415 - with the first `/jobs`

        if (desk := self._agents.job_desk) is None:
            return CommandResult("There are no jobs here.")
        return await JobCommands(desk(), self._store).answer(turn, args)

    async def _memory(self, turn: Turn) -> tuple[PageContent, ...] | None:
        memories = self._agents.memories
        if canonical(turn.command) != "memory" or memories is None or memories.provider is None:
            return None
        return await memories.provider.pages(memories.place(turn.chat_key))

    async def _settle(
        self, turn: Turn, outcome: CommandResult, end: TurnEnd, specs: tuple[PinnedSpec, ...]
    ) -> Turn:
        clock, keeper = self._agents.clock, self._keeper
        if not outcome.entries and not turn.attempts:
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
        await journal.commit(outcome.entries, end=end, specs=specs)
        return ended_turn(turn, end, journal.ended_at)

    async def _view(self, turn: Turn) -> CommandContext:
        agents, specs = self._agents, self._agents.specs
        summary = await self._store.summary(turn.session_id)
        if summary is None:
            action = Action(Do.NEW_SESSION, "Start a new one")
            raise NotFound(f"The session {turn.session_id} is gone.", f"{action}.", action=action)
        model, tools, searched = "no model yet", specs.tools.names, frozenset[str]()
        if summary.current.spec_id is not None:
            spec = (await agents.builder.pinned(summary.current.spec_id)).spec
            model, tools = f"{spec.provider}/{spec.model}", spec.usable_tools
            searched = frozenset(name for name, _ in spec.searched)
        else:
            try:
                spec = specs.resolve(turn.chat_key).spec
                model = f"{spec.provider}/{spec.model}"
            except NoModel as error:
                model = f"no model ({error.user_text})"
        running = self._live.running_in(turn.chat_key)
        seen, reasoning = await self._read_log(turn)
        questions = await self._questions(turn)
        known = specs.abilities(*model.split("/", 1)) if "/" in model else NOTHING_KNOWN
        return CommandContext(
            summary=summary,
            sender=turn.inbound.sender,
            agent=self._settings.agent_name,
            model=model,
            tools=tools,
            running=running.turn.id if running else None,
            waiting=self._live.waiting_in(turn.chat_key),
            warm=agents.pool.describe(turn.session_id),
            models=tuple(specs.names()),
            listed=tuple(specs.listed()) if canonical(turn.command) == "model" else (),
            abilities=known.describe(),
            all_tools=specs.tools.names,
            origin=specs.tools.origin,
            searched=searched,
            changed=self._changed(turn),
            takes_tools=known.tools is not False,
            exchanges=seen,
            reasoning=reasoning,
            recent=await self._recent(turn),
            workspace=await self._workspace(turn),
            is_parked=running is not None and running.state is LiveState.PARKED,
            questions=questions,
            is_ambiguous=await self._is_ambiguous(turn, questions),
            memory=await self._memory(turn),
            window=await self._window(turn, summary.current),
            account=await agents.budgets.account(turn, model) if canonical(turn.command) == "usage" else None,
            extra=tuple(agents.commands),
        )

    def _changed(self, turn: Turn) -> tuple[tuple[str, int], ...]:
        if canonical(turn.command) != "tools":
            return ()
        found = self._agents.tool_runner.servers()
        return tuple((name, len(each.proposed)) for name, each in sorted(found.items()) if each.proposed)

    async def _questions(self, turn: Turn) -> tuple[AskedQuestion, ...]:
        """Return the open questions of the chat and of the jobs that it asked for. An operator's command may
        name one of another chat."""
        command = parse_command(turn.inbound.text)
        spec = SLASH_COMMANDS.get(canonical(turn.command))
        if spec is None or not spec.reads_questions:
            return ()
        page = await self._decisions.listing(Page(), turn.chat_key)
        items = [item for item in page.items if item.turn.chat_key == turn.chat_key]
        of_jobs = await self._decisions.listing(Page(), jobs_within(self._settings.agent_name))
        items += [item for item in of_jobs.items if asking_chat(item.turn.chat_key) == turn.chat_key]
        known = {item.question.id for item in items}
        for word in command.args.split()[:2] if command and turn.inbound.sender.is_operator else ():
            found = await self._store.find_question(QuestionId(word)) if word not in known else None
            if found is not None and found.question.is_open(self._agents.clock.now()):
                items.append(found)
        return tuple(items)

    async def _is_ambiguous(self, turn: Turn, questions: tuple[AskedQuestion, ...]) -> bool:
        """Return whether the sender may have read another approval request than the one that is open now: one
        that was open when the sender last wrote, or later, and that somebody else decided or nobody did. A
        request that is newer than the command was not read either."""
        if canonical(turn.command) not in (APPROVE, DENY):
            return False
        if any(item.question.asked_at > turn.accepted_at for item in questions):
            return True
        recent = await self._store.recent_of_session(turn.session_id, _RECENT)
        sender = turn.inbound.sender.id
        earlier = [each for each in recent if each.id != turn.id and each.inbound.sender.id == sender]
        since = max((each.accepted_at for each in earlier), default=0.0)
        closed = [*await self._store.closed_questions(since, turn.chat_key)]
        closed += await self._store.closed_questions(since, jobs_within(self._settings.agent_name))
        return any(
            item.question.kind is not QuestionKind.ANSWER
            and turn.chat_key in (item.turn.chat_key, asking_chat(item.turn.chat_key))
            and (item.question.decision is None or item.question.decision.by != sender)
            for item in closed
        )

    async def _workspace(self, turn: Turn) -> WorkspaceStatus | None:
        if canonical(turn.command) != "status":
            return None
        workspace = self._agents.builder.workspaces.open(turn.session_id, turn.chat_key)
        try:
            state, processes = await workspace.shell.state(), await workspace.processes.list()
            cwd, sandbox = state.cwd or str(workspace.folder), workspace.shell.confinement
            return WorkspaceStatus(cwd, tuple(processes), sandbox, self._agents.clock.now())
        finally:
            self._agents.pool.give_back(workspace)

    async def _window(self, turn: Turn, session: Session) -> WindowUse | None:
        if canonical(turn.command) != "context" or session.spec_id is None:
            return None
        agents = self._agents
        return await agents.compaction.use(
            session.id, agents.builder, await agents.builder.pinned(session.spec_id)
        )

    async def _recent(self, turn: Turn) -> tuple[Turn, ...]:
        if canonical(turn.command) != "why":
            return ()
        return tuple(await self._store.recent_of_session(turn.session_id, _RECENT))

    async def _read_log(self, turn: Turn) -> tuple[tuple[Exchange, ...], str]:
        """Return what the model sees and the session's reasoning effort, for commands that read the log."""
        spec = SLASH_COMMANDS.get(canonical(turn.command))
        if spec is None or not spec.reads_log:
            return (), ""
        log = await self._store.shown_log(turn.session_id)
        efforts = [entry.body.effort for entry in log if isinstance(entry.body, ReasoningSet)]
        seen, wanted = exchanges(log), parse_command(turn.inbound.text)
        if len(seen) < _wished_exchanges(wanted) and log and log[0].seq > 1:
            # An undo behind the floor: the summaries of what it takes back do not count any more.
            seen = exchanges(await self._store.log(turn.session_id, 0))
        return tuple(seen), efforts[-1] if efforts else ""


def _describe_tools(spec: AgentSpec) -> str:
    found = f", and {len(spec.searched)} more that it searches for" if spec.searched else ""
    return f"{', '.join(spec.tools) or 'no tools'}{found}"


def _wished_exchanges(command: Command | None) -> int:
    """Return how many exchanges a command is about."""
    number = command.args if command and command.args.isdecimal() else ""
    return int(number) if number and len(number) < _NUMBER_DIGITS else 1
