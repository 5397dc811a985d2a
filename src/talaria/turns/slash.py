"""The slash commands: the one table that declares them, and the handlers that carry them out.

A row of the table has the name, the arguments, the help and the handler of a command; `/help`, the lanes, the
channels and the documentation read it. Modules of this package that the lanes and channels need import this
one, so it imports the services of its handlers for their types only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from talaria.access.approvals import Decider
from talaria.access.authorizer import hash_code, new_code, read_code
from talaria.access.people import is_group
from talaria.commands.command import (
    Command,
    CommandResult,
    ExtraCommand,
    decision_buttons,
    list_questions,
    parse_approval,
    parse_command,
    parse_number,
    say_decision,
    waiting_lines,
)
from talaria.commands.replies import (
    NO_COPIES,
    NamedTools,
    WorkspaceStatus,
    describe_diff,
    describe_session,
    describe_taint,
    describe_turn,
    describe_undo,
    describe_usage,
    describe_window,
    describe_workspace,
    earlier_sessions,
    list_models,
    list_sessions,
    show_memory,
)
from talaria.core.access import CreateLinkCode, PairingLimits, RedeemLinkCode
from talaria.core.delivery import Button
from talaria.core.entries import Exchange, Hidden, ReasoningSet, SpecSet, TitleSet, exchanges
from talaria.core.errors import NoModel, NotFound, TalariaError, ToolError
from talaria.core.ids import SessionId, asking_chat, channel_of
from talaria.core.ledger import ChatSummary
from talaria.core.memory import (
    AddFact,
    EditOrigin,
    ForgetFact,
    MemoryEdit,
    MemoryPage,
    ReplaceFact,
    WritePage,
)
from talaria.core.problems import Action, Do
from talaria.core.program import spoken_afar
from talaria.core.questions import APPROVE, DENY, QuestionKind, Span
from talaria.core.sessions import Session
from talaria.core.text import clean_line, cut, nearest
from talaria.core.turns import Turn
from talaria.turns.states import LiveState
from talaria.workspace.folder import Folder
from talaria.workspace.uploads import keep_content

if TYPE_CHECKING:
    from talaria.models.known import Abilities
    from talaria.store.store import Store
    from talaria.turns.agents import Agents
    from talaria.turns.delegates import Delegates
    from talaria.turns.joined_identities import JoinedIdentities
    from talaria.turns.live import LiveTurns
    from talaria.turns.questions import Decisions
    from talaria.turns.settings import TurnSettings
    from talaria.workspace.workspaces import ChatWorkspace

COMPACT = "compact"
_TITLE_LIMIT = 120
_QUOTE_LIMIT = 80
_LONGEST_PLACE = 16  # characters of `@ENTRY`
_RECENT = 50  # turns among which `/why` looks for messages
_SHOWN = 5  # messages that `/why` shows
LINK_SECONDS = 600.0
_EFFORTS = ("none", "low", "medium", "high")


class _Model(msgspec.Struct, frozen=True):
    """The model of a session, or the reason why there is none, what is known of it, and its tools."""

    name: str
    tools: NamedTools
    abilities: Abilities | None = None

    @property
    def about(self) -> str:
        told = self.abilities.describe() if self.abilities else ""
        return f" ({told})" if told else ""

    @property
    def takes_tools(self) -> bool:
        return self.abilities is None or self.abilities.tools is not False


class SlashCommands(msgspec.Struct, eq=False):
    """Carries out the built-in commands. The handlers in the table are its methods.

    A handler raises `TalariaError` for a failure that the person should read. After a kill the command runs
    again, so what a handler does before its result is committed may be done twice.
    """

    _store: Store
    _agents: Agents
    _live: LiveTurns
    _settings: TurnSettings
    _decisions: Decisions
    delegates: Delegates | None = None

    async def run(self, command: Command, turn: Turn) -> CommandResult:
        """Carry out the command of a turn. An unknown one is answered with a guess."""
        spec = SLASH_COMMANDS.get(canonical(command.name))
        if spec is None:
            return CommandResult(self._unknown(command.name))
        return await spec.run(self, turn, command.args)

    # -- sessions -------------------------------------------------------------------------------------------

    async def new(self, turn: Turn, args: str) -> CommandResult:
        entries = (TitleSet(args[:_TITLE_LIMIT]),) if args else ()
        earlier = earlier_sessions(await self._summary(turn))
        back = ""
        if earlier:
            back = f" The one before is {describe_session(earlier[0])}; `/resume 1` returns to it."
        ends = tuple(session.id for session in earlier if session.ended_at is None)
        return CommandResult(f"New session {turn.session_id}.{back}", entries, ends=ends)

    async def resume(self, turn: Turn, args: str) -> CommandResult:
        """The intake has replaced the argument by the id of the session that it found."""
        summary = await self._summary(turn)
        if args == summary.current.id:
            return CommandResult(f"Back in {describe_session(summary.current)}.")
        if not args:
            listed = list_sessions(summary)
            return CommandResult(f"Say which one: `/resume NUMBER`.\n{listed.reply}", buttons=listed.buttons)
        return CommandResult(f"No session of this chat matches {args!r}. /sessions lists them.")

    async def sessions(self, turn: Turn, args: str) -> CommandResult:
        return list_sessions(await self._summary(turn))

    async def title(self, turn: Turn, args: str) -> CommandResult:
        if not args:
            current = (await self._summary(turn)).current.title or "(none)"
            return CommandResult(f"The title is: {current}. `/title TEXT` sets it.")
        title = " ".join(args.split())[:_TITLE_LIMIT]
        return CommandResult(f"Title set: {title}", (TitleSet(title),))

    async def branch(self, turn: Turn, args: str) -> CommandResult:
        _, title = parse_branch(args)
        entries = (TitleSet(title[:_TITLE_LIMIT]),) if title else ()
        reply = f"Branched into {turn.session_id}. `/resume 1` returns to where you were."
        return CommandResult(reply, entries)

    async def undo(self, turn: Turn, args: str) -> CommandResult:
        """Files are put back before the undo is committed: after a kill the same command runs again."""
        number = parse_number(args or "1")
        if not number:
            return CommandResult("Say how many exchanges to undo: `/undo NUMBER`.")
        undone = (await read_exchanges(self._store, turn.session_id, number))[-number:]
        if not undone:
            return CommandResult("There is nothing to undo.")
        what = "the last exchange" if len(undone) == 1 else f"the last {len(undone)} exchanges"
        said = cut(" ".join(undone[0].said.text.split()), _QUOTE_LIMIT)
        reply = f"Undid {what}, from your “{said}” on."
        if turn_ids := tuple(turn_id for exchange in undone for turn_id in exchange.turn_ids):
            checkpoints = self._agents.tool_runner.checkpoints
            if checkpoints is None:
                reply = f"{reply} {NO_COPIES}"
            else:
                with self._copies(turn) as workspace:
                    report = await checkpoints.undo(workspace, turn_ids)
                reply = f"{reply} {describe_undo(report)}"
        return CommandResult(reply, (Hidden(undone[0].first, undone[-1].last),))

    async def diff(self, turn: Turn, args: str) -> CommandResult:
        checkpoints = self._agents.tool_runner.checkpoints
        if checkpoints is None:
            return CommandResult(NO_COPIES)
        with self._copies(turn) as workspace:
            diff = await checkpoints.last_diff(workspace)
        return CommandResult(self._agents.secrets(describe_diff(diff, args)))  # it has lines of files

    async def browser(self, turn: Turn, args: str) -> CommandResult:
        with self._agents.workspace(turn.session_id, turn.chat_key) as workspace:
            if args.strip() == "close":
                closed = await workspace.browser.retire()
                return CommandResult("Closed. It opens again as it was." if closed else "No browser is open.")
            if tabs := workspace.browser.tabs():
                text = "\n".join(["Open in the browser:", *tabs, "`/browser close` closes it."])
                picture = await workspace.browser.picture()
                if picture is None:
                    return CommandResult(text)
                await workspace.claim()
                folder = Folder(workspace.folder)
                sent, _ = await asyncio.to_thread(
                    keep_content, folder, "browser.png", picture, (turn.id, "browser")
                )
                return CommandResult(text, files=(sent,))
        hint = "The agent opens one with its browser tools, if `tools.enabled` has `browser`."
        return CommandResult(f"No browser is open. {hint}")

    @contextmanager
    def _copies(self, turn: Turn) -> Iterator[ChatWorkspace]:
        """Open the workspace of the session whose copies of files are used."""
        try:
            with self._agents.workspace(turn.session_id, turn.chat_key) as workspace:
                yield workspace
        except OSError as error:
            raise TalariaError(
                f"The copies of files cannot be used: {error}.", "The log has more."
            ) from error

    async def trust(self, turn: Turn, args: str) -> CommandResult:
        """Show whether the folders of the chat are tainted, or clear them."""
        trust, key = self._agents.folder_trust, turn.chat_key
        if trust is None:
            return CommandResult("This gateway keeps no folders for chats.")
        taint = await trust.find(key)
        if taint is None or args != "clear":
            return CommandResult(describe_taint(taint, self._settings.stamp))
        if (is_group(key) or trust.is_shared(key)) and not turn.inbound.sender.is_operator:
            return CommandResult(
                "Other people use this folder too, so only an operator can trust it again. Ask the person "
                "who runs this gateway to send `/trust clear` here."
            )
        await trust.clear(key)
        return CommandResult(
            "Files and command output in this chat folder are trusted again. A conversation that already "
            "contains untrusted content stays as it is: send /new to start one without it."
        )

    # -- turns ----------------------------------------------------------------------------------------------

    async def stop(self, turn: Turn, args: str) -> CommandResult:
        # A `/stop` that is carried out again after a crash must not hit a message that came after it.
        running, until = self._live.running_in(turn.chat_key), turn.accepted_at
        waiting = self._live.waiting_in(turn.chat_key)
        if running is not None and running.turn.accepted_at <= until:
            running.stop()  # first: it could hand out more
        dropped = 0 if self.delegates is None else await self.delegates.drop_of(turn.session_id, until)
        tasks = f"{dropped} {'task' if dropped == 1 else 'tasks'} in the background"
        if running is None:
            return CommandResult(f"Stopped {tasks}." if dropped else "Nothing is running.")
        rest = f" {waiting} more waiting; the next begins now." if waiting else ""
        also = f" Also stopped: {tasks}." if dropped else ""
        return CommandResult(f"Stopped.{also}{rest}")

    async def approve(self, turn: Turn, args: str) -> CommandResult:
        if (wish := parse_approval(args)) is None:
            return CommandResult(
                "Say `/approve`, `/approve ID`, `/approve ID session` or, for a host, `/approve ID always`."
            )
        named, span = wish
        return await self._decide(turn, args, named, APPROVE, span)

    async def deny(self, turn: Turn, args: str) -> CommandResult:
        return await self._decide(turn, args, args, DENY, Span.ONCE)

    async def _decide(self, turn: Turn, args: str, named: str, text: str, span: Span) -> CommandResult:
        """Decide the question that is named or, without a name, the only one that the sender can mean."""
        items = await self._decisions.open_to(turn, args)
        asked = [item for item in items if item.question.kind is not QuestionKind.ANSWER]
        if named:
            found = [item.question for item in asked if item.question.id == named]
            if not found:
                listed = list_questions([item.question for item in asked])
                return CommandResult(f"There is no open question {clean_line(named, 60)}.{listed}")
        else:
            found = [item.question for item in asked if asking_chat(item.turn.chat_key) == turn.chat_key]
        if not found:
            return CommandResult("Nothing waits for a decision in this chat.")
        if len(found) > 1 or (not named and await self._decisions.is_ambiguous(turn, items)):
            why = (
                "Several approval requests are open" if len(found) > 1 else "The approval request has changed"
            )
            told = f"Nothing was decided. {why}, so name the one you mean: `/{text} ID`."
            told += list_questions(found)
            return CommandResult(told, buttons=decision_buttons(found[0].id) if len(found) == 1 else ())
        await self._decisions.decide_as(Decider.of(turn), found[0].id, text, span)
        return CommandResult(say_decision(found[0], text, span))

    # -- model and tools ------------------------------------------------------------------------------------

    async def model(self, turn: Turn, args: str) -> CommandResult:
        session, model = await self._session_model(turn)
        if args:
            tools = model.tools.used if session.spec_id and model.takes_tools else None
            return await self._respec(session, args, tools)
        specs = self._agents.specs
        return list_models(model.name, model.about, tuple(specs.names()), specs.listed())

    async def reasoning(self, turn: Turn, args: str) -> CommandResult:
        effort = args.lower()
        if not effort:
            log = await self._store.shown_log(turn.session_id)
            efforts = [entry.body.effort for entry in log if isinstance(entry.body, ReasoningSet)]
            now = efforts[-1] if efforts and efforts[-1] else "as configured"
            return CommandResult(
                f"Reasoning: {now}. `/reasoning {'|'.join(_EFFORTS)}` sets it.",
                buttons=tuple(Button(name, f"/reasoning {name}") for name in _EFFORTS),
            )
        if effort not in _EFFORTS:
            return CommandResult(f"{args!r} is not an effort. Say none, low, medium or high.")
        reply = f"Reasoning is {effort} for this session, from the next message on."
        return CommandResult(reply, (ReasoningSet(effort),))

    async def tools(self, turn: Turn, args: str) -> CommandResult:
        session, model = await self._session_model(turn)
        wanted = tuple(args.replace(",", " ").split())
        if wanted:
            chosen: tuple[str, ...] | str = model.tools.known if wanted == ("all",) else ()
            if wanted not in (("all",), ("none",)):
                chosen = model.tools.choose(wanted)
            if isinstance(chosen, str):
                return CommandResult(chosen)
            return await self._respec(session, model.name if session.spec_id else None, chosen)
        if not model.takes_tools:
            none = f"{model.name} takes none: it only talks. `/model` changes it."
            return CommandResult("\n".join([*model.tools.used_lines(), none]))
        servers = sorted(self._agents.tool_runner.servers().items())
        changed = [(name, len(server.proposed)) for name, server in servers if server.proposed]
        usage = SLASH_COMMANDS["tools"].usage
        return CommandResult("\n".join([*model.tools.lines(changed), f"`{usage}` changes them."]))

    async def reload(self, turn: Turn, args: str) -> CommandResult:
        session, model = await self._session_model(turn)
        return await self._respec(session, model.name if session.spec_id else None)

    async def _agent_of(self, session: Session) -> str:
        """Return the agent of a session; empty if it has no spec yet."""
        if session.spec_id is None:
            return ""
        return (await self._agents.builder.pinned(session.spec_id)).spec.agent

    async def agent(self, turn: Turn, args: str) -> CommandResult:
        session, specs = (await self._summary(turn)).current, self._agents.specs
        usual, name = self._settings.agent_name, args.strip()
        if name:
            if (named := specs.find_agent(name)) is None:
                name = usual
            return await self._respec(session, (named.model if named else "") or None, agent=name)
        now = await self._agent_of(session) or specs.agent_of(session.chat_key)
        if not specs.agents:
            return CommandResult(
                f"This session uses {now}. `[agents.NAME]` in config.toml adds other agents."
            )
        told = [f"{name}: {each.summary}" for name, each in specs.agents.items()]
        lines = [f"This session uses {now}. `/agent NAME` changes that.", f"{usual}: the usual agent", *told]
        return CommandResult("\n".join(lines))

    async def _respec(
        self, session: Session, model: str | None, tools: tuple[str, ...] | None = None, agent: str = ""
    ) -> CommandResult:
        """Pin the session to a model under the current configuration. Without `tools` it gets the configured
        ones, and without `agent` it keeps its own."""
        agent = agent or await self._agent_of(session)
        pinned = self._agents.specs.resolve(session.chat_key, model, tools, agent)
        spec = pinned.spec
        name = f"{spec.provider}/{spec.model}"
        if spec.agent != self._settings.agent_name:
            name = f"the agent {spec.agent} on {name}"
        if pinned.id == session.spec_id:
            return CommandResult(f"Nothing has changed: this session uses {name}.")
        found = f", and {len(spec.searched)} more that it searches for" if spec.searched else ""
        told = f"{', '.join(spec.tools) or 'no tools'}{found}"
        reply = f"From the next message on this session uses {name} with {told}."
        return CommandResult(reply, (SpecSet(pinned.id),), specs=(pinned,))

    async def context(self, turn: Turn, args: str) -> CommandResult:
        session, agents = (await self._summary(turn)).current, self._agents
        if session.spec_id is None:
            return CommandResult("There is no model yet, and so no window to fill.")
        pinned = await agents.builder.pinned(session.spec_id)
        return CommandResult(describe_window(await agents.compaction.use(session.id, agents.builder, pinned)))

    # -- information ----------------------------------------------------------------------------------------

    async def help(self, turn: Turn, args: str) -> CommandResult:
        if wanted := args.lstrip("/").lower():
            spec = SLASH_COMMANDS.get(canonical(wanted)) or self._agents.commands.find(wanted)
            return CommandResult(spec.describe() if spec else self._unknown(wanted))
        return CommandResult("\n".join(row.describe() for row in self._agents.commands.all()))

    def _unknown(self, name: str) -> str:
        known = [*SLASH_COMMANDS, *ALIASES, *(each.name for each in self._agents.commands)]
        guess = f" Did you mean /{near}?" if (near := nearest(name, known)) else ""
        return f"There is no command /{name} in this version.{guess} /help lists the commands."

    async def status(self, turn: Turn, args: str) -> CommandResult:
        summary = await self._summary(turn)
        session, model = await self._session_model(turn, summary)
        running, waiting = self._live.running_in(turn.chat_key), self._live.waiting_in(turn.chat_key)
        is_parked = running is not None and running.state is LiveState.PARKED
        waits = "for its delegates" if running is not None and running.delegates else "for your decision"
        doing = f"waiting {waits} in" if is_parked else "running"
        now = f"{doing} {running.turn.id}" if running else "idle"
        if waiting:
            now += f", {waiting} waiting"
        warm = self._agents.pool.describe(turn.session_id) or "not in memory"
        asked = waiting_lines(await self._decisions.open_to(turn, args))
        return CommandResult(
            f"Session {session.id} ({session.title or 'untitled'}), revision {session.revision}.\n"
            f"Agent {self._settings.agent_name} with {model.name}{model.about}; {warm}.\n"
            f"Turns: {summary.turns - 1} before this one, {now}.{asked}\n"
            f"{describe_workspace(await self._workspace(turn))}"
        )

    async def _workspace(self, turn: Turn) -> WorkspaceStatus:
        with self._agents.workspace(turn.session_id, turn.chat_key) as workspace:
            state, processes = await workspace.shell.state(), await workspace.processes.list()
            cwd, sandbox = state.cwd or str(workspace.folder), workspace.shell.confinement
            return WorkspaceStatus(cwd, tuple(processes), sandbox, self._agents.clock.now())

    async def why(self, turn: Turn, args: str) -> CommandResult:
        """The messages of the session with their ids: what they were, and what became of them."""
        recent = await self._store.recent_of_session(turn.session_id, _RECENT)
        asked = [each for each in recent if asks_model(each.command)][:_SHOWN]
        if not asked:
            return CommandResult("There is no message in this session yet.")
        lines = ["The last messages of this session, newest first:", *map(describe_turn, asked)]
        lines.append(spoken_afar("`talaria why ID` on the gateway's machine tells the whole story of one."))
        return CommandResult("\n".join(lines))

    async def whoami(self, turn: Turn, args: str) -> CommandResult:
        sender = turn.inbound.sender
        name = f" ({sender.name})" if sender.name else ""
        return CommandResult(f"You are {sender.id}{name}, in chat {turn.chat_key}.")

    async def usage(self, turn: Turn, args: str) -> CommandResult:
        _, model = await self._session_model(turn)
        return CommandResult(describe_usage(await self._agents.budgets.account(turn, model.name), model.name))

    async def jobs(self, turn: Turn, args: str) -> CommandResult:
        from talaria.turns.job_commands import JobCommands  # noqa: PLC0415 - with the first `/jobs`

        if (desk := self._agents.job_desk) is None:
            return CommandResult("There are no jobs here.")
        return await JobCommands(desk(), self._store).answer(turn, args)

    async def agents(self, turn: Turn, args: str) -> CommandResult:
        from talaria.turns.delegate_commands import DelegateCommands  # noqa: PLC0415 - with the first `/agents`

        followed = self._decisions.followed
        commands = DelegateCommands(self._store, self._live, self._agents.clock, followed, self.delegates)
        return await commands.answer(turn, args)

    async def link(self, turn: Turn, args: str) -> CommandResult:
        identities, key = self._agents.identities, turn.chat_key
        identity = f"{channel_of(key)}:{turn.inbound.sender.id}"
        if (
            identities is None
            or is_group(key)
            or identities.people.of_chat(key) != identities.people.of_identity(*identity.split(":", 1))
        ):
            return CommandResult("Write `/link` to me in a private chat on a chat platform.")
        if args.lower() == "off":
            if not await self._store.pairings.unlink(identity):
                return CommandResult(f"{identity} is not joined to another identity.")
            await identities.share()
            return CommandResult(f"Done: {identity} is a person of its own again.")
        if args:
            return CommandResult(await self._present_link(identities, identity, args))
        code = new_code()
        await self._store.pairings.create_link(CreateLinkCode(identity, hash_code(code), LINK_SECONDS))
        return CommandResult(
            f"Your code is {code}\n\nOn the other platform, write to me in private: `/link {code}`\n"
            "Both chats then belong to one person: they share memory and search. The code works once, "
            f"for {LINK_SECONDS // 60:.0f} minutes. Give it to nobody else."
        )

    async def _present_link(self, identities: JoinedIdentities, identity: str, code: str) -> str:
        """Join the identity to the one that created the code, and return what the person is told."""
        if (presented := read_code(code)) is None:
            return "This is not a code. `/link` without a code gives you one."
        if identities.people.is_named(identity):
            return (
                "The gateway's settings say who you are here, so this code changes nothing. "
                "Write `/link` here, and send me that code on the other platform."
            )
        order = RedeemLinkCode(identity, hash_code(presented), PairingLimits())
        redeemed = await self._store.pairings.redeem_link(order)
        if not isinstance(redeemed, str):
            return "The code is wrong, used or expired. `/link` on the other platform gives a new one."
        if redeemed == identity:
            return f"This code is your own. Send `/link {presented}` to me on the other platform."
        await identities.share()
        return f"Done: {identity} and {redeemed} are one person now. `/link off` ends that for {identity}."

    async def memory(self, turn: Turn, args: str) -> CommandResult:
        """Show the memory of the turn's chat, or edit it. A command that runs again after a kill edits it
        once."""
        memories, usage = self._agents.memories, SLASH_COMMANDS["memory"].usage
        if memories is None or (provider := memories.provider) is None:
            return CommandResult("There is no memory here: the family `memory` is not in `tools.enabled`.")
        place = memories.place(turn.chat_key)
        if args.lower() in ("", "user"):
            return show_memory(await provider.pages(place), usage)
        if (edit := _parse_edit(args)) is None:
            return CommandResult(f"Say it like this: `{usage}`.")
        origin = EditOrigin(turn.id, turn.session_id, self._agents.clock.now())
        try:
            return CommandResult(await provider.edit(place, edit, origin))
        except ToolError as error:
            return CommandResult(error.info().sentence())

    # -- what several commands read -------------------------------------------------------------------------

    async def _summary(self, turn: Turn) -> ChatSummary:
        if (summary := await self._store.summary(turn.session_id)) is None:
            action = Action(Do.NEW_SESSION, "Start a new one")
            raise NotFound(f"The session {turn.session_id} is gone.", f"{action}.", action=action)
        return summary

    async def _session_model(self, turn: Turn, summary: ChatSummary | None = None) -> tuple[Session, _Model]:
        specs, session = self._agents.specs, (summary or await self._summary(turn)).current
        tools = NamedTools(specs.tools.names, specs.tools.names, specs.tools.origin)
        if session.spec_id is not None:
            spec = (await self._agents.builder.pinned(session.spec_id)).spec
            searched = frozenset(name for name, _ in spec.searched)
            tools = msgspec.structs.replace(tools, used=spec.usable_tools, searched=searched)
        else:
            try:
                spec = specs.resolve(turn.chat_key).spec
            except NoModel as error:
                return session, _Model(f"no model ({error.user_text})", tools)
        abilities = specs.abilities(spec.provider, spec.model)
        return session, _Model(f"{spec.provider}/{spec.model}", tools, abilities)


async def read_exchanges(store: Store, session_id: SessionId, wanted: int = 1) -> list[Exchange]:
    """Return the exchanges that the model sees or, if there are fewer than wanted, those of the whole log:
    the summaries of what is taken back do not count any more."""
    log = await store.shown_log(session_id)
    seen = exchanges(log)
    if len(seen) < wanted and log and log[0].seq > 1:
        seen = exchanges(await store.log(session_id, 0))
    return seen


def _parse_edit(args: str) -> MemoryEdit | None:
    """Return the edit that the arguments of `/memory` ask for."""
    word, _, rest = args.partition(" ")
    page = MemoryPage.MEMORY
    if word.lower() == "user":
        page = MemoryPage.USER
        word, _, rest = rest.strip().partition(" ")
    rest = rest.strip()
    match word.lower():
        case "add" if rest:
            return AddFact(page, rest)
        case "forget" if rest:
            return ForgetFact(page, rest)
        case "replace" if "=>" in rest:
            old, _, new = rest.partition("=>")
            return ReplaceFact(page, old.strip(), new.strip())
        case "clear" if not rest:
            return WritePage(page, "")
    return None


def _say(reply: str) -> Handler:
    """Return a handler that only answers. The intake or the runner carries such a command out."""

    async def say(commands: SlashCommands, turn: Turn, args: str) -> CommandResult:
        return CommandResult(reply)

    return say


# -- the table --------------------------------------------------------------------------------------------

Handler: TypeAlias = Callable[[SlashCommands, Turn, str], Awaitable[CommandResult]]


class CommandSpec(msgspec.Struct, frozen=True):
    """A row of the table of commands.

    A command that `is_control` bypasses the chat's lane, so it works while a turn runs; others wait like a
    message. The model answers a command that `asks_model`.
    """

    name: str
    arguments: str
    help: str
    run: Handler
    is_control: bool = False
    asks_model: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.arguments}".rstrip()

    def describe(self) -> str:
        return f"{self.usage}: {self.help}"


_ROWS = (
    CommandSpec(
        "help", "[COMMAND]", "list the commands, or explain one", SlashCommands.help, is_control=True
    ),
    CommandSpec(
        "new",
        "[TITLE]",
        "start a new session in this chat; the one before ends",
        SlashCommands.new,
        aliases=("reset",),
    ),
    CommandSpec("resume", "NUMBER|ID|TITLE", "return to an earlier session", SlashCommands.resume),
    CommandSpec("sessions", "", "list the sessions of this chat", SlashCommands.sessions),
    CommandSpec("title", "[TEXT]", "show or set the session's title", SlashCommands.title),
    CommandSpec(
        "status", "", "show session, model and what is running", SlashCommands.status, is_control=True
    ),
    CommandSpec("stop", "", "cancel the running turn", SlashCommands.stop, is_control=True),
    CommandSpec(
        "queue",
        "TEXT",
        "send a message that waits for the running turn",
        _say("Say what shall wait: `/queue TEXT`."),  # with a text it is a message
        is_control=True,
    ),
    CommandSpec(
        "steer",
        "TEXT",
        "send a message that the running turn reads next",
        _say("Say what the running turn shall read: `/steer TEXT`."),  # with a text it is a message
        is_control=True,
    ),
    CommandSpec(
        "approve",
        "[ID] [session|always]",
        "let the call run that is asked about, once or for the session; an operator allows a host for always",
        SlashCommands.approve,
        is_control=True,
    ),
    CommandSpec("deny", "[ID]", "refuse the call that is asked about", SlashCommands.deny, is_control=True),
    CommandSpec("usage", "", "show used tokens and money, and the caps", SlashCommands.usage),
    CommandSpec(
        "tools",
        "[NAME…|all|none]",
        "show or choose the session's tools, by where they come from",
        SlashCommands.tools,
    ),
    CommandSpec("model", "[NAME]", "show or choose the session's model", SlashCommands.model),
    CommandSpec(
        "reasoning",
        f"[{'|'.join(_EFFORTS)}]",
        "show or set how much the model thinks",
        SlashCommands.reasoning,
    ),
    CommandSpec(
        "undo", "[NUMBER]", "take back the last exchanges, and what they did to files", SlashCommands.undo
    ),
    CommandSpec("diff", "[PATH]", "show what the last turn did to files", SlashCommands.diff),
    CommandSpec(
        "browser",
        "[close]",
        "show the tabs of the session's browser, and its page; close: close it",
        SlashCommands.browser,
    ),
    CommandSpec(
        "trust",
        "[clear]",
        "show whether the chat folder may contain untrusted content; clear: trust its files again",
        SlashCommands.trust,
    ),
    CommandSpec(
        "retry",
        "",
        "ask the last message again",
        _say("There is nothing to retry."),  # the runner asks the model again if there is an exchange
        asks_model=True,
    ),
    CommandSpec(
        "branch",
        "[@ENTRY] [TITLE]",
        "continue in a copy of this session; @ENTRY: with what was before that entry of its log",
        SlashCommands.branch,
    ),
    CommandSpec("reload", "", "use the prompt and tools of the current configuration", SlashCommands.reload),
    CommandSpec(
        COMPACT,
        "[FOCUS]",
        "summarise the older part of the conversation now; FOCUS is what to keep in view",
        _say(""),  # never reached: the runner compacts under the session's lease
    ),
    CommandSpec("context", "", "show what fills the model's window", SlashCommands.context),
    CommandSpec(
        "why",
        "",
        "show the last messages, their ids and what became of them",
        SlashCommands.why,
        is_control=True,
    ),
    CommandSpec(
        "jobs",
        "[add TEXT|save|show|run|pause|resume|remove NAME]",
        "list jobs, make one in plain words, or act on one",
        SlashCommands.jobs,
        is_control=True,
    ),
    CommandSpec(
        "agent", "[NAME]", "show or choose the agent that answers in this session", SlashCommands.agent
    ),
    CommandSpec(
        "agents",
        "[stop NUMBER|stop all|tell NUMBER TEXT]",
        "list the delegates that work on a message, stop them, or tell one more",
        SlashCommands.agents,
        is_control=True,
    ),
    CommandSpec(
        "memory",
        "[user] [add TEXT|forget TEXT|replace OLD => NEW|clear]",
        "show what is remembered, or edit it",
        SlashCommands.memory,
        is_control=True,
    ),
    CommandSpec(
        "link",
        "[CODE|off]",
        "get a code, or present one, to be one person on two platforms; off: be two again",
        SlashCommands.link,
        is_control=True,
    ),
    CommandSpec("whoami", "", "show who you are to the gateway", SlashCommands.whoami, is_control=True),
)
SLASH_COMMANDS: dict[str, CommandSpec] = {spec.name: spec for spec in _ROWS}
ALIASES: dict[str, str] = {alias: spec.name for spec in _ROWS for alias in spec.aliases}
_ASKING = frozenset({"", *(spec.name for spec in _ROWS if spec.asks_model)})


def parse_branch(args: str) -> tuple[int | None, str]:
    """Return the entry before which `/branch` ends its copy, if one is named, and the title."""
    place, _, title = args.partition(" ")
    if place[:1] == "@" and place[1:].isdecimal() and len(place) <= _LONGEST_PLACE:
        return int(place[1:]), title.strip()
    return None, args


def canonical(name: str) -> str:
    return ALIASES.get(name, name)


def asks_model(name: str) -> bool:
    """Return whether the model answers a turn with this command (`""` for none)."""
    return name in _ASKING


def is_control(command: str) -> bool:
    """Return whether the command passes its chat's lane. An unknown command does, and says that it is."""
    spec = SLASH_COMMANDS.get(canonical(command)) if command else None
    return bool(command) and (spec is None or spec.is_control)


