"""The descriptors of the gateway's parts, which the program can read without opening a part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from talaria.core.errors import ConfigError, TalariaError
from talaria.core.findings import Finding
from talaria.core.redaction import SecretRegistry
from talaria.core.setting_marks import KeyPath

if TYPE_CHECKING:
    from talaria.core.clock import Clock
    from talaria.core.people import KnownPeople
    from talaria.core.search_port import SearchIndex
    from talaria.core.sending import MessageSender
    from talaria.core.store_ports import Store, StoreEngine
    from talaria.core.tools import ToolSource

S = TypeVar("S", bound=msgspec.Struct)
Status: TypeAlias = Mapping[str, Any]  # the answer of `GET /api/status`


@dataclass(frozen=True, slots=True)
class Examination(Generic[S]):
    """The arguments of a part's checks in `talaria doctor`. `status` is None if no gateway runs. A running
    gateway has environment variables of its own, which this shell may not have. `shared` is the folder of
    `store.files`."""

    home: Path
    settings: S
    environ: Mapping[str, str]
    status: Status | None = None
    shared: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPart(Generic[S]):
    """A part of the gateway: a folder of the program, and a line in the list `talaria.parts`.

    `settings` is the struct of its table in config.toml, whose path is `table`. The fields say how they are
    checked, which of them change live and which secrets they hold or name: see `core.setting_marks`.
    `findings` are the checks of `talaria doctor`. The gateway does not start without a required part, which
    is opened once; any other part is opened again when its settings change.

    Importing a part must be cheap: heavy modules are imported when the part is opened or examined.
    """

    name: str
    table: KeyPath = ()
    settings: type[S]
    is_required: bool = False
    findings: Callable[[Examination[S]], AsyncIterator[Finding]] | None = None


@dataclass(frozen=True, slots=True)
class StoreScope:
    """The arguments for opening an engine of the store. The caller holds the home's lock. `is_suspect` is
    True if the last process did not close the database. An engine without a URL keeps the database at
    `default_path`."""

    default_path: Path
    clock: Clock
    is_suspect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePart(GatewayPart[S]):
    """An engine that the store can run on. The gateway opens the first one that serves `store.url`."""

    serves: Callable[[str], bool]
    open: Callable[[StoreScope, S], AbstractAsyncContextManager[StoreEngine]]


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
    people: KnownPeople
    current: Callable[[GatewayPart[Any]], Any] = lambda part: part.settings()
    opened: Store | None = None
    secrets: SecretRegistry = field(default_factory=SecretRegistry)
    index: SearchIndex | None = None
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
    def search(self) -> SearchIndex:
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


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of a part without a table."""


Parts: TypeAlias = Sequence[GatewayPart[Any]]


def find_engine(parts: Parts, url: str) -> StorePart[Any]:
    """Return the first engine of the list that serves `store.url`. Raise `ConfigError` if there is none."""
    for part in parts:
        if isinstance(part, StorePart) and part.serves(url):
            return part
    scheme = url.partition(":")[0]
    raise ConfigError(f"No engine of the store serves {scheme}: URLs.", "Change store.url in config.toml.")
