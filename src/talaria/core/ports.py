"""The ports between layers, wired in `app`; the ports of the store are in `core.store_ports`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from talaria.core.delivery import OutgoingMessage
from talaria.core.events import Event, ModelLoading
from talaria.core.ids import ChatKey, SessionId
from talaria.core.ledger import (
    UsageWrite,
)
from talaria.core.messages import Message, TokenUsage
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.core.specs import Prefix
from talaria.core.spending import PlannedCall
from talaria.core.tools import ToolSpec
from talaria.core.turns import Turn


class Budget(Protocol):
    """The money of one turn."""

    async def reserve(self, call: PlannedCall) -> None:
        """Before each try of a call: set aside the most it can cost. A further try of the same step takes the
        place of the one before. It is settled by the commit that has the call's usage, and released by the
        turn's end. Raises `OverBudget` when a cap forbids it: the call must not be made then."""
        ...

    def charge(self, n: int, provider: str, model: str, tokens: TokenUsage) -> UsageWrite:
        """What a call used, priced."""
        ...


class WireFormat(Protocol):
    """How one provider API writes a conversation. Encoding depends on the message alone, never on where it
    stands, so that bytes once sent are a prefix of all that is sent later."""

    @property
    def name(self) -> str: ...

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix: ...

    def encode(self, message: Message) -> bytes:
        """One or more JSON objects joined by commas."""
        ...


class Model(Protocol):
    """One place to call models at.

    `complete` streams deltas to `sink` and returns the whole; it raises `ModelError` (`EndpointResting` when
    no call was made) and, on cancellation, closes its connection before it lets go.
    """

    @property
    def max_retries(self) -> int:
        """How often a call that failed for now may be tried again."""
        ...

    @property
    def is_resting(self) -> bool:
        """Whether a call would be turned away now, unmade, because too many have failed in a row."""
        ...

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion: ...


class Models(Protocol):
    """The models of this process by provider name. Raises `NoModel` for one that cannot be used."""

    def wire(self, provider: str) -> WireFormat:
        """How the provider's requests are written; connects to nothing."""
        ...

    def get(self, provider: str) -> Model: ...

    def credential(self, provider: str) -> str:
        """The fingerprint of the provider's secrets as they are now."""
        ...


class PendingModels(Protocol):
    """Models that are still on their way to this machine. A turn waits for its own before it begins, so that
    the wait is nobody's attempt and no deadline's time."""

    @property
    def is_any(self) -> bool:
        """Whether anything is on its way; costs nothing to ask."""
        ...

    def is_coming(self, provider: str, model: str) -> bool: ...

    async def arrival(self, tell: Callable[[ModelLoading], None]) -> bool:
        """Until nothing is on its way any more, whatever became of it. False: let go, the gateway ends."""
        ...

    def let_go(self) -> None:
        """Nobody waits any longer."""
        ...


class TurnFeed(Protocol):
    """A turn under way, as the channel that shows it sees it.

    `shown_id` is the platform's message that shows it already: of this attempt, or of one before a restart.
    """

    @property
    def turn(self) -> Turn: ...

    @property
    def shown_id(self) -> str | None: ...

    def events(self) -> AsyncIterator[Event]:
        """From the beginning to the final one; ends early when this process lets go of the turn."""
        ...

    async def shown(self, platform_id: str) -> None:
        """Stored at once: the final reply will be an edit of this message."""
        ...


class Outlet(Protocol):
    """The way back to the people of one channel. An address is what the channel wrote into `Inbound`."""

    @property
    def takes_nonce(self) -> bool:
        """Whether the platform drops a second message with the same nonce."""
        ...

    def split(self, reply: str) -> tuple[str, ...]:
        """The messages in which a reply is sent, each within the platform's limit. Pure."""
        ...

    async def deliver(self, post: OutgoingMessage) -> str:
        """Send or edit; answers with the platform's id of the message. Raises `DeliveryError` of the kind
        that says what is known; anything else counts as `DeliveryUnknown`."""
        ...

    async def show(self, view: TurnFeed) -> None:
        """Show a turn while it runs: typing, what it does, text as it comes. Cancelled, or left to end by
        itself, before the reply is delivered; an error here costs the show and nothing else."""
        ...


class WorkspaceHandle(Protocol):
    """What an agent and the tools of its turns hold of a session's workspace: use, and no way to end it.

    It touches nothing before it is used. Whatever the session has (working directory, environment, background
    processes, a browser) is found again through the next handle.
    """

    @property
    def session_id(self) -> SessionId: ...

    @property
    def folder(self) -> Path:
        """Where the chat's files are; made when a tool first needs it."""
        ...

    def release(self) -> Coroutine[Any, Any, None] | None:
        """Give the handle back: the agent leaves memory and the session goes on. Answers with what is left to
        wait for, if anything; it may be cancelled, and nothing of the session is lost by that."""
        ...


class Workspaces(Protocol):
    """What tools act on: files belong to the chat, the rest to the session. Owned by `app`."""

    def open(self, session_id: SessionId, chat_key: ChatKey) -> WorkspaceHandle:
        """A handle for an agent of this session. Costs nothing: no disk, no process."""
        ...

    async def end(self, session_id: SessionId) -> None:
        """The session is over: stop its processes, close its browser. Files stay, and so do working directory
        and environment, for when it is resumed; nobody waits with that for the end to be through, so what is
        started afterwards must not be hit. A session that has nothing: nothing happens."""
        ...

    async def close(self) -> None:
        """Let go of everything without ending any session; what can outlive the gateway does."""
        ...
