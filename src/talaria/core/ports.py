"""The ports between layers, wired in `app`; the ports of the store are in `core.store_ports`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from talaria.core.background import Processes
from talaria.core.delivery import OutgoingMessage
from talaria.core.events import Event, ModelLoading
from talaria.core.file_changes import TurnDiff, UndoReport
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.ledger import (
    UsageWrite,
)
from talaria.core.messages import Message
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.core.shells import Shell
from talaria.core.specs import Prefix
from talaria.core.spending import PlannedCall
from talaria.core.tools import ToolSpec
from talaria.core.turns import Turn


class Budget(Protocol):
    """The money of one turn."""

    async def reserve(self, call: PlannedCall) -> None:
        """Reserve the most that a call can cost; to be called before each attempt. One of the other methods
        then tells how the attempt ended, also if `reserve` was cancelled.

        Raises `OverBudget` if a cap forbids the call, which must not be made then.
        """
        ...

    def longest_output(self, call: PlannedCall, spent: int) -> int | None:
        """Return how many tokens the answer may have, None for as many as the model gives. `spent` is what
        the turn has cost. The run of a job gets shorter answers as its cap comes near."""
        ...

    def charge(self, completion: Completion) -> UsageWrite:
        """Return the usage of the attempt, which ended with this answer, with its cost."""
        ...

    def charge_cut(self, output_bytes: int, *, has_reasoned: bool) -> UsageWrite:
        """Return an estimate of the usage of the attempt, which was sent and did not end, with its cost."""
        ...

    def release(self) -> tuple[int, int] | None:
        """Return the step and the number of the attempt, which was not sent, if money may be reserved."""
        ...


class WireFormat(Protocol):
    """The format in which a provider's API takes a conversation. The encoding of a message does not depend on
    its position, so that the bytes of a request are a prefix of those of later requests."""

    @property
    def name(self) -> str: ...

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix: ...

    def encode(self, message: Message) -> bytes:
        """Return one or more JSON objects, joined by commas."""
        ...


class Model(Protocol):
    """An endpoint at which models are called.

    `complete` streams deltas to `sink` and returns the whole answer. It raises `ModelError`, of the kind
    `EndpointResting` if no call was made. When it is cancelled, it closes its connection before it ends.
    Before any exception leaves it, `sink` gets `CallCut` if a byte of the request may have been sent.
    """

    @property
    def max_retries(self) -> int:
        """The number of further tries for a call that failed for a passing reason."""
        ...

    @property
    def retry_within(self) -> float:
        """The seconds after the first try within which every further try must begin its answer."""
        ...

    @property
    def is_resting(self) -> bool:
        """Whether a call would be refused now without being made, because too many have failed in a row."""
        ...

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion: ...


class Models(Protocol):
    """The models of this process by provider name. Raises `NoModel` for a provider that cannot be used."""

    def wire(self, provider: str) -> WireFormat:
        """Return the format of the provider's requests, without connecting to it."""
        ...

    def get(self, provider: str) -> Model: ...

    def credential(self, provider: str) -> str:
        """Return the fingerprint of the provider's current secrets."""
        ...


class PendingModels(Protocol):
    """The models that are being downloaded to this machine. A turn waits for its model before it begins, so
    the wait counts neither as an attempt nor towards the turn's time limit."""

    @property
    def is_any(self) -> bool:
        """Whether a download is pending. Cheap."""
        ...

    def is_coming(self, provider: str, model: str) -> bool: ...

    async def arrival(self, tell: Callable[[ModelLoading], None]) -> bool:
        """Wait until no download is pending; `tell` its progress. Return False if `let_go` ended the wait."""
        ...

    def let_go(self) -> None:
        """End every wait, because the gateway shuts down."""
        ...


class TurnFeed(Protocol):
    """A running turn, for the channel that shows it.

    `shown_id` is the platform's id of the message that already shows the turn, from this attempt or from one
    before a restart.
    """

    @property
    def turn(self) -> Turn: ...

    @property
    def shown_id(self) -> str | None: ...

    @property
    def is_ours(self) -> bool:
        """Whether this gateway still has the channel. False at once in a process that was stopped for so long
        that another one took the channel over; it must not draw over that one's messages."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """Yield the events from first to final. Ends early if this process lets go of the turn."""
        ...

    async def shown(self, platform_id: str) -> None:
        """Store the id of the message that shows the turn; the final reply will be an edit of it."""
        ...

    async def question_message(self, question_id: QuestionId) -> str | None:
        """Return the platform's id of the message that already shows the question, or None."""
        ...

    async def question_shown(self, question_id: QuestionId, platform_id: str) -> None:
        """Store the id of the message that shows the question."""
        ...


