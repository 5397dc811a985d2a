"""The texts with which commands answer, and which of a chat's sessions `/resume` means. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from talaria.commands.command import CommandResult, parse_number
from talaria.core.delivery import Button
from talaria.core.files import ChangeKind, FileDiff, KeptPath, TurnDiff, UndoReport
from talaria.core.ledger import ChatSummary
from talaria.core.memory import MemoryPage, PageContent
from talaria.core.program import spoken_afar
from talaria.core.sessions import Session, Taint
from talaria.core.shells import ProcessInfo, ProcessState
from talaria.core.spending import Account, Scope, Spent, price_command, show_usd
from talaria.core.text import clean_line, cut
from talaria.core.turns import Turn
from talaria.core.units import format_age

BUTTONS = 8
_LISTED_MODELS = 20
_LISTED_TOOLS = 12  # of one origin
_LISTED_PROCESSES = 5
_QUOTE_LIMIT = 40
_BAR_WIDTH = 24
_CAPS = {
    Scope.DAY: "{} a day",
    Scope.USER: "{} a day for each user",
    Scope.SESSION: "{} for a session",
    Scope.RUN: "{} for a run of a job",
}


# -- sessions and turns -----------------------------------------------------------------------------------


def describe_session(session: Session) -> str:
    when = datetime.fromtimestamp(session.updated_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{session.title or 'untitled'} ({session.id}, last used {when})"


def earlier_sessions(summary: ChatSummary) -> list[Session]:
    """Return the chat's other sessions in the order in which `/resume NUMBER` counts them."""
    return [session for session in summary.sessions if session.id != summary.current.id]


def find_session(summary: ChatSummary, wanted: str) -> Session | None:
    """Return the session that `/resume` names: by its number in `/sessions`, its id, its title, or a text
    that occurs in one title only."""
    earlier = earlier_sessions(summary)
    if 1 <= (parse_number(wanted) or 0) <= len(earlier):
        return earlier[int(wanted) - 1]
    for session in summary.sessions:
        if wanted == session.id or (session.title and wanted.casefold() == session.title.casefold()):
            return session
    partial = [session for session in earlier if wanted and wanted.casefold() in session.title.casefold()]
    return partial[0] if len(partial) == 1 else None


def list_sessions(summary: ChatSummary) -> CommandResult:
    """Answer `/sessions`."""
    earlier = earlier_sessions(summary)
    lines = [f"Now: {describe_session(summary.current)}"]
    lines += [f"{number}. {describe_session(session)}" for number, session in enumerate(earlier, 1)]
    if earlier:
        lines.append("`/resume NUMBER` (or an id, or a part of a title) returns to one.")
    buttons = [Button(session.title or session.id, f"/resume {session.id}") for session in earlier[:BUTTONS]]
    return CommandResult("\n".join(lines), buttons=tuple(buttons))


def describe_turn(turn: Turn) -> str:
    """Return the line of `/why` about a turn."""
    when = datetime.fromtimestamp(turn.accepted_at, UTC).strftime("%H:%M UTC")
    said = clean_line(turn.inbound.text, _QUOTE_LIMIT)
    trouble = f": {turn.error.message}" if turn.error else ""
    return f"- {turn.id}, {turn.state}, {when}, “{said}”{trouble}"


class WorkspaceStatus(msgspec.Struct, frozen=True):
    """A session's workspace at the moment `now`. `cwd` is where the next command begins. `sandbox` is empty
    as long as no command has needed one."""

    cwd: str
    processes: tuple[ProcessInfo, ...]
    sandbox: str
    now: float


