"""The object that a plug-in registers with, and what it has registered."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from talaria.agent.compaction.engine import ContextEngine
from talaria.channels.descriptor import Channel
from talaria.commands.command import CommandCall
from talaria.config.load import read_secrets
from talaria.config.plugins import PLUGIN_TABLES, check_table
from talaria.core.errors import ConfigError
from talaria.core.hooks import (
    AnswerFacts,
    EndFacts,
    ModelFacts,
    ResultFacts,
    SessionFacts,
    ToolFacts,
    TurnFacts,
)
from talaria.core.redaction import Secret
from talaria.core.tools import Risk
from talaria.tools.function import typed_tool
from talaria.tools.part import ToolScope
from talaria.tools.tool import MemoryProvider, Tool, ToolSource

S = TypeVar("S", bound=msgspec.Struct)
F = TypeVar("F")
T = TypeVar("T", bound=Callable[..., Any])
Hook: TypeAlias = Callable[[F], Awaitable[None]] | Callable[[F], None]
OpenMemory: TypeAlias = Callable[[ToolScope], AbstractAsyncContextManager[MemoryProvider]]
OpenEngine: TypeAlias = Callable[[ToolScope], AbstractAsyncContextManager[ContextEngine]]

MOMENTS: Final = (
    "turn_accepted",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "turn_ended",
    "session_ended",
)
DATA_FOLDER: Final = "plugin-data"
_COMMAND: Final = re.compile("[a-z][a-z0-9_-]{0,31}")
_CHANNEL: Final = re.compile("[a-z][a-z0-9-]{0,31}")


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A slash command of a plug-in, as it was registered."""

    name: str
    run: Callable[[CommandCall], Awaitable[str]] | Callable[[CommandCall], str]
    help: str
    arguments: str
    while_busy: bool


@dataclass(slots=True)
class Brought:
    """The things that a plug-in has registered, in its order. `hooks` are the functions by moment."""

    tools: list[Tool] = field(default_factory=list)
    sources: list[ToolSource] = field(default_factory=list)
    commands: list[PluginCommand] = field(default_factory=list)
    channels: list[Channel[Any]] = field(default_factory=list)
    memory: OpenMemory | None = None
    engine: OpenEngine | None = None
    hooks: dict[str, list[Hook[Any]]] = field(default_factory=dict)
    secrets: frozenset[Secret] = frozenset()

    def names(self) -> tuple[str, ...]:
        """Return what it brings in words. No two plug-ins may bring the same, but for hooks."""
        return tuple(self._names())

    def _names(self) -> Iterator[str]:
        tools = [*self.tools, *(tool for source in self.sources for tool in source.tools())]
        yield from (f"tool {tool.spec.name}" for tool in tools)
        yield from (f"command /{command.name}" for command in self.commands)
        yield from (f"channel {channel.name}" for channel in self.channels)
        if self.memory is not None:
            yield "memory"
        if self.engine is not None:
            yield "context engine"
        yield from (f"hook {moment}" for moment in MOMENTS if self.hooks.get(moment))