class Outlet(Protocol):
    """The sending side of a channel. An address is the one that the channel wrote into `Inbound`."""

    @property
    def takes_nonce(self) -> bool:
        """Whether the platform drops a second message with the same nonce."""
        ...

    def split(self, reply: str) -> Iterator[str]:
        """Yield the messages in which a reply is sent, each within the platform's limit. Pure.

        Each step is short, whatever the length of the reply. It may yield an empty text, which is no message.
        """
        ...

    async def deliver(self, post: OutgoingMessage) -> str:
        """Send the message, or edit an earlier one, and return the platform's id of it. Raises the kind of
        `DeliveryError` that fits; any other exception counts as `DeliveryUnknown`."""
        ...

    async def show(self, view: TurnFeed) -> None:
        """Show a turn while it runs: that it types, its tool calls, and its text as it comes. The reply is
        delivered after this has ended or was cancelled. An error here ends only the showing."""
        ...


class WorkspaceHandle(Protocol):
    """The access of an agent and its tools to a session's workspace. A handle cannot end the workspace.

    Nothing is opened before it is used. The session's working directory, environment, background processes
    and browser outlive the handle: the next handle finds them again.
    """

    @property
    def session_id(self) -> SessionId: ...

    @property
    def folder(self) -> Path:
        """The folder of the chat's files; made when a tool first needs it."""
        ...

    @property
    def is_project(self) -> bool:
        """Whether that folder is a project's, which people use beside the chat."""
        ...

    @property
    def shell(self) -> Shell:
        """The session's shell. It starts nothing before a command is run."""
        ...

    @property
    def processes(self) -> Processes:
        """The session's background processes."""
        ...

    async def claim(self) -> None:
        """Note that the chat has files on this machine, before there are any. The gateway does so before a
        call of a tool that uses files. Raises `ToolError` if its files are on another machine of the
        cluster."""
        ...

    def release(self) -> Coroutine[Any, Any, None] | None:
        """Give the handle back, because the agent leaves memory. The session goes on. Return a coroutine for
        the work that is left, or None; cancelling it loses nothing of the session."""
        ...


class Checkpoints(Protocol):
    """Copies of a workspace's files around the calls of a turn, so that what a turn did can be taken back."""

    async def before_write(self, turn_id: TurnId, workspace: WorkspaceHandle) -> None:
        """Copy what is new in the folder, because a call of the turn may write now. Raises nothing but
        `CancelledError`; what could not be copied is told by `undo`."""
        ...

    async def after_write(self, turn_id: TurnId, workspace: WorkspaceHandle) -> None:
        """Record what the call left. Also for a call that a kill ended; if this is not called for it, `undo`
        and the turn's next call do the same. Raises nothing but `CancelledError`."""
        ...

    async def undo(self, workspace: WorkspaceHandle, turn_ids: Sequence[TurnId]) -> UndoReport:
        """Put back the files that these turns of the workspace's session changed, the newest turn first. A
        file that is not what the turn left stays. May be repeated. Raises `OSError`."""
        ...

    async def last_diff(self, workspace: WorkspaceHandle) -> TurnDiff | None:
        """Return what the last turn that changed files did; None if no turn of the session did. Raises
        `OSError`."""
        ...

    def prune(self, now: float, kept_since: float) -> None:
        """Forget turns from before `kept_since`, and what is beyond the limits. Blocks."""
        ...


class Workspaces(Protocol):
    """The workspaces that tools act on. Files belong to the chat, the rest to the session. Owned by `app`."""

    def open(self, session_id: SessionId, chat_key: ChatKey) -> WorkspaceHandle:
        """Return a handle for an agent of this session. Cheap: it touches no disk and starts no process."""
        ...

    async def end(self, session_id: SessionId) -> None:
        """Stop the processes of a session that is over and close its browser, if it has any. The files, the
        working directory and the environment stay, for when the session is resumed. It may be resumed before
        this returns, so processes that are started afterwards must be left alone."""
        ...

    async def forget(self, session_id: SessionId) -> None:
        """End a session that was deleted, and remove all that was kept for it."""
        ...

    async def kept(self) -> Sequence[SessionId]:
        """Return the sessions for which something is kept, deleted ones among them if their removal was cut
        short."""
        ...

    async def close(self) -> None:
        """Let go of everything without ending a session. Whatever can outlive the gateway goes on."""
        ...


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A connection that a command of a session wants. `host` is a name in lower case or an address, as
    `net.addresses.parse_host` returns it. Nobody waits for a background process, so it cannot be held."""

    session_id: SessionId
    host: str
    port: int
    is_background: bool = False


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The answer to a `HostRequest`. `reason` is a sentence for the command that asked, if it is refused."""

    is_admitted: bool
    reason: str = ""


class HostGate(Protocol):
    """Decides which hosts the commands of a session reach. The address is checked apart from this."""

    async def admit(self, request: HostRequest) -> HostAnswer:
        """Return the answer, after a person was asked if that is needed."""
        ...


class HostAsker(Protocol):
    """Asks a person about a host that no rule admits."""

    async def ask(self, request: HostRequest) -> HostAnswer:
        """Ask, and return the answer. A host that is granted to the session already is admitted at once.

        The caller waits for a limited time and then cancels this call; the question stays open for the
        session. For a background process the call refuses at once, and leaves the question open.
        """
        ...
