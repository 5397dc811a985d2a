"""The descriptor of a part that brings tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from talaria.core.errors import TalariaError
from talaria.core.gateway_part import GatewayPart, S
from talaria.core.redaction import SecretRegistry

if TYPE_CHECKING:
    from talaria.access.people import People
    from talaria.core.clock import Clock
    from talaria.core.sending import MessageSender
    from talaria.search.index import LogIndex
    from talaria.store.store import Store
    from talaria.tools.tool import ToolSource

FollowSettings: TypeAlias = Callable[[GatewayPart[S], Callable[[S], None]], AbstractContextManager[None]]
"""Calls a function with a part's new settings whenever they change, while the context is open."""


def no_changes(part: GatewayPart[S], tell: Callable[[S], None]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class ToolScope:
    """The arguments for opening a tool part, which is opened before the turns. `current` returns the settings
    of another part as they are now, and `follow` tells of their changes. Times are told in the time zone
    `zone`; None is that of the machine. `shared` is the folder of `store.files`. `is_own_secret` tells if
    a variable holds a secret of the gateway. Without `opened`, `index` and `sender`, tools can be described
    but not run."""

    home: Path
    environ: Mapping[str, str]
    clock: Clock
    people: People
    current: Callable[[GatewayPart[Any]], Any] = lambda part: part.settings()
    opened: Store | None = None
    secrets: SecretRegistry = field(default_factory=SecretRegistry)
    index: LogIndex | None = None
    zone: tzinfo | None = None
    sender: MessageSender | None = None
    follow: FollowSettings[Any] = no_changes
    shared: Path | None = None
    is_own_secret: Callable[[str], bool] = lambda name: True

    @property
    def store(self) -> Store:
        """The gateway's store. Raises `TalariaError` where tools are only described."""
        if self.opened is None:
            raise TalariaError("These tools have no store.", "They can be described, not run.")
        return self.opened

    @property
    def search(self) -> LogIndex:
        """The index over all logs. Raises `TalariaError` where tools are only described."""
        if self.index is None:
            raise TalariaError("These tools have no index.", "They can be described, not run.")
        return self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPart(GatewayPart[S]):
    """A part that brings tools, from a source that is open until its context is left. A built-in source is
    used if `tools.enabled` has the name of its part."""

    is_builtin: bool = True
    open: Callable[[ToolScope, S], AbstractAsyncContextManager[ToolSource]]