class Plugin:
    """A plug-in while it registers. Each method takes one thing that it brings; none of them blocks or has an
    effect of its own. A name that is taken, or a wrong one, leaves the whole plug-in out.

    `log` is its logger. `environ` are the variables of the gateway.
    """

    def __init__(self, name: str, home: Path, table: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self.name = name
        self.log = logging.getLogger(f"talaria.plugin.{name}")
        self.environ = environ
        self.brought = Brought()
        self._home = home
        self._table = table
        self._is_open = True

    @property
    def folder(self) -> Path:
        """A folder for the plug-in's own files, which is made when it is first asked for."""
        folder = self._home / DATA_FOLDER / self.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def settings(self, kind: type[S]) -> S:
        """Return the table `[plugins.NAME]` as a struct whose fields all have defaults.

        Fields may have marks, as those of the gateway's own settings: what is marked as a secret, or names
        one, is kept out of logs and chats. Raises `ConfigError` for a wrong value.
        """
        settings = check_table(self.name, kind, self._table, self.environ, self.log.warning)
        self.brought.secrets |= read_secrets(settings, self._home, self.environ)
        return settings

    # -- tools and commands -------------------------------------------------------------------------------

    def tool(
        self,
        function: T,
        *,
        name: str = "",
        description: str = "",
        risk: Risk = Risk.NONE,
        read_only: bool = False,
        idempotent: bool = False,
        untrusted: bool = False,
        reaches_out: bool = False,
        uses_files: bool = True,
        timeout: timedelta | None = None,
    ) -> T:
        """Offer a function to models, and return it. Its type hints are the parameters, its docstring is the
        description: see `typed_tool`. The flags decide what happens to a call, so they must be true: see
        docs/how-to/add-a-tool.md."""
        self._check_open()
        self.brought.tools.append(
            typed_tool(
                function,
                name=name,
                description=description,
                risk=risk,
                read_only=read_only,
                idempotent=idempotent,
                untrusted=untrusted,
                reaches_out=reaches_out,
                uses_files=uses_files,
                timeout=timeout,
            )
        )
        return function

    def add_tool(self, tool: Tool) -> None:
        """Offer a tool that brings its own spec."""
        self._check_open()
        _check_class(tool, Tool)
        self.brought.tools.append(tool)

    def add_source(self, source: ToolSource) -> None:
        """Offer the tools of a source, which may change later. Changes reach new sessions and `/reload`."""
        self._check_open()
        _check_class(source, ToolSource)
        if source.is_builtin:
            raise ConfigError(
                f"The source {source.name} says that it is built in.", "Let `is_builtin` be False."
            )
        self.brought.sources.append(source)

    def command(
        self,
        name: str,
        run: Callable[[CommandCall], Awaitable[str]] | Callable[[CommandCall], str],
        *,
        help: str,
        arguments: str = "",
        while_busy: bool = False,
    ) -> None:
        """Answer `/NAME` without a model: `run` returns the reply. A `TalariaError` is told to the person.

        A command waits for the running turn of its chat, or is answered at once with `while_busy`. After a
        crash it may be run again, with the same `turn_id`.
        """
        self._check_open()
        if not _COMMAND.fullmatch(name):
            raise ConfigError(
                f"{name!r} is no name for a command.",
                "Use small letters, digits, underscores and dashes, first a letter, without the slash.",
            )
        self.brought.commands.append(PluginCommand(name, run, help, arguments, while_busy))

    # -- parts --------------------------------------------------------------------------------------------

    def channel(self, channel: Channel[Any]) -> None:
        """Add a chat platform: see docs/how-to/add-a-channel.md. Its settings are in `[plugins.NAME]`."""
        self._check_open()
        if not _CHANNEL.fullmatch(channel.name):
            raise ConfigError(
                f"{channel.name!r} is no name for a channel.", "Use small letters, digits and dashes."
            )
        table = (*PLUGIN_TABLES, self.name)
        self.brought.channels.append(replace(channel, table=table, is_required=False, connector=None))

    def memory(self, open: OpenMemory) -> None:
        """Let this provider remember, in place of the gateway's own. It is open until its context is left."""
        self._check_open()
        if self.brought.memory is not None:
            raise ConfigError("A plug-in brings one memory provider.", "Register one.")
        self.brought.memory = open

    def context_engine(self, open: OpenEngine) -> None:
        """Let this engine compact conversations, in place of the gateway's own."""
        self._check_open()
        if self.brought.engine is not None:
            raise ConfigError("A plug-in brings one context engine.", "Register one.")
        self.brought.engine = open

    # -- hooks --------------------------------------------------------------------------------------------

    def on_turn_accepted(self, hook: Hook[TurnFacts]) -> None:
        """Be told of each turn that was accepted, beside it."""
        self._hook("turn_accepted", hook)

    def on_before_model(self, hook: Hook[ModelFacts]) -> None:
        """Be asked before a model is called for an answer. `HookRefusal` refuses it: the turn fails with that
        text."""
        self._hook("before_model", hook)

    def on_after_model(self, hook: Hook[AnswerFacts]) -> None:
        """Be told of each answer of a model, beside the turn."""
        self._hook("after_model", hook)

    def on_before_tool(self, hook: Hook[ToolFacts]) -> None:
        """Be asked before a tool call runs. `HookRefusal` refuses it: the model reads that text."""
        self._hook("before_tool", hook)

    def on_after_tool(self, hook: Hook[ResultFacts]) -> None:
        """Be told of each result of a tool, beside the turn."""
        self._hook("after_tool", hook)

    def on_turn_ended(self, hook: Hook[EndFacts]) -> None:
        """Be told of each turn that has ended."""
        self._hook("turn_ended", hook)

    def on_session_ended(self, hook: Hook[SessionFacts]) -> None:
        """Be told of each session that has ended."""
        self._hook("session_ended", hook)

    def _hook(self, moment: str, hook: Hook[Any]) -> None:
        self._check_open()
        self.brought.hooks.setdefault(moment, []).append(hook)

    def close(self) -> None:
        """Take nothing more."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError(
                f"The plug-in {self.name} registers something after its registration.",
                "Register everything inside of `register`.",
            )


def _check_class(thing: object, wanted: type) -> None:
    if not isinstance(thing, wanted):
        raise ConfigError(
            f"{type(thing).__name__} is not a {wanted.__name__}.",
            f"Let its class inherit from `talaria.plugins.{wanted.__name__}`.",
        )
