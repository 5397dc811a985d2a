"""Background services: retention, and the search index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from talaria.cluster.roles import UPKEEP
from talaria.core.problems import Problem, ok, warn
from talaria.core.settings import Examination, NoSettings
from talaria.core.tasks import run_loops
from talaria.gateway import Gateway, ServicePart
from talaria.turns.settings import RetentionSettings


@asynccontextmanager
async def _open_indexing(gateway: Gateway, settings: NoSettings) -> AsyncIterator[None]:
    def may_work() -> bool:
        return not gateway.loop_watch.load.sheds_scheduled

    async with run_loops(gateway.clock, {"search index": partial(gateway.search.run, may_work)}):
        yield


async def _examine(examination: Examination[NoSettings]) -> AsyncIterator[Problem]:
    reading = (examination.status or {}).get("search")
    if reading is None:
        return
    if missing := reading["missing_entries"]:
        text = f"The search index lacks {missing} entries of the log, so searches may miss some."
        yield warn(
            _NAME, text, "It is filled in the background. If this stays, delete search.db in the home."
        )
    else:
        yield ok(_NAME, "The search index has all entries of the log.")


_NAME: Final = "search index"
SEARCH_INDEX: Final = ServicePart(name=_NAME, settings=NoSettings, open=_open_indexing, findings=_examine)


# -- retention as a part of the gateway: old rows, results of tools and uploads are deleted by rule -------


@asynccontextmanager
async def _open_retention(gateway: Gateway, settings: RetentionSettings) -> AsyncIterator[None]:
    from talaria.turns.lifecycle import Retention  # noqa: PLC0415
    from talaria.workspace.spill import drop_old_results  # noqa: PLC0415 - heavy
    from talaria.workspace.uploads import drop_old_copies  # noqa: PLC0415

    clock, roles = gateway.store.clock, gateway.roles

    def drop_files(before: float) -> int:
        if gateway.checkpoints is not None:
            gateway.checkpoints.prune(gateway.clock.now(), before)
        files = gateway.folders.files
        return drop_old_results(files, before) + drop_old_copies(files, before) + gateway.uploads.forget()

    async def drop_files_beside(before: float) -> int:
        await gateway.deletions.sweep()
        await gateway.deletions.sweep_workspaces()
        # Files are dated by this machine's clock, rows by the database's.
        return await asyncio.to_thread(drop_files, before + gateway.clock.now() - clock.now())

    retention = Retention(
        gateway.store,
        clock,
        settings,
        drop_files_beside,
        load=gateway.loop_watch.load,
        is_in_charge=lambda: roles is None or roles.has(UPKEEP),
    )
    async with run_loops(gateway.clock, {"retention": retention.run}):
        yield


RETENTION: Final = ServicePart(
    name="retention", table=("retention",), settings=RetentionSettings, open=_open_retention
)
