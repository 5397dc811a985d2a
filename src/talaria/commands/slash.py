"""The slash commands: parsing, the table of commands, and what each one answers.

A handler is a pure function from a `CommandContext` and the command's arguments to a `CommandResult`. The
command runner in `turns` applies the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from talaria.commands.command_types import (
    Command,
    CommandContext,
    CommandResult,
    CommandSpec,
    ExtraCommand,
    Route,
    SpecChange,
)
from talaria.commands.deciding import approve, deny, waiting_lines
from talaria.commands.remembering import USAGE, memory
from talaria.commands.window_use import describe_window
from talaria.commands.workspace_status import describe_workspace
from talaria.core.delivery import Button
from talaria.core.entries import Hidden, ReasoningSet, TitleSet
from talaria.core.ledger import ChatSummary
from talaria.core.program import spoken_afar
from talaria.core.sessions import Session
from talaria.core.spending import Scope, Spent, price_command, show_usd
from talaria.core.suggest import nearest
from talaria.core.text import clean_line, cut
from talaria.core.turns import Turn

_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)
_WITH_DIGITS = re.compile(r"/([A-Za-z][A-Za-z0-9_-]*)(?:\s+(.*))?", re.DOTALL)  # extra commands may have them
_TITLE_LIMIT = 120
_BUTTONS = 8
_LISTED = 20
_LISTED_TOOLS = 12  # of one origin
_QUOTE_LIMIT = 80
_RECENT = 5
_EFFORTS = "none|low|medium|high"
_TOOLS_USAGE = "/tools [NAME…|all|none]"
COMPACT = "compact"
_NUMBER_DIGITS = 10  # a longer text is not taken for a number; Python refuses to convert very long ones


def parse_command(text: str, *, with_digits: bool = False) -> Command | None:
    """Return the command if the first word is a slash and letters. `/usr/bin/env` and `/ 2` are messages."""
    match = (_WITH_DIGITS if with_digits else _COMMAND).fullmatch(text.strip())
    return Command(match[1].lower(), (match[2] or "").strip()) if match else None


# -- sessions ---------------------------------------------------------------------------------------------


def describe(session: Session) -> str:
    when = datetime.fromtimestamp(session.updated_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{session.title or 'untitled'} ({session.id}, last used {when})"


def earlier_sessions(summary: ChatSummary) -> list[Session]:
    """Return the chat's other sessions in the order in which `/resume NUMBER` counts them."""
    return [session for session in summary.sessions if session.id != summary.current.id]


def find_session(summary: ChatSummary, wanted: str) -> Session | None:
    """Return the session that `/resume` names: by its number in `/sessions`, its id, its title, or a text
    that occurs in one title only."""
    earlier = earlier_sessions(summary)
    if wanted.isdecimal() and len(wanted) < _NUMBER_DIGITS and 1 <= int(wanted) <= len(earlier):
        return earlier[int(wanted) - 1]
    for session in summary.sessions:
        if wanted == session.id or (session.title and wanted.casefold() == session.title.casefold()):
            return session
    partial = [session for session in earlier if wanted and wanted.casefold() in session.title.casefold()]
    return partial[0] if len(partial) == 1 else None


def _new(context: CommandContext, args: str) -> CommandResult:
    entries = (TitleSet(args[:_TITLE_LIMIT]),) if args else ()
    earlier = earlier_sessions(context.summary)
    back = f" The one before is {describe(earlier[0])}; `/resume 1` returns to it." if earlier else ""
    ends = tuple(session.id for session in earlier if session.ended_at is None)
    return CommandResult(f"New session {context.session.id}.{back}", entries, ends=ends)


def _resume(context: CommandContext, args: str) -> CommandResult:
    """The intake has replaced the argument by the id of the session that it found."""
    if args == context.session.id:
        return CommandResult(f"Back in {describe(context.session)}.")
    if not args:
        listed = _sessions(context, "")
        return CommandResult(f"Say which one: `/resume NUMBER`.\n{listed.reply}", buttons=listed.buttons)
    return CommandResult(f"No session of this chat matches {args!r}. /sessions lists them.")