def describe_workspace(status: WorkspaceStatus) -> str:
    """Return the lines of `/status` about working directory, processes and sandbox."""
    running = [process for process in status.processes if process.state is ProcessState.RUNNING]
    lines = [f"Working directory: {clean_line(status.cwd)}"]
    if running:
        lines.append(f"Processes: {len(running)} running")
        for process in running[:_LISTED_PROCESSES]:
            age = format_age(max(0.0, status.now - process.started_at))
            lines.append(f"- {process.id}: {clean_line(process.command, 60)}, {age}")
        if len(running) > _LISTED_PROCESSES:
            lines.append(f"- and {len(running) - _LISTED_PROCESSES} more")
    else:
        lines.append("Processes: none running")
    lines.append(f"Sandbox: {status.sandbox or 'chosen and proved when a command first needs it'}")
    return "\n".join(lines)


# -- models and tools -------------------------------------------------------------------------------------


def list_models(model: str, about: str, known: Sequence[str], listed: Iterable[str]) -> CommandResult:
    """Answer `/model`. `known` are the configured names and `listed` the further models that endpoints
    offer."""
    names = ", ".join(known) or "none configured"
    reply = f"This session uses {model}{about}. `/model NAME` changes it. Known: {names}."
    buttons = tuple(Button(name, f"/model {name}") for name in known[:BUTTONS])
    provider = model.partition("/")[0] + "/"
    further = sorted(listed, key=lambda name: not name.startswith(provider))  # its own first
    if further:
        rest = f" and {len(further) - _LISTED_MODELS} more" if len(further) > _LISTED_MODELS else ""
        reply += f"\nIts endpoints also list: {', '.join(further[:_LISTED_MODELS])}{rest}."
    return CommandResult(reply, buttons=buttons)


