"""The types of commands: a parsed command, what a handler may read, and what it gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from talaria.commands.window_use import WindowUse
from talaria.commands.workspace_status import WorkspaceStatus
from talaria.core.delivery import Button
from talaria.core.entries import EntryBody, Exchange
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.ledger import AskedQuestion, ChatSummary
from talaria.core.memory import MemoryEdit, PageContent
from talaria.core.questions import Span
from talaria.core.sessions import Session
from talaria.core.spending import Account
from talaria.core.turns import Sender, Turn


class Command(msgspec.Struct, frozen=True):
    """A parsed command. `name` is lower case, without the slash."""

    name: str
    args: str = ""


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A call of an extra command. After a crash the same call, with the same `turn_id`, may be made again."""

    name: str
    args: str
    turn_id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    sender: Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraCommand:
    """A command of a plug-in or a skill. `origin` says whose it is, such as `plugin:weather`.

    It has `run`, which answers it without a model, or `message`, which returns the text that the model gets
    in place of the command and its arguments. `message` does not block. `run` raises `TalariaError` for a
    failure that the person should read. A command that `is_control` works while a turn runs; others wait.
    """

    name: str
    help: str
    origin: str
    arguments: str = ""
    run: Callable[[CommandCall], Awaitable[str]] | None = None
    message: Callable[[str], str] | None = None
    is_control: bool = False

    def describe(self) -> str:
        usage = f"/{self.name} {self.arguments}".rstrip()
        return f"{usage}: {self.help} ({self.origin})"


class Route(Enum):
    """How a command travels.

    CONTROL commands bypass the chat's lane, so they work while a turn runs. BINDING commands move the chat to
    another session in the accepting transaction, then wait in the lane. LANE commands wait like a message.
    """

    CONTROL = auto()
    BINDING = auto()
    LANE = auto()


class CommandContext(msgspec.Struct, frozen=True):
    """Everything that a handler may read.

    `models` are the configured names, `listed` the further models that endpoints offer, and `abilities` what
    is known of the session's model, which gets no tools unless it `takes_tools`. `origin` tells where a tool
    comes from, and `searched` are the tools that the model is not shown and finds with `tool_search`.
    `changed` are the MCP servers with changes that wait for approval, and how many, for `/tools`.
    `exchanges` and `reasoning` come from the session's log and are filled in for commands with `reads_log`;
    `account` is filled in for `/usage`, and `recent`, the session's last turns, newest first, for `/why`.
    `is_parked` says that the turn under way waits for a person's decision. `questions` are the open
    questions of the chat, and the one that the command names, for commands with `reads_questions`. With
    `is_ambiguous` the sender may still be reading another approval request, so the command has to name one.
    `workspace` is filled in for `/status`, `window` for `/context`, and `memory` for `/memory`, if there is
    one. `extra` are the commands that are not built in.
    """

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
    origin: Callable[[str], str] = lambda name: ""
    searched: frozenset[str] = frozenset()
    changed: tuple[tuple[str, int], ...] = ()
    takes_tools: bool = True
    exchanges: tuple[Exchange, ...] = ()
    reasoning: str = ""
    account: Account | None = None
    recent: tuple[Turn, ...] = ()
    is_parked: bool = False
    workspace: WorkspaceStatus | None = None
    questions: tuple[AskedQuestion, ...] = ()
    is_ambiguous: bool = False
    memory: tuple[PageContent, ...] | None = None
    window: WindowUse | None = None
    extra: tuple[ExtraCommand, ...] = ()

    @property
    def session(self) -> Session:
        """The session to which the command's turn is bound."""
        return self.summary.current


class SpecChange(msgspec.Struct, frozen=True):
    """A wish for a new agent spec. `model` None keeps the session's model; `tools` None takes the configured
    tools."""

    model: str | None = None
    tools: tuple[str, ...] | None = None


class DecisionWish(msgspec.Struct, frozen=True):
    """A person's decision about a question, which counts if the person may decide."""

    question_id: QuestionId
    text: str
    span: Span = Span.ONCE


class CommandResult(msgspec.Struct, frozen=True):
    """The reply and the effects of a command.

    `entries` are appended to the session's log, under its lease. `stop` cancels the chat's running turn.
    `spec_change` pins the session to a new spec; the reply is then written by the command runner. `buttons`
    are shown below the reply on channels that have buttons. Files that the turns `undo_files` changed are put
    back, and the reply goes on with what became of them. `diff` asks for what the last turn did to files: to
    all of them if it is empty, else to that path. `decide` is carried out before the reply is sent, and so is
    the end of the sessions `ends`. `edit_memory` is carried out, and the reply goes on with what became of
    it. `jobs` are the arguments of `/jobs` and `trust` those of `/trust`, which the command runner answers.
    """

    reply: str
    entries: tuple[EntryBody, ...] = ()
    stop: bool = False
    spec_change: SpecChange | None = None
    buttons: tuple[Button, ...] = ()
    undo_files: tuple[TurnId, ...] = ()
    diff: str | None = None
    decide: DecisionWish | None = None
    ends: tuple[SessionId, ...] = ()
    edit_memory: MemoryEdit | None = None
    jobs: str | None = None
    trust: str | None = None


class CommandSpec(msgspec.Struct, frozen=True):
    """A row of the table of commands. With `reads_log`, the handler needs `exchanges` and `reasoning`, which
    costs a read of the session's log; with `reads_questions` it needs `questions`."""

    name: str
    usage: str
    help: str
    route: Route
    run: Callable[[CommandContext, str], CommandResult]
    reads_log: bool = False
    reads_questions: bool = False