def _sessions(context: CommandContext, args: str) -> CommandResult:
    earlier = earlier_sessions(context.summary)
    lines = [f"Now: {describe(context.session)}"]
    lines += [f"{number}. {describe(session)}" for number, session in enumerate(earlier, 1)]
    if earlier:
        lines.append("`/resume NUMBER` (or an id, or a part of a title) returns to one.")
    buttons = [Button(session.title or session.id, f"/resume {session.id}") for session in earlier[:_BUTTONS]]
    return CommandResult("\n".join(lines), buttons=tuple(buttons))


def _title(context: CommandContext, args: str) -> CommandResult:
    if not args:
        return CommandResult(f"The title is: {context.session.title or '(none)'}. `/title TEXT` sets it.")
    title = " ".join(args.split())[:_TITLE_LIMIT]
    return CommandResult(f"Title set: {title}", (TitleSet(title),))


def _branch(context: CommandContext, args: str) -> CommandResult:
    entries = (TitleSet(args[:_TITLE_LIMIT]),) if args else ()
    reply = f"Branched into {context.session.id}. `/resume 1` returns to where you were."
    return CommandResult(reply, entries)


def _undo(context: CommandContext, args: str) -> CommandResult:
    if args and not (args.isdecimal() and len(args) < _NUMBER_DIGITS and int(args)):
        return CommandResult("Say how many exchanges to undo: `/undo NUMBER`.")
    undone = context.exchanges[-int(args or 1) :]
    if not undone:
        return CommandResult("There is nothing to undo.")
    what = "the last exchange" if len(undone) == 1 else f"the last {len(undone)} exchanges"
    said = cut(" ".join(undone[0].said.text.split()), _QUOTE_LIMIT)
    reply = f"Undid {what}, from your “{said}” on."
    turn_ids = tuple(turn_id for exchange in undone for turn_id in exchange.turn_ids)
    return CommandResult(reply, (Hidden(undone[0].first, undone[-1].last),), undo_files=turn_ids)


def _diff(context: CommandContext, args: str) -> CommandResult:
    """The command runner writes the reply: this session's last changes of files, or those of one path."""
    return CommandResult("", diff=args)


def _trust(context: CommandContext, args: str) -> CommandResult:
    """The command runner writes the reply."""
    return CommandResult("", trust=args)


# -- turns ------------------------------------------------------------------------------------------------


def _stop(context: CommandContext, args: str) -> CommandResult:
    if context.running is None:
        return CommandResult("Nothing is running.")
    rest = f" {context.waiting} more waiting; the next begins now." if context.waiting else ""
    return CommandResult(f"Stopped.{rest}", stop=True)


def _queue(context: CommandContext, args: str) -> CommandResult:
    """Reached without a text only: the intake turns `/queue TEXT` into a message."""
    return CommandResult("Say what shall wait: `/queue TEXT`.")


def _steer(context: CommandContext, args: str) -> CommandResult:
    """Reached without a text only: the intake turns `/steer TEXT` into a message."""
    return CommandResult("Say what the running turn shall read: `/steer TEXT`.")


def _retry(context: CommandContext, args: str) -> CommandResult:
    """Reached in a session without an exchange only: otherwise the runner asks the model again."""
    return CommandResult("There is nothing to retry.")


# -- model and tools --------------------------------------------------------------------------------------


def _model(context: CommandContext, args: str) -> CommandResult:
    if args:
        tools = context.tools if context.session.spec_id and context.takes_tools else None
        return CommandResult("", spec_change=SpecChange(args, tools))
    known = ", ".join(context.models) or "none configured"
    about = f" ({context.abilities})" if context.abilities else ""
    reply = f"This session uses {context.model}{about}. `/model NAME` changes it. Known: {known}."
    buttons = tuple(Button(name, f"/model {name}") for name in context.models[:_BUTTONS])
    provider = context.model.partition("/")[0] + "/"
    listed = sorted(context.listed, key=lambda name: not name.startswith(provider))  # its own first
    if listed:
        rest = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        reply += f"\nIts endpoints also list: {', '.join(listed[:_LISTED])}{rest}."
    return CommandResult(reply, buttons=buttons)


