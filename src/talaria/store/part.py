"""SQLite as a part of the gateway: the engine of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from talaria.core.findings import Finding, install_command, ok, warn
from talaria.core.gateway_part import Examination, StorePart, StoreScope
from talaria.store.settings import StoreSettings, find_database

if TYPE_CHECKING:
    from talaria.core.store_ports import StoreEngine


def _open(scope: StoreScope, settings: StoreSettings) -> AbstractAsyncContextManager[StoreEngine]:
    from talaria.store.engines import open_store  # noqa: PLC0415 - heavy

    path = find_database(settings.url, scope.default_path)
    return open_store(path, scope.clock, is_suspect=scope.is_suspect)


async def _examine(examination: Examination[StoreSettings]) -> AsyncIterator[Finding]:
    from talaria.store.engines import describe_engine  # noqa: PLC0415

    engine = describe_engine()
    name = engine.name.lower()
    if engine.warning:
        yield warn(name, engine.warning, "", install_command(engine.package))
    else:
        yield ok(name, f"{engine.name} {engine.version}.")


SQLITE: Final = StorePart(
    name="sqlite",
    table=("store",),
    settings=StoreSettings,
    is_required=True,
    serves=lambda url: not url or url.startswith("sqlite:"),
    open=_open,
    findings=_examine,
)
