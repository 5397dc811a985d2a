"""`ProcessEnds`: fires the jobs that wait for a background process.

The store says which jobs wait, the process's files that it has ended. Both outlast a kill, so an end is not
lost; and a job fires once, because the order that writes its slot ends its wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from talaria.core.ids import SessionId, asking_chat
from talaria.core.jobs import AfterProcess
from talaria.core.tasks import sleep_until_woken

if TYPE_CHECKING:
    from talaria.gateway import Gateway

_LOOK_SECONDS = 60.0  # for processes that went with their session
_START_SECONDS = 1.0  # while the processes of earlier gateways are found again
_BATCH = 100


class ProcessEnds:
    """Looks when a process ends and when a job is made. `run` goes on until it is cancelled."""

    def __init__(self, gateway: Gateway) -> None:
        self._store = gateway.store
        self._cluster = gateway.cluster
        self._jobs = gateway.store.jobs
        self._notes = gateway.notes
        self._processes = gateway.workspaces.processes
        self._clock = gateway.clock
        self._woken = asyncio.Event()

    async def run(self) -> None:
        unwatch = self._jobs.bell.watch(self._woken.set)
        self._processes.watchers.append(self._woken.set)
        try:
            while True:
                self._woken.clear()
                is_known = self._notes.is_open
                if is_known:
                    await self.look()
                seconds = _LOOK_SECONDS if is_known else _START_SECONDS
                await sleep_until_woken(self._clock, seconds, self._woken)
        finally:
            unwatch()
            self._processes.watchers.remove(self._woken.set)

    async def look(self) -> None:
        """Fire the jobs whose process has ended, or is gone with its session."""
        for job in await self._jobs.awaiting(_BATCH):
            awaited = job.plan.schedule
            if not isinstance(awaited, AfterProcess) or self._runs(awaited):
                continue
            if not await self._is_elsewhere(awaited.session_id):
                await self._jobs.fire(job.id, self._clock.now())

    async def _is_elsewhere(self, session_id: SessionId) -> bool:
        """Return whether the processes of the session are in the place of another member of a cluster, which
        knows of their ends."""
        if self._cluster is None or (session := await self._store.session(session_id)) is None:
            return False
        place = (await self._cluster.store.chat_place(asking_chat(session.chat_key))).place
        return place not in ("", self._cluster.here.place)

    def _runs(self, awaited: AfterProcess) -> bool:
        known = self._processes.of_session(awaited.session_id)
        return any(each.record.id == awaited.process and not each.gone.is_set() for each in known)
