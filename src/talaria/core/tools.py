"""The types of tools: a frozen description and a handler, the handler's context and its result."""

from __future__ import annotations

from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, TypeVarTuple, runtime_checkable

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import Content
from talaria.core.questions import Decision, QuestionDraft
from talaria.core.redaction import Redactor
from talaria.core.turns import Sender

if TYPE_CHECKING:
    from talaria.core.ports import WorkspaceHandle

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SEND_FILE = "send_file"  # its calls that went well are files of the reply
SKILL_TOOL = "skill"  # reads skills; a session without it is not told of them
TOOL_SEARCH, TOOL_CALL = "tool_search", "tool_call"  # the way to tools that a session is not shown
MAX_SENT_BYTES = 50 << 20
NO_CHAT, NOBODY, NO_SESSION = ChatKey(""), Sender(""), SessionId("")  # of a call outside of a turn


class Risk(StrEnum):
    """How much a call can do: `NONE` reads, `FILES` writes in the chat's folder, `HIGH` runs only after a
    person has approved it."""

    NONE = "none"
    FILES = "files"
    HIGH = "high"


class ToolSpec(msgspec.Struct, frozen=True):
    """The description of a tool.

    The model is told `name`, `description` and `parameters`, which is a JSON schema as canonical JSON text,
    so that it cannot be changed in place. `timeout` is the time limit of a call; None means
    `[tools] call_timeout`. A tool that `asks` is an `AskingTool`. Results of an `untrusted` tool are content
    from outside. A tool that `runs_commands` needs an approval where there is no sandbox. A tool that
    `reaches_out` (it writes to memory, makes a job, writes to another chat) needs one after untrusted content
    has entered the conversation. A tool that does not use files leaves the workspace alone, so a chat
    that calls no other can move to another machine. Results of a tool that `reads_files` may contain what is
    in files or what a command printed, so they are untrusted in a tainted folder. `origin` says where the
    tool comes from, such as `mcp:files`; the name of its source if it is empty. A model is not told it.
    """

    name: str
    description: str
    parameters: str
    risk: Risk = Risk.NONE
    idempotent: bool = False
    read_only: bool = False
    timeout: timedelta | None = None
    asks: bool = False
    untrusted: bool = False
    runs_commands: bool = False
    reaches_out: bool = False
    origin: str = ""
    uses_files: bool = True
    reads_files: bool = True

    @property
    def writes_files(self) -> bool:
        """Whether a call may change files of the workspace, so that they are copied before it."""
        return self.risk is not Risk.NONE and not self.read_only


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


class FileQuota(Protocol):
    """The room of chats' folders. Both methods block and may be called in any thread."""

    def charge(self, root: Path, size: int, files: int) -> None:
        """Count so many more bytes and files in the folder `root`. Raises `ToolError` if there is no room."""
        ...

    def refund(self, root: Path, size: int, files: int) -> None:
        """Count so much less."""
        ...


class CallResources(Protocol):
    """The resources of the process that a call may use. Each is limited, and chats take turns at it, so that
    one chat cannot keep the others waiting. A wait counts towards the call's time limit."""

    @property
    def quota(self) -> FileQuota: ...

    async def in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking function in a thread for tools. It goes on to its end if the call is cancelled."""
        ...

    async def computing(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a function that computes for long. Only one such function runs at a time in the process."""
        ...

    def command(self) -> AbstractAsyncContextManager[None]:
        """Hold one of the slots for commands of shells inside the block. Entering waits for it."""
        ...

    def child_time(self) -> AbstractAsyncContextManager[None]:
        """Hold one of the slots for child processes inside the block, whose time counts for the turn.
        Entering waits for it. Raises `ToolError` if the turn has used up its time."""
        ...

    def child(self, *command: str) -> AbstractAsyncContextManager[Process]:
        """Run a program inside the block, with pipes for stdin and stdout and an empty environment. It has
        ended when the block has. Its stderr is a pipe that is closed when the gateway dies."""
        ...


class SessionTrust(Protocol):
    """How far the context of a session, and the folder that it works in, can be trusted."""

    async def is_tainted(self) -> bool:
        """Return whether untrusted content is in the visible context: a result of an `untrusted` tool, or
        a file that was sent. An undo takes it back."""
        ...

    async def may_open(self, url: str, call_id: str) -> bool:
        """Return whether this call may open the address without asking a person: see `access.egress`."""
        ...

    async def is_granted(self, digest: str) -> bool:
        """Return whether a person granted this to the session."""
        ...

    async def is_folder_tainted(self) -> bool:
        """Return whether untrusted content may be in the folder. An undo or a new session changes nothing."""
        ...

    async def taint_folder(self, source: str) -> None:
        """Mark the folder as tainted, because untrusted content may get there now. `source` says how, such as
        the name of a tool."""
        ...