class NamedTools(msgspec.Struct, frozen=True):
    """The tools of a session by name, and all the tools that there are. `searched` are those that the model
    is not shown and finds with `tool_search`. `origin` returns where a tool comes from, `""` if it is gone.
    """

    used: tuple[str, ...]
    known: tuple[str, ...]
    origin: Callable[[str], str]
    searched: frozenset[str] = frozenset()

    def choose(self, wanted: Sequence[str]) -> tuple[str, ...] | str:
        """Return the tools that a person names one by one or by where they come from, or a text that says
        which name is unknown."""
        families = self._families(self.known)
        unknown = [name for name in wanted if name not in self.known and name not in families]
        if unknown:
            there = ", ".join((*families, *self.known[:_LISTED_TOOLS]))
            return f"There is no tool {unknown[0]!r}. There are: {there}."
        return tuple(name for each in wanted for name in families.get(each, (each,)))

    def lines(self, changed: Iterable[tuple[str, int]]) -> Iterator[str]:
        """Yield the tools by where they come from. `changed` are the MCP servers with changes that wait for
        approval, and how many."""
        yield from self.used_lines()
        for server, number in changed:
            changes = "1 change waits" if number == 1 else f"{number} changes wait"
            how = f"`talaria mcp approve {server}` on the gateway's machine shows what changed."
            yield spoken_afar(f"- mcp:{server}: {changes} for approval. {how}")
        used = frozenset(self.used)
        off = self._families([name for name in self.known if name not in used])
        yield from (f"- off, {origin}: {_list_names(names)}" for origin, names in off.items())

    def used_lines(self) -> Iterator[str]:
        """Yield the tools that the session has."""
        yield "Tools of this session, by where they come from:" if self.used else "This session has no tools."
        for origin, names in self._families(self.used).items():
            found = ", found with tool_search" if names[0] in self.searched else ""
            yield f"- {origin or 'not there any more'}{found}: {_list_names(names)}"

    def _families(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the names by where the tools come from; those that are gone are at the end."""
        families: dict[str, list[str]] = {}
        for name in names:
            families.setdefault(self.origin(name), []).append(name)
        return {origin: families[origin] for origin in sorted(families, key=lambda each: (not each, each))}


def _list_names(names: Sequence[str]) -> str:
    rest = len(names) - _LISTED_TOOLS
    return ", ".join(names[:_LISTED_TOOLS]) + (f" and {rest} more" if rest > 0 else "")


class WindowUse(msgspec.Struct, frozen=True):
    """The tokens of a request by kind, the size of the window, and the size at which the conversation is
    compacted. The summary in force stands for the entries up to `floor`, 0 without one. `is_estimate` says
    that no provider has counted a request of the session yet."""

    parts: tuple[tuple[str, int], ...]
    window: int
    at: int
    floor: int = 0
    is_estimate: bool = False

    @property
    def used(self) -> int:
        return sum(tokens for _, tokens in self.parts)


def describe_window(use: WindowUse) -> str:
    """Answer `/context`: a bar and a line for each kind."""
    share = round(use.used * 100 / use.window)
    about = "an estimate" if use.is_estimate else "counted by the provider"
    head = (
        f"The next request takes about {use.used:,} of {use.window:,} tokens ({share} %), {about}. "
        f"At {use.at:,} the conversation is compacted; `/compact` does it now."
    )
    rows = [*use.parts, ("free", max(0, use.window - use.used))]
    most = max(tokens for _, tokens in rows)
    lines = [f"{name:<10}{tokens:>9,}  {_bar(tokens, most)}".rstrip() for name, tokens in rows]
    tail = f"\nA summary stands for the first {use.floor} entries of the log." if use.floor else ""
    return f"{head}\n```\n{chr(10).join(lines)}\n```{tail}"


def _bar(tokens: int, most: int) -> str:
    length = round(tokens * _BAR_WIDTH / most) if most else 0
    return "█" * max(length, 1 if tokens else 0)


# -- money, memory and trust ------------------------------------------------------------------------------


def describe_usage(account: Account, model: str) -> str:
    """Answer `/usage` in a session with this model."""
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
        command = spoken_afar(price_command(model))
        lines.append(f"On the gateway's machine {command} sets a price, in dollars for a million tokens.")
    if account.caps:
        caps = ", ".join(_CAPS[cap.scope].format(show_usd(cap.limit)) for cap in account.caps)
        reserved = f" {show_usd(spending.reserved)} is set aside for calls under way."
        lines.append(
            f"Caps: {caps}. The day ends at {account.resets}.{reserved if spending.reserved else ''}"
        )
    return "\n".join(lines)


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


def show_memory(pages: Sequence[PageContent], usage: str) -> CommandResult:
    """Answer `/memory`."""
    parts = [
        f"{content.page} ({content.size} of {content.page.max_bytes} bytes)\n"
        f"{content.trouble or content.text or 'Nothing is remembered.'}"
        for content in pages
    ]
    clears = {MemoryPage.MEMORY: "/memory clear", MemoryPage.USER: "/memory user clear"}
    buttons = [Button(f"Clear {each.page}", clears[each.page]) for each in pages if each.text]
    return CommandResult("\n\n".join([*parts, f"`{usage}` changes it."]), buttons=tuple(buttons))


def describe_taint(taint: Taint | None, stamp: Callable[[float], str]) -> str:
    """Answer `/trust`: say whether the chat folder is trusted; `stamp` writes a time."""
    if taint is None:
        return "The chat folder is trusted: no untrusted content has entered it."
    return (
        f"The chat folder may contain untrusted content since {stamp(taint.since)} (source: {taint.source}). "
        "After the agent reads a file or runs a command here, it asks you before it writes to memory, "
        "creates a job, messages another chat or opens an address that nobody has shown. "
        "If you have checked the files, `/trust clear` trusts them again."
    )


# -- the replies of `/undo` and `/diff` about files -------------------------------------------------------
# Pure. A reply fits into a message of a chat platform.


_NAMED = 10  # paths of one kind that are named
_ALL_CHARS = 3000
_ONE_CHARS = 12_000  # for a single path, which a person asked for
_LINE_CHARS = 300
_FENCE = "```"

NO_COPIES = "Files stay as they are: this gateway keeps no copies of them."
_OTHER_EFFECTS = "Other effects of tools stay as they are."


def describe_undo(report: UndoReport) -> str:
    """Say which files were put back or removed, which were not and why, and what was not covered."""
    if not report.turns:
        return f"No files were changed. {_OTHER_EFFECTS}"
    lines = [_OTHER_EFFECTS]
    back = [path for path in report.restored if path not in set(report.removed)]
    for what, paths in (("Put back", back), ("Removed", report.removed)):
        if paths:
            lines.append(f"{what}: {_named(map(_quoted, paths), len(paths))}.")
    if not report.restored and not report.kept:
        lines.append("No files were changed.")
    if report.kept:
        lines.append(f"Not put back: {_named(map(_explained, report.kept), len(report.kept))}.")
    if report.uncovered:
        lines.append(_describe_uncovered(report.uncovered))
    return "\n".join(lines)


def describe_diff(diff: TurnDiff | None, path: str = "") -> str:
    """Show what a turn did to files; `path` chooses one of them."""
    if diff is None:
        return "No turn of this session has changed files."
    wanted = path.removeprefix("./").rstrip("/")
    files = [file for file in diff.files if not wanted or file.path == wanted]
    if not files:
        names = _named((_quoted(file.path) for file in diff.files), len(diff.files))
        return f"The last turn that changed files did nothing to {_quoted(path)}. It changed {names}."
    head = [_describe_file(file) for file in files[:_NAMED]]
    if len(files) > _NAMED:
        head.append(f"- and {len(files) - _NAMED} more")
    lines = [line for file in files for line in _diff_lines(file, with_head=len(files) > 1)]
    parts = ["\n".join(["The last turn that changed files did this:", *head])]
    if lines:
        parts.append(_fenced(lines, _ONE_CHARS if wanted else _ALL_CHARS))
    if diff.uncovered:
        parts.append(_describe_uncovered(diff.uncovered))
    return "\n\n".join(parts)


def _describe_file(file: FileDiff) -> str:
    counts = f"+{file.added} −{file.removed}" if file.lines else ""
    about = ", ".join(each for each in (file.kind, counts, file.note) if each)
    return f"- {_quoted(file.path)}: {about}"


def _diff_lines(file: FileDiff, *, with_head: bool) -> Iterable[str]:
    if not file.lines:
        return
    if with_head:
        yield f"--- {'/dev/null' if file.kind is ChangeKind.CREATED else file.path}"
        yield f"+++ {'/dev/null' if file.kind is ChangeKind.DELETED else file.path}"
    yield from file.lines


def _fenced(lines: Sequence[str], most_chars: int) -> str:
    """Return a code block with as many lines as fit. A fence in the text does not end the block."""
    shown: list[str] = []
    room = most_chars
    for line in (cut(each, _LINE_CHARS) for each in lines):
        room -= len(line) + 1
        if room < 0:
            break
        shown.append(line)
    fence = _FENCE
    while any(line[1:].lstrip().startswith(fence) for line in shown):
        fence += "`"
    rest = len(lines) - len(shown)
    note = f"\n{rest} more {'line' if rest == 1 else 'lines'}; `/diff PATH` shows more of one file."
    return "\n".join([f"{fence}diff", *shown, fence]) + (note if rest else "")


def _describe_uncovered(uncovered: Sequence[KeptPath]) -> str:
    return f"Not covered: {_named(map(_explained, uncovered), len(uncovered))}."


def _named(texts: Iterable[str], count: int) -> str:
    named = [text for text, _ in zip(texts, range(_NAMED), strict=False)]
    return ", ".join(named) + (f" and {count - len(named)} more" if count > len(named) else "")


def _explained(kept: KeptPath) -> str:
    return f"{_quoted(kept.path)} ({kept.reason})"


def _quoted(path: str) -> str:
    short = path if len(path) <= _LINE_CHARS else f"…{path[-_LINE_CHARS:]}"
    return f"`{short.replace('`', '´')}`"
