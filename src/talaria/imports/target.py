"""The source and the home of an import, and the steps that write."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from talaria.access.people import People
from talaria.config.settings import Settings
from talaria.core.ids import ChatAddress
from talaria.core.memory import MemoryPage
from talaria.core.settings import KeyPath
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.logs import SourceLog
from talaria.imports.source import SourceHome, clean_text, table, text_of
from talaria.store.store import Store

REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
NOT_READ: Final = "It is not imported. See docs/configuration.md for the settings of Talaria."
UNKNOWN_MODEL: Final = "Its provider is not known here. Choose one with `talaria setup`."


class ServerPlan(msgspec.Struct, frozen=True):
    """An MCP server as it would be added. `add` adds it, with its keys or without. One that `is_secret` has a
    secret in its address, so it is added only with its keys."""

    keys: tuple[str, ...]
    notes: tuple[str, ...]
    is_secret: bool
    add: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The home, its settings, the environment and its records. The caller holds the home's lock.

    `channels` are those that people are paired on. `address_of` returns where messages to a chat go; it
    raises `BadRequest` for a chat of a channel that is not connected. `plan_server` returns a server of
    another program, which refers to variables of that program, as it would be added here. It raises
    `TalariaError` for one that cannot be.
    """

    home: Path
    settings: Settings
    environ: Mapping[str, str]
    store: Store
    people: People
    channels: frozenset[str]
    address_of: Callable[[ChatAddress], str | None]
    plan_server: Callable[[str, Mapping[str, Any], Mapping[str, str]], ServerPlan]

    @property
    def agent(self) -> str:
        return self.settings.agent.name


Step: TypeAlias = Callable[[], Awaitable[ImportItem]]
"""Imports one item, and returns it with its new state. It may run again after a kill at any point."""

Planned: TypeAlias = tuple[ImportItem, Step | None]
"""An item and the step that imports it; None if it is not imported."""


class SourceSecret(msgspec.Struct, frozen=True):
    """Values for `secrets.env`, and the settings that name them."""

    values: dict[str, str]
    settings: dict[KeyPath, str] = {}


@dataclass(frozen=True, slots=True)
class FoundSettings:
    """The settings of a source by their keys here, its secrets and its MCP servers by their names, what
    has no counterpart here, with the reason, and the variables that servers refer to."""

    values: dict[KeyPath, Any] = field(default_factory=dict)
    secrets: dict[str, SourceSecret] = field(default_factory=dict)
    servers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)

    def resolve(self, value: object, name: str, environ: Mapping[str, str]) -> str:
        """Return a value with the variables of the source that it refers to. One that refers to anything else
        is noted, and empty."""
        text = REFERENCE.sub(lambda match: environ.get(match[1], match[0]), text_of(value))
        if isinstance(value, dict) or "${" in text:
            self.left[name] = "It refers to a value that is not in the home."
            return ""
        return text

    def add_servers(self, servers: object, environ: Mapping[str, str]) -> None:
        """Add MCP servers, which may refer to variables of the source as `${NAME}`."""
        self.servers.update((str(name), table(server)) for name, server in table(servers).items())
        self.environ.update(environ)


class Source(Protocol):
    """A home of another program. Nothing here changes it."""

    home: SourceHome
    title: str  # of the program
    pause: str  # how its jobs are paused
    stop: str  # how its gateway is stopped

    def is_running(self) -> bool: ...

    def sessions(self, target: Target) -> Iterator[tuple[ImportItem, SourceLog | None]]:
        """Yield each conversation, and an item for each that is not imported."""

    async def jobs(self, target: Target) -> list[Planned]: ...

    def facts(self) -> Iterable[tuple[MemoryPage, str]]:
        """Return what is remembered, each fact as one line."""

    def skill_roots(self) -> Iterable[tuple[SourceHome, Path]]:
        """Return the folders with skills, each with the home that it may not leave."""

    def came_along(self, skill: Path) -> bool:
        """Return whether a skill is part of the program, and unchanged."""

    def people(self) -> Iterable[tuple[str, str, str]]:
        """Return the channel, the id and the name of each person who may write."""

    def settings(self) -> FoundSettings: ...

    def side_files(self) -> Mapping[str, str]:
        """Return the other files and folders of the home, with the reason why they are not imported."""


def file_item(name: str, reason: str) -> ImportItem:
    name = clean_text(name)  # that of a file may have surrogates
    return ImportItem(f"{ImportKind.FILE}:{name}", ImportKind.FILE, name, ImportState.SKIPPED, reason=reason)
