"""Retention as a part of the gateway: old rows, results of tools and uploads are deleted by rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from talaria.core.tasks import run_loops
from talaria.gateway import Gateway, ServicePart
from talaria.turns.settings import RetentionSettings


@asynccontextmanager
async def _open(gateway: Gateway, settings: RetentionSettings) -> AsyncIterator[None]:
    from talaria.tools.result import drop_old_results  # noqa: PLC0415 - heavy
    from talaria.turns.lifecycle import Retention  # noqa: PLC0415
    from talaria.workspace.sent_files import drop_old_copies  # noqa: PLC0415

    def drop_files(before: float) -> int:
        if gateway.checkpoints is not None:
            gateway.checkpoints.prune(gateway.clock.now(), before)
        files = gateway.folders.files
        return drop_old_results(files, before) + drop_old_copies(files, before) + gateway.uploads.forget()

    async def drop_files_beside(before: float) -> int:
        await gateway.deletions.sweep()
        await gateway.deletions.sweep_workspaces()
        return await asyncio.to_thread(drop_files, before)

    retention = Retention(
        gateway.store, gateway.clock, settings, drop_files_beside, load=gateway.loop_watch.load
    )
    async with run_loops(gateway.clock, {"retention": retention.run}):
        yield


RETENTION: Final = ServicePart(name="retention", table=("retention",), settings=RetentionSettings, open=_open)
