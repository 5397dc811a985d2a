"""The commands: what each is called, how it travels, and what it answers.

A handler is a pure function from a view of the session and the command's arguments to an `Outcome`; the
runner carries the outcome out. Three ways to travel:
- CONTROL: durable but past the lane, so that it works while a turn runs;
- BINDING: moves the chat to another session in the accepting transaction, then waits in the lane;
- LANE: waits its turn like a message.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum, auto

import msgspec

from talaria.commands.parse import Command
from talaria.commands.usage import tell_account
from talaria.core.delivery import Button
from talaria.core.entries import EntryBody, Exchange, Hidden, ReasoningSet, TitleSet
from talaria.core.ids import TurnId
from talaria.core.ledger import ChatSummary
from talaria.core.sessions import Session
from talaria.core.spending import Account
from talaria.core.turns import Sender

_TITLE_LIMIT = 120
_BUTTONS = 8
_LISTED = 20
_QUOTE_LIMIT = 80
_EFFORTS = "none|low|medium|high"
_TOOLS_USAGE = "/tools [NAME…|all|none]"
_NUMBER_DIGITS = 10  # longer ones are no number of a session, and Python refuses to read the longest


class Route(Enum):
    CONTROL = auto()
    BINDING = auto()
    LANE = auto()


class CommandView(msgspec.Struct, frozen=True):
    """All that a command may know. `session` is the one its turn is bound to; `exchanges` are what its model
    sees, and `reasoning` the effort it asked for, for commands that look at the log; `account` is what was
    spent, for `/usage`. `models` are names of the configuration, `listed` what endpoints have beside them,
    and `abilities` what is known of the session's model."""

    summary: ChatSummary
    sender: Sender
    agent: str
    model: str
    tools: tuple[str, ...]
    running: TurnId | None = None
    waiting: int = 0
    warm: str = ""
    models: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    abilities: str = ""
    all_tools: tuple[str, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    reasoning: str = ""
    account: Account | None = None

    @property
    def session(self) -> Session:
        return self.summary.current


class Respec(msgspec.Struct, frozen=True):
    """A new spec for the session. None of `model` and `tools` is what it has, and as configured."""

    model: str | None = None
    tools: tuple[str, ...] | None = None


class Outcome(msgspec.Struct, frozen=True):
    """`entries` are appended under the session's lease; `stop` cancels the chat's running turn; `respec` pins
    the session to a new spec; `buttons` are choices below the reply, where the channel has such."""

    reply: str
    entries: tuple[EntryBody, ...] = ()
    stop: bool = False
    respec: Respec | None = None
    buttons: tuple[Button, ...] = ()


Handler = Callable[[CommandView, str], Outcome]


class CommandSpec(msgspec.Struct, frozen=True):
    """`reads_log`: the view brings what the log says. Reading it all is nothing to do for `/help`."""

    name: str
    usage: str
    help: str
    route: Route
    run: Handler
    reads_log: bool = False


def describe(session: Session) -> str:
    when = datetime.fromtimestamp(session.updated_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{session.title or 'untitled'} ({session.id}, last used {when})"


def _help(view: CommandView, args: str) -> Outcome:
    wanted = args.lstrip("/").lower()
    if wanted:
        spec = COMMANDS.get(ALIASES.get(wanted, wanted))
        return Outcome(f"{spec.usage}: {spec.help}" if spec else unknown(wanted))
    return Outcome("\n".join(f"{spec.usage}: {spec.help}" for spec in COMMANDS.values()))


def _new(view: CommandView, args: str) -> Outcome:
    entries = (TitleSet(args[:_TITLE_LIMIT]),) if args else ()
    earlier = [session for session in view.summary.sessions if session.id != view.session.id]
    back = f" The one before is {describe(earlier[0])}; `/resume 1` returns to it." if earlier else ""
    return Outcome(f"New session {view.session.id}.{back}", entries)


def _resume(view: CommandView, args: str) -> Outcome:
    """Intake has put the id of what it found in the place of what was written."""
    if args == view.session.id:
        return Outcome(f"Back in {describe(view.session)}.")
    if not args:
        listed = _sessions(view, "")
        return Outcome(f"Say which one: `/resume NUMBER`.\n{listed.reply}", buttons=listed.buttons)
    return Outcome(f"No session of this chat matches {args!r}. /sessions lists them.")


def _sessions(view: CommandView, args: str) -> Outcome:
    lines = [f"Now: {describe(view.session)}"]
    lines += [f"{number}. {describe(session)}" for number, session in enumerate(others(view.summary), 1)]
    if len(lines) > 1:
        lines.append("`/resume NUMBER` (or an id, or a part of a title) returns to one.")
    earlier = others(view.summary)[:_BUTTONS]
    buttons = [Button(session.title or session.id, f"/resume {session.id}") for session in earlier]
    return Outcome("\n".join(lines), buttons=tuple(buttons))


def _title(view: CommandView, args: str) -> Outcome:
    if not args:
        return Outcome(f"The title is: {view.session.title or '(none)'}. `/title TEXT` sets it.")
    title = " ".join(args.split())[:_TITLE_LIMIT]
    return Outcome(f"Title set: {title}", (TitleSet(title),))


def _status(view: CommandView, args: str) -> Outcome:
    session = view.session
    about = f" ({view.abilities})" if view.abilities else ""
    turn = f"running {view.running}" if view.running else "idle"
    if view.waiting:
        turn += f", {view.waiting} waiting"
    return Outcome(
        f"Session {session.id} ({session.title or 'untitled'}), revision {session.revision}.\n"
        f"Agent {view.agent} with {view.model}{about}; {view.warm or 'not in memory'}.\n"
        f"Turns: {view.summary.turns} so far, {turn}."
    )


def _stop(view: CommandView, args: str) -> Outcome:
    if view.running is None:
        return Outcome("Nothing is running.")
    rest = f" {view.waiting} more waiting; the next begins now." if view.waiting else ""
    return Outcome(f"Stopped.{rest}", stop=True)


def _queue(view: CommandView, args: str) -> Outcome:
    """Only without a text: intake makes a message of one that has it."""
    return Outcome("Say what shall wait: `/queue TEXT`.")


def _steer(view: CommandView, args: str) -> Outcome:
    """As `_queue`."""
    return Outcome("Say what the running turn shall read: `/steer TEXT`.")


def _usage(view: CommandView, args: str) -> Outcome:
    return Outcome("" if view.account is None else tell_account(view.account))


def _tools(view: CommandView, args: str) -> Outcome:
    wanted = tuple(args.replace(",", " ").split())
    if not wanted:
        off = [name for name in view.all_tools if name not in view.tools]
        listed = f"Tools of this session: {', '.join(view.tools) or 'none'}."
        return Outcome(
            listed + (f" Off: {', '.join(off)}." if off else "") + f" `{_TOOLS_USAGE}` changes them."
        )
    if wanted in (("all",), ("none",)):
        return Outcome("", respec=Respec(tools=view.all_tools if wanted == ("all",) else ()))
    unknown_tools = [name for name in wanted if name not in view.all_tools]
    if unknown_tools:
        return Outcome(f"There is no tool {unknown_tools[0]!r}. There are: {', '.join(view.all_tools)}.")
    return Outcome("", respec=Respec(tools=wanted))


def _model(view: CommandView, args: str) -> Outcome:
    if not args:
        known = ", ".join(view.models) or "none configured"
        about = f" ({view.abilities})" if view.abilities else ""
        return Outcome(
            f"This session uses {view.model}{about}. `/model NAME` changes it. Known: {known}."
            + _tell_listed(view),
            buttons=tuple(Button(name, f"/model {name}") for name in view.models[:_BUTTONS]),
        )
    return Outcome("", respec=Respec(args, view.tools if view.session.spec_id else None))


def _tell_listed(view: CommandView) -> str:
    """Those of the session's own provider first."""
    provider = view.model.partition("/")[0] + "/"
    own = sorted(view.listed, key=lambda name: not name.startswith(provider))
    if not own:
        return ""
    rest = f" and {len(own) - _LISTED} more" if len(own) > _LISTED else ""
    return f"\nIts endpoints also list: {', '.join(own[:_LISTED])}{rest}."


def _reload(view: CommandView, args: str) -> Outcome:
    return Outcome("", respec=Respec())


def _reasoning(view: CommandView, args: str) -> Outcome:
    effort = args.lower()
    if not effort:
        return Outcome(
            f"Reasoning: {view.reasoning or 'as configured'}. `/reasoning {_EFFORTS}` sets it.",
            buttons=tuple(Button(name, f"/reasoning {name}") for name in _EFFORTS.split("|")),
        )
    if effort not in ("none", "low", "medium", "high"):
        return Outcome(f"{args!r} is no effort. Say none, low, medium or high.")
    return Outcome(
        f"Reasoning is {effort} for this session, from the next message on.", (ReasoningSet(effort),)
    )


def _undo(view: CommandView, args: str) -> Outcome:
    if args and not (args.isdecimal() and int(args)):
        return Outcome("Say how many exchanges to undo: `/undo NUMBER`.")
    undone = view.exchanges[-int(args or 1) :]
    if not undone:
        return Outcome("There is nothing to undo.")
    what = "the last exchange" if len(undone) == 1 else f"the last {len(undone)} exchanges"
    said = " ".join(undone[0].said.text.split())
    said = said if len(said) <= _QUOTE_LIMIT else said[:_QUOTE_LIMIT] + "…"
    reply = f"Undid {what}, from your “{said}” on. Files and other effects of tools stay as they are."
    return Outcome(reply, (Hidden(undone[0].first, undone[-1].last),))


def _retry(view: CommandView, args: str) -> Outcome:
    """Only for a session without an exchange: the runner asks the model again otherwise."""
    return Outcome("There is nothing to retry.")


def _branch(view: CommandView, args: str) -> Outcome:
    entries = (TitleSet(args[:_TITLE_LIMIT]),) if args else ()
    return Outcome(f"Branched into {view.session.id}. `/resume 1` returns to where you were.", entries)


def _whoami(view: CommandView, args: str) -> Outcome:
    name = f" ({view.sender.name})" if view.sender.name else ""
    return Outcome(f"You are {view.sender.id}{name}, in chat {view.session.chat_key}.")


COMMANDS: dict[str, CommandSpec] = {
    spec.name: spec
    for spec in (
        CommandSpec("help", "/help [COMMAND]", "what there is", Route.CONTROL, _help),
        CommandSpec("new", "/new [TITLE]", "start a new session in this chat", Route.BINDING, _new),
        CommandSpec(
            "resume", "/resume NUMBER|ID|TITLE", "return to an earlier session", Route.BINDING, _resume
        ),
        CommandSpec("sessions", "/sessions", "the sessions of this chat", Route.LANE, _sessions),
        CommandSpec("title", "/title [TEXT]", "show or set the session's title", Route.LANE, _title),
        CommandSpec("status", "/status", "session, model and what is running", Route.CONTROL, _status),
        CommandSpec("stop", "/stop", "cancel the running turn", Route.CONTROL, _stop),
        CommandSpec(
            "queue",
            "/queue TEXT",
            "a message that waits for the running turn",
            Route.CONTROL,
            _queue,
        ),
        CommandSpec(
            "steer",
            "/steer TEXT",
            "a message that the running turn reads next",
            Route.CONTROL,
            _steer,
        ),
        CommandSpec("usage", "/usage", "tokens and money: used, and what caps allow", Route.LANE, _usage),
        CommandSpec("tools", _TOOLS_USAGE, "show or choose the session's tools", Route.LANE, _tools),
        CommandSpec("model", "/model [NAME]", "show or choose the session's model", Route.LANE, _model),
        CommandSpec(
            "reasoning",
            f"/reasoning [{_EFFORTS}]",
            "how much the model thinks",
            Route.LANE,
            _reasoning,
            reads_log=True,
        ),
        CommandSpec(
            "undo", "/undo [NUMBER]", "take back the last exchanges", Route.LANE, _undo, reads_log=True
        ),
        CommandSpec("retry", "/retry", "ask the last message again", Route.LANE, _retry),
        CommandSpec("branch", "/branch [TITLE]", "go on in a copy of this session", Route.BINDING, _branch),
        CommandSpec(
            "reload", "/reload", "bring prompt and tools of the configuration in", Route.LANE, _reload
        ),
        CommandSpec("whoami", "/whoami", "who you are to the gateway", Route.CONTROL, _whoami),
    )
}
ALIASES = {"reset": "new"}
LATER = frozenset({"compact", "memory", "jobs", "approve", "deny"})


def asks_model(name: str) -> bool:
    """Whether a turn with this command ("" for none) is answered by the model."""
    return name in ("", "retry")


def canonical(name: str) -> str:
    return ALIASES.get(name, name)


def unknown(name: str) -> str:
    if name in LATER:
        return f"/{name} is not in this version yet. /help lists what there is."
    near = difflib.get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
    guess = f" Did you mean /{near[0]}?" if near else ""
    return f"There is no command /{name}.{guess} /help lists them."


def others(summary: ChatSummary) -> list[Session]:
    """The chat's earlier sessions in the order in which `/resume NUMBER` counts them."""
    return [session for session in summary.sessions if session.id != summary.current.id]


def find_session(summary: ChatSummary, wanted: str) -> Session | None:
    """What `/resume` means: a number of `/sessions`, an id, a title, or a part of one title only."""
    earlier = others(summary)
    if wanted.isdecimal() and len(wanted) < _NUMBER_DIGITS and 1 <= int(wanted) <= len(earlier):
        return earlier[int(wanted) - 1]
    for session in summary.sessions:
        if wanted == session.id or (session.title and wanted.casefold() == session.title.casefold()):
            return session
    partial = [session for session in earlier if wanted and wanted.casefold() in session.title.casefold()]
    return partial[0] if len(partial) == 1 else None


def run_command(command: Command, view: CommandView) -> Outcome:
    spec = COMMANDS.get(canonical(command.name))
    return spec.run(view, command.args) if spec else Outcome(unknown(command.name))
