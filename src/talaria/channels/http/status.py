"""What operators read: health, metrics, the pool and the status."""

from __future__ import annotations

from talaria.channels.http.answers import Answer, Reply, json_answer
from talaria.channels.http.calls import Call
from talaria.channels.http.parts import HttpParts
from talaria.observe.metrics import CONTENT_TYPE


class StatusRoutes:
    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    async def healthz(self, call: Call) -> Reply:
        return json_answer({"live": True, "phase": self._parts.health.phase})

    async def readyz(self, call: Call) -> Reply:
        """The reasons are for people with the token: /api/status has them."""
        readiness = self._parts.health.readiness()
        body = {"ready": readiness.is_ready, "phase": readiness.phase}
        return json_answer(body, 200 if readiness.is_ready else 503)

    async def metrics(self, call: Call) -> Reply:
        self._parts.metrics.note_store(await self._parts.store.stats())
        return Answer(self._parts.metrics.render(), media_type=CONTENT_TYPE.encode())

    async def pool(self, call: Call) -> Reply:
        return json_answer(self._parts.pool.stats())

    async def backup(self, call: Call) -> Reply:
        """A copy of the database in the home, which `talaria backup` packs and removes."""
        return json_answer({"database": str(await self._parts.snapshot())})

    async def status(self, call: Call) -> Reply:
        readiness = self._parts.health.readiness()
        stats = await self._parts.store.stats()
        return json_answer(
            {
                **await self._parts.status(),
                "ready": readiness.is_ready,
                "reasons": readiness.reasons,
                "store": {
                    "engine": stats.engine,
                    "schema": stats.schema,
                    "size_bytes": stats.size_bytes,
                    "wal_bytes": stats.wal_bytes,
                    "sessions": stats.sessions,
                    "integrity": stats.integrity,
                    "trouble": stats.trouble,
                },
                "turns": stats.turns,
                "owed": {
                    "turns": stats.owed,
                    "replies": stats.outbox,
                    "oldest_seconds": round(stats.oldest_seconds, 3),
                },
            }
        )
