"""The home that an import writes to, and the steps that write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from talaria.access.people import People
from talaria.config.settings import Settings
from talaria.core.ids import ChatAddress
from talaria.imports.item import ImportItem
from talaria.store.store import Store


@dataclass(frozen=True, slots=True)
class Target:
    """The home, its settings and its records. The caller holds the home's lock. `address_of` returns where
    messages to a chat go; it raises `BadRequest` for a chat of a channel that is not connected."""

    home: Path
    settings: Settings
    store: Store
    people: People
    address_of: Callable[[ChatAddress], str | None]

    @property
    def agent(self) -> str:
        return self.settings.agent.name


Step: TypeAlias = Callable[[], Awaitable[ImportItem]]
"""Imports one item, and returns it with its new state. It may run again after a kill at any point."""

Planned: TypeAlias = tuple[ImportItem, Step | None]
"""An item and the step that imports it; None if it is not imported."""