# -- commands that are not built in -----------------------------------------------------------------------

CommandSource: TypeAlias = Callable[[], Iterable[ExtraCommand]]


class ExtraCommands:
    """The extra commands by name, as their sources tell them at this moment.

    A built-in command always wins, and of two extra ones with one name that of the earlier source.
    """

    def __init__(self, *sources: CommandSource) -> None:
        self._sources = list(sources)

    def add(self, source: CommandSource) -> None:
        """Ask this source too. It must be cheap: it is asked for each command that is not built in."""
        self._sources.append(source)

    def __iter__(self) -> Iterator[ExtraCommand]:
        known = {*SLASH_COMMANDS, *ALIASES}
        for source in self._sources:
            for command in source():
                if command.name not in known:
                    known.add(command.name)
                    yield command

    def all(self) -> tuple[CommandSpec | ExtraCommand, ...]:
        """Return all commands, the built-in ones first."""
        return (*SLASH_COMMANDS.values(), *self)

    def find(self, name: str) -> ExtraCommand | None:
        """Return the extra command of this name. None if there is none, or if it is built in."""
        if not name or name in SLASH_COMMANDS or name in ALIASES:
            return None
        return next((command for command in self if command.name == name), None)

    def parse(self, text: str) -> Command | None:
        """Return the command of a text, as `parse_command` does. Names of built-in commands have no digits,
        so `/v2 is out` is a message unless an extra command has that name."""
        command = parse_command(text, with_digits=True)
        if command is None or not any(map(str.isdigit, command.name)) or self.find(command.name) is not None:
            return command
        return None

    def message_of(self, command: Command) -> str | None:
        """Return the message that the command stands for; None for a command that is answered."""
        found = self.find(command.name)
        return found.message(command.args) if found is not None and found.message is not None else None

    def is_control(self, name: str) -> bool:
        """Return whether the command (`""` for none) passes its chat's lane."""
        if not name:
            return False
        found = self.find(name)
        return is_control(name) if found is None else found.is_control
