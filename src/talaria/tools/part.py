"""The descriptor of a part that brings tools."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    nullcontext,
)
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from talaria.core.clock import SystemClock
from talaria.core.errors import TalariaError
from talaria.core.problems import Problem
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import Examination, GatewayPart, Parts, S

if TYPE_CHECKING:
    from talaria.access.people import People
    from talaria.core.clock import Clock
    from talaria.core.ledger import MessageSender
    from talaria.search.index import LogIndex
    from talaria.store.store import Store
    from talaria.tools.settings import ToolSettings
    from talaria.tools.tool import BuiltinSource, ToolSource

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPart(ToolPart[S]):
    """A built-in family of tools. `make` returns its source, also where tools are only described."""

    make: Callable[[ToolScope, S], BuiltinSource]


def family(
    name: str,
    table: str,
    settings: type[S],
    make: Callable[[ToolScope, S], BuiltinSource],
    findings: Callable[[Examination[S]], AsyncIterator[Problem]] | None = None,
    *,
    is_required: bool = False,
) -> FamilyPart[S]:
    """Return the part of a family. The settings of `table` are of the type `settings`. `make` imports the
    modules of its tools, so that a family that is not used costs nothing."""

    @asynccontextmanager
    async def opening(scope: ToolScope, given: S) -> AsyncIterator[ToolSource]:
        with closing(make(scope, given)) as source:
            yield source

    return FamilyPart(
        name=name,
        table=(table,),
        settings=settings,
        is_required=is_required,
        findings=findings,
        open=opening,
        make=make,
    )


def describe_families(parts: Parts, settings: ToolSettings) -> tuple[BuiltinSource, ...]:
    """Return the sources of all built-in families, with tools that can be described but not run."""
    from talaria.access.people import People  # noqa: PLC0415
    from talaria.tools.settings import ToolSettings  # noqa: PLC0415

    # Nothing can be written below this path.
    scope = ToolScope(Path(os.devnull), {}, SystemClock(), People())
    return tuple(
        part.make(scope, settings if part.settings is ToolSettings else part.settings())
        for part in parts
        if isinstance(part, FamilyPart)
    )