def _reasoning(context: CommandContext, args: str) -> CommandResult:
    effort = args.lower()
    if not effort:
        return CommandResult(
            f"Reasoning: {context.reasoning or 'as configured'}. `/reasoning {_EFFORTS}` sets it.",
            buttons=tuple(Button(name, f"/reasoning {name}") for name in _EFFORTS.split("|")),
        )
    if effort not in _EFFORTS.split("|"):
        return CommandResult(f"{args!r} is no effort. Say none, low, medium or high.")
    reply = f"Reasoning is {effort} for this session, from the next message on."
    return CommandResult(reply, (ReasoningSet(effort),))


def _tools(context: CommandContext, args: str) -> CommandResult:
    wanted = tuple(args.replace(",", " ").split())
    if not wanted:
        return CommandResult("\n".join(_tool_lines(context)))
    if wanted in (("all",), ("none",)):
        chosen = context.all_tools if wanted == ("all",) else ()
        return CommandResult("", spec_change=SpecChange(tools=chosen))
    families = _families(context, context.all_tools)
    unknown = [name for name in wanted if name not in context.all_tools and name not in families]
    if unknown:
        known = ", ".join((*families, *context.all_tools[:_LISTED_TOOLS]))
        return CommandResult(f"There is no tool {unknown[0]!r}. There are: {known}.")
    chosen = tuple(name for each in wanted for name in families.get(each, (each,)))
    return CommandResult("", spec_change=SpecChange(tools=chosen))


