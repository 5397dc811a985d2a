"""The types that tools are made of: a handler, its context, and the sources that tools come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from talaria.core.delegates import Delegate
from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.memory import EditOrigin, MemoryEdit, MemoryPlace, PageContent, TurnMemory
from talaria.core.messages import Content
from talaria.core.questions import Decision, QuestionDraft
from talaria.core.redaction import Redactor
from talaria.core.tools import NO_CHAT, NOBODY, ToolSpec
from talaria.core.turns import Sender

if TYPE_CHECKING:
    from talaria.commands.command import ExtraCommand
    from talaria.observe.metrics import ServerReading
    from talaria.tools.workers import TurnResources
    from talaria.workspace.folder import Folder
    from talaria.workspace.workspaces import ChatWorkspace


class CallScope:
    """The time that one call has. All methods may be called from any thread.

    A handler that awaits needs none of this: its task is cancelled when its time is over. A handler that
    blocks in a thread cannot be cancelled and should poll `is_cancelled`.
    """

    __slots__ = ("_clock", "_deadline", "_is_cancelled")

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._deadline = clock() + seconds
        self._is_cancelled = False

    def remaining(self) -> float:
        """Return the seconds until the call's time limit; 0 when it has passed."""
        return max(0.0, self._deadline - self._clock())

    def is_cancelled(self) -> bool:
        """Return whether the turn was stopped or the time limit has passed. What the handler emits, returns
        or raises from then on is dropped."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Mark the call as cancelled. The gateway does so when it no longer waits for the handler."""
        self._is_cancelled = True


class SessionTrust:
    """How far the context of a session, and the folder that it works in, can be trusted. This class is for a
    context about which nothing is known: it trusts nothing."""

    async def is_tainted(self) -> bool:
        """Return whether untrusted content is in the visible context: a result of an `untrusted` tool, or
        a file that was sent. An undo takes it back."""
        return True

    async def may_open(self, url: str, call_id: str) -> bool:
        """Return whether this call may open the address without asking a person: see `access.egress`."""
        return False

    async def has_written(self, text: str) -> bool:
        """Return whether the person wrote this text in a message of the session."""
        return False

    async def is_granted(self, digest: str) -> bool:
        """Return whether a person granted this to the session."""
        return False

    async def is_folder_tainted(self) -> bool:
        """Return whether untrusted content may be in the folder. An undo or a new session changes nothing."""
        return True

    async def taint_folder(self, source: str) -> None:
        """Mark the folder as tainted, because untrusted content may get there now. `source` says how, such as
        the name of a tool."""


AskModel: TypeAlias = Callable[[str, str, int], Awaitable[str]]
"""A model call beside the answer: instructions, a text, and the most tokens of what is returned. Raises
`TalariaError`, for example `OverBudget`."""


async def no_model(instructions: str, text: str, max_output: int) -> str:
    raise TalariaError("There is no model to ask here.")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a call: the things that its handler may know and use.

    `workspace` is the session's workspace: the chat's files, and whatever else belongs to the session. The
    handle cannot end anything that outlives the call. `decision` is what a person decided about this call,
    if a person was asked before it started; a handler itself never waits for a person. `resources` are its
    threads and child processes.

    `emit(text)` shows a piece of output while the call runs, as an event `tool.output`. It returns at once
    and may be called from any thread. Output is for people who watch the turn: the model sees only what the
    handler returns. A call can emit a bounded number of bytes; the rest is dropped with a note.

    Secrets are taken out of what is emitted and of the result. A handler that writes output to a file takes
    them out itself: `redactor.stream()` finds them in a text that comes in parts. It then emits and returns
    the text as `Redacted`, so that it is not searched again.

    `trust` says what the session's context has seen. A handler calls `distrust` if its result is untrusted
    content although its tool is not `untrusted`, and `offer_links` with the addresses that its result offers
    to be opened next.

    `chat_key` is the chat of the turn, or the one that asked for the job that runs. `sender` is the person
    who asked. Nobody attends an unattended turn. `ask_model` makes a model call beside the answer, on the
    turn's budget. `delegates` are those that the call has waited for.

    When the turn stops (a person stopped it, its time limit passed, the gateway shuts down or lost the
    session) or the call's own time limit passes:

    - The handler gets one `asyncio.CancelledError` at the await where it is. It may clean up, and should do
      so within seconds, because the turn ends only after the handler has. It then raises the error again.
    - A handler that swallows the error gains nothing when the turn stops: its result is dropped and the turn
      ends. At its own time limit, a handler that returns a result instead gives that result to the model.
    - A function in a thread goes on until it returns. `scope.is_cancelled()` tells it to stop.
    - After the turn was stopped by a person or its time limit, the model reads that the call was cancelled.
      After a shutdown or a crash the call is run again if the tool is `idempotent`; otherwise the model
      reads that the outcome is unknown.
    """

    session_id: SessionId
    turn_id: TurnId
    call_id: str
    workspace: ChatWorkspace
    scope: CallScope
    emit: Callable[[str], None]
    resources: TurnResources
    decision: Decision | None = None
    redactor: Redactor = field(default_factory=Redactor)
    trust: SessionTrust = field(default_factory=SessionTrust)
    distrust: Callable[[], None] = lambda: None
    offer_links: Callable[[Sequence[str]], None] = lambda links: None
    chat_key: ChatKey = NO_CHAT
    sender: Sender = NOBODY
    is_unattended: bool = False
    ask_model: AskModel = no_model
    delegates: Sequence[Delegate] = ()

    @property
    def folder(self) -> Path:
        """The chat's folder. It may not exist yet."""
        return self.workspace.folder

    def open_folder(self) -> Folder:
        """Return the chat's folder. Writes count towards the chat's quota."""
        from talaria.workspace.folder import Folder  # noqa: PLC0415 - parts import this module

        return Folder(self.folder, self.resources.quota, private=not self.workspace.is_project)