class NoTrust:
    """`SessionTrust` of a context about which nothing is known."""

    async def is_tainted(self) -> bool:
        return True

    async def may_open(self, url: str, call_id: str) -> bool:
        return False

    async def is_granted(self, digest: str) -> bool:
        return False

    async def is_folder_tainted(self) -> bool:
        return True

    async def taint_folder(self, source: str) -> None:
        """It is tainted already."""


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
    them out itself: `redactor.stream()` finds them in a text that comes in parts.

    `trust` says what the session's context has seen. A handler calls `distrust` if its result is untrusted
    content although its tool is not `untrusted`, and `offer_links` with the addresses that its result offers
    to be opened next.

    `chat_key` is the chat of the turn, or the one that asked for the job that runs. `sender` is the person
    who asked. Nobody attends an unattended turn. `ask_model` makes a model call beside the answer, on the
    turn's budget.

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
    workspace: WorkspaceHandle
    scope: CallScope
    emit: Callable[[str], None]
    resources: CallResources
    decision: Decision | None = None
    redactor: Redactor = field(default_factory=Redactor)
    trust: SessionTrust = field(default_factory=NoTrust)
    distrust: Callable[[], None] = lambda: None
    offer_links: Callable[[Sequence[str]], None] = lambda links: None
    chat_key: ChatKey = NO_CHAT
    sender: Sender = NOBODY
    is_unattended: bool = False
    ask_model: AskModel = no_model

    @property
    def folder(self) -> Path:
        """The chat's folder. It may not exist yet."""
        return self.workspace.folder


class Tool(Protocol):
    """`run` returns what the model gets: a text, or parts. `ToolError` is a failure that the model should
    read. Parts have limits of their own; what is over them is replaced by a note."""

    @property
    def spec(self) -> ToolSpec: ...

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Content: ...


@runtime_checkable
class AskingTool(Protocol):
    """A tool that puts a question of its own to a person before a call runs. Its spec says that it `asks`.

    The turn is parked meanwhile: it holds no lease and no permit. `run` then finds the person's answer in
    `context.decision`. For a tool with `Risk.HIGH` a person is asked to approve the call instead.
    """

    def question(self, arguments: dict[str, Any]) -> QuestionDraft | None:
        """Return the question; None if this call needs none. Does not block."""
        ...


@runtime_checkable
class ResumedTool(Protocol):
    """A tool of which a call may end with a question to a person. The same call, made again in the session,
    puts the question first, and then finds the answer in `context.decision`."""

    def open_question(self, arguments: dict[str, Any], session_id: SessionId) -> QuestionDraft | None:
        """Return the question that this call ended with; None if there is none. Does not block."""
        ...


@runtime_checkable
class MixedTool(Protocol):
    """A tool of which some calls only read, although its spec is not `read_only`."""

    def only_reads(self, arguments: dict[str, Any]) -> bool:
        """Return whether a call with these arguments changes nothing. Does not block."""
        ...


@runtime_checkable
class ForeignTool(Protocol):
    """A tool of which some calls act on what is not the person's own, which needs an approval."""

    def is_foreign(self, arguments: dict[str, Any], chat_key: ChatKey, sender: Sender) -> bool:
        """Return whether a call for `sender` in `chat_key` does so. Does not block."""
        ...


@runtime_checkable
class OpeningTool(Protocol):
    """A tool that opens an address which the model chose. What is in the address reaches its host, so in a
    tainted session a person approves an address that nobody has shown."""

    def address(self, arguments: dict[str, Any]) -> str:
        """Return the address that a call with these arguments opens. Does not block. Raises `ToolError`."""
        ...


class ToolSource(Protocol):
    """A place that tools come from: a built-in family, an MCP server, a plug-in.

    A built-in source is used if `tools.enabled` names it. Any other source is used as long as it is there; it
    gives its tools names that are unique, for example with a prefix of its own.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_builtin(self) -> bool: ...

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools as of now. Does not block."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the event loop whenever `tools` would return something else than before."""
        ...


class Findable(msgspec.Struct, frozen=True):
    """An entry that `tool_search` finds beside tools, such as a skill. `tool` is the tool that takes its
    name; a session without that tool does not find it."""

    name: str
    description: str
    tool: str


@runtime_checkable
class FindableSource(Protocol):
    """A `ToolSource` that has more than its tools to be found. A session gets `tool_search` if there is
    any."""

    def findables(self) -> tuple[Findable, ...]:
        """Return what is found as of now. Does not block. `subscribe` announces its changes too."""
        ...


@runtime_checkable
class SectionSource(Protocol):
    """A `ToolSource` about which the prompt of a session says something, which is frozen with its spec."""

    @property
    def name(self) -> str: ...

    def section(self) -> str:
        """Return the section as of now; empty for none. Does not block. May announce a change to those that
        have subscribed, so it is called before `tools`."""
        ...