def _families(context: CommandContext, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names by where the tools come from; those that are gone are at the end."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(context.origin(name), []).append(name)
    return {origin: families[origin] for origin in sorted(families, key=lambda each: (not each, each))}


def _tool_lines(context: CommandContext) -> Iterator[str]:
    yield "Tools of this session, by where they come from:" if context.tools else "This session has no tools."
    for origin, names in _families(context, context.tools).items():
        found = ", found with tool_search" if names[0] in context.searched else ""
        yield f"- {origin or 'not there any more'}{found}: {_list_names(names)}"
    if not context.takes_tools:
        yield f"{context.model} takes none: it only talks. `/model` changes it."
        return
    for server, number in context.changed:
        changes = "1 change waits" if number == 1 else f"{number} changes wait"
        how = f"`talaria mcp approve {server}` on the gateway's machine shows what changed."
        yield spoken_afar(f"- mcp:{server}: {changes} for approval. {how}")
    used = frozenset(context.tools)
    off = _families(context, [name for name in context.all_tools if name not in used])
    yield from (f"- off, {origin}: {_list_names(names)}" for origin, names in off.items())
    yield f"`{_TOOLS_USAGE}` changes them."


def _list_names(names: Sequence[str]) -> str:
    rest = len(names) - _LISTED_TOOLS
    return ", ".join(names[:_LISTED_TOOLS]) + (f" and {rest} more" if rest > 0 else "")


def _reload(context: CommandContext, args: str) -> CommandResult:
    return CommandResult("", spec_change=SpecChange())


def _compact(context: CommandContext, args: str) -> CommandResult:
    """Never reached: the runner compacts under the session's lease."""
    return CommandResult("")


def _context(context: CommandContext, args: str) -> CommandResult:
    if context.window is None:
        return CommandResult("There is no model yet, and so no window to fill.")
    return CommandResult(describe_window(context.window))


# -- information ------------------------------------------------------------------------------------------


def _help(context: CommandContext, args: str) -> CommandResult:
    wanted = args.lstrip("/").lower()
    if wanted:
        spec = SLASH_COMMANDS.get(canonical(wanted))
        if spec is not None:
            return CommandResult(f"{spec.usage}: {spec.help}")
        found = next((extra for extra in context.extra if extra.name == wanted), None)
        return CommandResult(found.describe() if found else unknown_command(wanted, context.extra))
    lines = [f"{spec.usage}: {spec.help}" for spec in SLASH_COMMANDS.values()]
    return CommandResult("\n".join([*lines, *(extra.describe() for extra in context.extra)]))


def _status(context: CommandContext, args: str) -> CommandResult:
    session = context.session
    about = f" ({context.abilities})" if context.abilities else ""
    doing = "waiting for your decision in" if context.is_parked else "running"
    turn = f"{doing} {context.running}" if context.running else "idle"
    if context.waiting:
        turn += f", {context.waiting} waiting"
    return CommandResult(
        f"Session {session.id} ({session.title or 'untitled'}), revision {session.revision}.\n"
        f"Agent {context.agent} with {context.model}{about}; {context.warm or 'not in memory'}.\n"
        f"Turns: {context.summary.turns - 1} before this one, {turn}.{waiting_lines(context)}"
        + ("" if context.workspace is None else f"\n{describe_workspace(context.workspace)}")
    )


def _why(context: CommandContext, args: str) -> CommandResult:
    """The messages of the session with their ids: what they were, and what became of them."""
    asked = [turn for turn in context.recent if asks_model(turn.command)][:_RECENT]
    if not asked:
        return CommandResult("There is no message in this session yet.")
    lines = ["The last messages of this session, newest first:", *map(_describe_turn, asked)]
    lines.append(spoken_afar("`talaria why ID` on the gateway's machine tells the whole story of one."))
    return CommandResult("\n".join(lines))


def _describe_turn(turn: Turn) -> str:
    when = datetime.fromtimestamp(turn.accepted_at, UTC).strftime("%H:%M UTC")
    said = clean_line(turn.inbound.text, _QUOTE_LIMIT // 2)
    trouble = f": {turn.error.message}" if turn.error else ""
    return f"- {turn.id}, {turn.state}, {when}, “{said}”{trouble}"


def _whoami(context: CommandContext, args: str) -> CommandResult:
    name = f" ({context.sender.name})" if context.sender.name else ""
    return CommandResult(f"You are {context.sender.id}{name}, in chat {context.session.chat_key}.")


def _usage(context: CommandContext, args: str) -> CommandResult:
    account = context.account
    if account is None:
        return CommandResult("")
    spending = account.spending
    lines = [
        f"This session: {_describe_spent(spending.session)}",
        f"You today: {_describe_spent(spending.user)}",
        f"Everyone today: {_describe_spent(spending.everyone)}",
    ]
    counted = (spending.session, spending.user, spending.everyone)
    if any(each.estimated for each in counted):
        lines.append("For calls that broke off or reported no usage, an estimate is counted.")
    if not account.is_priced and any(each.unpriced for each in counted):
        command = spoken_afar(price_command(str(context.model)))
        lines.append(f"On the gateway's machine {command} sets a price, in dollars for a million tokens.")
    if account.caps:
        caps = ", ".join(_CAPS[cap.scope].format(show_usd(cap.limit)) for cap in account.caps)
        reserved = f" {show_usd(spending.reserved)} is set aside for calls under way."
        lines.append(
            f"Caps: {caps}. The day ends at {account.resets}.{reserved if spending.reserved else ''}"
        )
    return CommandResult("\n".join(lines))


_CAPS = {
    Scope.DAY: "{} a day",
    Scope.USER: "{} a day for each user",
    Scope.SESSION: "{} for a session",
    Scope.RUN: "{} for a run of a job",
}


def _describe_spent(spent: Spent) -> str:
    tokens = spent.tokens
    share = f" ({tokens.cached * 100 // tokens.input} % from the provider's cache)" if tokens.input else ""
    calls = "1 model call" if spent.calls == 1 else f"{spent.calls} model calls"
    money = show_usd(spent.cost)
    if spent.unpriced:
        money += f", and {spent.unpriced} of the calls have no known price"
        money = "the price is not known" if spent.unpriced == spent.calls else money
    reasoning = f", {tokens.reasoning} of them reasoning" if tokens.reasoning else ""
    return f"{calls}, {tokens.input} tokens in{share}, {tokens.output} out{reasoning}; {money}."


# -- the table --------------------------------------------------------------------------------------------

_ROWS = (
    CommandSpec("help", "/help [COMMAND]", "list the commands, or explain one", Route.CONTROL, _help),
    CommandSpec(
        "new", "/new [TITLE]", "start a new session in this chat; the one before ends", Route.BINDING, _new
    ),
    CommandSpec("resume", "/resume NUMBER|ID|TITLE", "return to an earlier session", Route.BINDING, _resume),
    CommandSpec("sessions", "/sessions", "list the sessions of this chat", Route.LANE, _sessions),
    CommandSpec("title", "/title [TEXT]", "show or set the session's title", Route.LANE, _title),
    CommandSpec(
        "status",
        "/status",
        "show session, model and what is running",
        Route.CONTROL,
        _status,
        reads_questions=True,
    ),
    CommandSpec("stop", "/stop", "cancel the running turn", Route.CONTROL, _stop),
    CommandSpec(
        "queue", "/queue TEXT", "send a message that waits for the running turn", Route.CONTROL, _queue
    ),
    CommandSpec(
        "steer", "/steer TEXT", "send a message that the running turn reads next", Route.CONTROL, _steer
    ),
    CommandSpec(
        "approve",
        "/approve [ID] [session|always]",
        "let the call run that is asked about, once or for the session; an operator allows a host for always",
        Route.CONTROL,
        approve,
        reads_questions=True,
    ),
    CommandSpec(
        "deny",
        "/deny [ID]",
        "refuse the call that is asked about",
        Route.CONTROL,
        deny,
        reads_questions=True,
    ),
    CommandSpec("usage", "/usage", "show used tokens and money, and the caps", Route.LANE, _usage),
    CommandSpec(
        "tools",
        _TOOLS_USAGE,
        "show or choose the session's tools, by where they come from",
        Route.LANE,
        _tools,
    ),
    CommandSpec("model", "/model [NAME]", "show or choose the session's model", Route.LANE, _model),
    CommandSpec(
        "reasoning",
        f"/reasoning [{_EFFORTS}]",
        "show or set how much the model thinks",
        Route.LANE,
        _reasoning,
        reads_log=True,
    ),
    CommandSpec(
        "undo",
        "/undo [NUMBER]",
        "take back the last exchanges, and what they did to files",
        Route.LANE,
        _undo,
        reads_log=True,
    ),
    CommandSpec("diff", "/diff [PATH]", "show what the last turn did to files", Route.LANE, _diff),
    CommandSpec(
        "trust",
        "/trust [clear]",
        "show whether the chat folder may contain untrusted content; clear: trust its files again",
        Route.LANE,
        _trust,
    ),
    CommandSpec("retry", "/retry", "ask the last message again", Route.LANE, _retry),
    CommandSpec("branch", "/branch [TITLE]", "continue in a copy of this session", Route.BINDING, _branch),
    CommandSpec(
        "reload", "/reload", "use the prompt and tools of the current configuration", Route.LANE, _reload
    ),
    CommandSpec(
        COMPACT,
        "/compact [FOCUS]",
        "summarise the older part of the conversation now; FOCUS is what to keep in view",
        Route.LANE,
        _compact,
    ),
    CommandSpec("context", "/context", "show what fills the model's window", Route.LANE, _context),
    CommandSpec(
        "why", "/why", "show the last messages, their ids and what became of them", Route.CONTROL, _why
    ),
    CommandSpec(
        "jobs",
        "/jobs [add TEXT|save|show|run|pause|resume|remove NAME]",
        "list jobs, make one in plain words, or act on one",
        Route.CONTROL,
        lambda context, args: CommandResult("", jobs=args),
    ),
    CommandSpec("memory", USAGE, "show what is remembered, or edit it", Route.CONTROL, memory),
    CommandSpec("whoami", "/whoami", "show who you are to the gateway", Route.CONTROL, _whoami),
)
SLASH_COMMANDS: dict[str, CommandSpec] = {spec.name: spec for spec in _ROWS}
ALIASES = {"reset": "new"}


def canonical(name: str) -> str:
    return ALIASES.get(name, name)


def asks_model(name: str) -> bool:
    """Return whether the model answers a turn with this command (`""` for none)."""
    return name in ("", "retry")


def is_control(command: str) -> bool:
    """Return whether the command passes its chat's lane. An unknown command does, and says that it is."""
    spec = SLASH_COMMANDS.get(canonical(command)) if command else None
    return bool(command) and (spec is None or spec.route is Route.CONTROL)


def unknown_command(name: str, extra: Iterable[ExtraCommand] = ()) -> str:
    near = nearest(name, [*SLASH_COMMANDS, *ALIASES, *(each.name for each in extra)])
    guess = f" Did you mean /{near}?" if near else ""
    return f"There is no command /{name} in this version.{guess} /help lists the commands."


def run_command(command: Command, context: CommandContext) -> CommandResult:
    spec = SLASH_COMMANDS.get(canonical(command.name))
    if spec is None:
        return CommandResult(unknown_command(command.name, context.extra))
    return spec.run(context, command.args)