class Tool:
    """A tool. A subclass has a `spec` and `run`; the other methods decide what happens before a call runs.
    None of them blocks. `may_ask`, `opens_addresses` and `tells_hosts` follow from the methods of a subclass.
    """

    __slots__ = ()

    spec: ToolSpec
    may_ask: bool = False
    opens_addresses: bool = False
    tells_hosts: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.may_ask = cls.is_foreign is not Tool.is_foreign or cls.open_question is not Tool.open_question
        cls.opens_addresses = cls.address is not Tool.address
        cls.tells_hosts = cls.told is not Tool.told

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Content:
        """Return what the model gets: a text, or parts. Parts have limits of their own; what is over them is
        replaced by a note. Raises `ToolError` for a failure that the model should read."""
        raise NotImplementedError

    def question(self, arguments: dict[str, Any]) -> QuestionDraft | None:
        """Return the tool's own question to a person before this call runs; None if the call needs none.
        Called if the spec says that the tool `asks`.

        The turn is parked meanwhile: it holds no lease and no permit. `run` then finds the person's answer in
        `context.decision`. For a tool with `Risk.HIGH` a person is asked to approve the call instead.
        """
        raise NotImplementedError

    def open_question(self, arguments: dict[str, Any], session_id: SessionId) -> QuestionDraft | None:
        """Return the question that this call ended with when the session last made it; None if there is none.
        The repeated call puts this question first, and then finds the answer in `context.decision`."""
        return None

    def shown(self, arguments: dict[str, Any], session_id: SessionId) -> tuple[dict[str, Any], str]:
        """Return the arguments as a person who is asked about the call may see them, with passwords masked,
        and a line that says where the call acts, or an empty text."""
        return arguments, ""

    def only_reads(self, arguments: dict[str, Any]) -> bool:
        """Return whether this call changes nothing, although the spec is not `read_only`."""
        return False

    def is_foreign(self, arguments: dict[str, Any], chat_key: ChatKey, sender: Sender) -> bool:
        """Return whether a call for `sender` in `chat_key` acts on something that is not the person's own.
        Such a call needs an approval."""
        return False

    def address(self, arguments: dict[str, Any]) -> str:
        """Return the address that a call with these arguments opens. Raises `ToolError`.

        The host learns everything that is in the address. So in a tainted session, a person must approve an
        address that nobody has shown.
        """
        raise NotImplementedError

    def told(self, arguments: dict[str, Any]) -> str:
        """Return the text that a call tells a host, such as what it types into a page. In a tainted session,
        a person must approve a text that they have not written themselves."""
        raise NotImplementedError


class Findable(msgspec.Struct, frozen=True):
    """An entry that `tool_search` finds beside tools, such as a skill. `tool` is the tool that takes its
    name; a session without that tool does not find it."""

    name: str
    description: str
    tool: str


class ToolSource:
    """A place that tools come from: a built-in family, an MCP server, a plug-in. No method blocks.

    A built-in source is used if `tools.enabled` names it. Any other source is used as long as it is there; it
    gives its tools names that are unique, for example with a prefix of its own. `has_section` tells whether a
    subclass has `section`.
    """

    __slots__ = ()

    name: str
    is_builtin: bool = False
    has_section: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.has_section = cls.section is not ToolSource.section

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools as of now."""
        return ()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the event loop whenever `tools` or `findables` would return something else than
        before. Without this method, the source never changes."""

    def findables(self) -> tuple[Findable, ...]:
        """Return what `tool_search` finds besides the tools, as of now. A session gets `tool_search` if there
        is any."""
        return ()

    def section(self) -> str:
        """Return the text about the source for the prompt of a new session, as of now. The text is frozen
        with the session's spec. May announce a change to subscribers, so it is called before `tools`."""
        return ""

    def commands(self) -> Iterable[ExtraCommand]:
        """Return the slash commands that the source adds, as of now. Cheap."""
        return ()

    def start(self) -> None:
        """Start the servers of the source, if it has any. Does not wait for them."""

    def servers(self) -> Mapping[str, ServerReading]:
        """Return how each server of the source is now. Quick."""
        return {}


class BuiltinSource(ToolSource):
    """A source that ships with Talaria. The gateway closes it when it stops."""

    __slots__ = ()

    is_builtin = True

    def close(self) -> None:
        """Release threads and connections."""


class MemoryProvider(ToolSource):
    """The part that remembers. It is the source of the tool family `memory`.

    The gateway puts `prompt` into the prefix of new sessions and tells running ones of its changes, line by
    line. A provider that `follows_turns` is also asked before a turn and told after it.
    """

    is_builtin: bool = True
    follows_turns: bool = False

    def prompt(self, place: MemoryPlace) -> str:
        """Return what a new session of the place is told. It has no secrets. Called for each message, so it
        must be cheap; raises nothing."""
        raise NotImplementedError

    async def pages(self, place: MemoryPlace) -> tuple[PageContent, ...]:
        """Return all that is remembered, for people to read."""
        raise NotImplementedError

    async def edit(self, place: MemoryPlace, edit: MemoryEdit, origin: EditOrigin) -> str:
        """Carry out an edit, and return what became of it, in words. Durable when it returns. Raises
        `ToolError` with the reason if nothing was changed."""
        raise NotImplementedError

    async def prefetch(self, turn: TurnMemory) -> str:
        """Return what the model should read before it answers the turn; empty for nothing."""
        return ""

    async def sync(self, turn: TurnMemory, answer: str) -> None:
        """Take a turn in that has ended. Called again with the same turn after a crash. Turns with untrusted
        content, and turns that nobody attends, are not told."""
