"""The port of hooks: the moments of a turn that plug-ins are told of, and what they may refuse.

A hook sees frozen facts and returns nothing that counts, so it changes neither an entry of a log nor a byte
of a prefix. Before a model call and before a tool call it may refuse the call with a text.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import TokenUsage, ToolCall, ToolOutcome, ToolResult
from talaria.core.specs import Completion
from talaria.core.turns import Sender, Turn, TurnState


class HookRefusal(TalariaError):
    """A hook refused a call."""

    type = "refused"


class TurnFacts(msgspec.Struct, frozen=True):
    """A turn. `text` is the person's message, `command` the slash command if it is one. Nobody attends an
    unattended turn, such as the run of a job."""

    turn_id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    sender: Sender
    text: str
    command: str = ""
    is_unattended: bool = False


class ModelFacts(msgspec.Struct, frozen=True):
    """A model call that is to be made. `model` is `provider/name`."""

    turn: TurnFacts
    model: str


class AnswerFacts(msgspec.Struct, frozen=True):
    """A model call that was made, with all its tries. `model` is the model that answered, or failed last.
    `tools` are the names of the tools that it calls. With an `error` there is no answer."""

    turn: TurnFacts
    model: str
    text: str = ""
    tools: tuple[str, ...] = ()
    usage: TokenUsage = TokenUsage()
    error: ErrorInfo | None = None


class ToolFacts(msgspec.Struct, frozen=True):
    """A tool call that is to be run. `arguments` is the JSON text that the model wrote."""

    turn: TurnFacts
    call_id: str
    tool: str
    arguments: str


class ResultFacts(msgspec.Struct, frozen=True):
    """A tool call that was run, or refused."""

    turn: TurnFacts
    call_id: str
    tool: str
    text: str
    outcome: ToolOutcome


class EndFacts(msgspec.Struct, frozen=True):
    """A turn that has ended, as it was committed."""

    turn: TurnFacts
    state: TurnState
    reply: str = ""
    error: ErrorInfo | None = None
    usage: TokenUsage | None = None


class SessionFacts(msgspec.Struct, frozen=True):
    """A session that has ended."""

    session_id: SessionId


class Hooks(Protocol):
    """The hooks of all plug-ins. The gateway has this object only if there is a hook.

    The methods raise nothing but what they are documented to raise, and each hook has a time limit.
    """

    def turn_accepted(self, turn: Turn) -> None:
        """A turn is durable. Returns at once; hooks are told beside the turn."""
        ...

    def turn_ended(self, turn: Turn) -> None:
        """A turn has ended. Returns at once."""
        ...

    def session_ended(self, session_id: SessionId) -> None:
        """A session has ended. Returns at once."""
        ...

    async def before_model(self, turn: Turn, model: str) -> None:
        """A model is about to be called. Raises `HookRefusal`."""
        ...

    def after_model(self, turn: Turn, model: str, answer: Completion | TalariaError) -> None:
        """A model call has ended. Returns at once: a wait could be cancelled, and the answer lost."""
        ...

    async def before_tool(self, turn: Turn, call: ToolCall) -> None:
        """A tool call is about to run. Raises `HookRefusal`."""
        ...

    def after_tool(self, turn: Turn, call: ToolCall, result: ToolResult) -> None:
        """A tool call has ended. Returns at once, for the same reason."""
        ...
