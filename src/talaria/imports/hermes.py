"""The import from hermes-agent: a plan of everything that a home holds, and carrying it out."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from functools import partial

from talaria.core.settings import Parts
from talaria.imports.hermes_files import list_side_files, plan_memory, plan_skills
from talaria.imports.hermes_home import HermesHome
from talaria.imports.hermes_jobs import plan_jobs
from talaria.imports.hermes_sessions import LogReader, SourceConversation, limit_rows, plan_sessions
from talaria.imports.hermes_settings import plan_people, plan_settings
from talaria.imports.item import ImportItem, ImportKind, ImportReport
from talaria.imports.target import Planned, Target

PAUSE_NOTE = (
    "Jobs are imported paused. Pause each one in hermes-agent first (`hermes cron pause ID`), then resume it "
    "here (`talaria jobs resume NAME`): otherwise both programs run it."
)
RUNNING_NOTE = (
    "The gateway of hermes-agent runs. Stop it (`hermes gateway stop`) before you start this one. Two "
    "gateways with the same bot take each other's messages, and later messages of hermes-agent are not "
    "imported."
)
OWNER_NOTE = (
    "Memory went to the owner. If a paired person is you, say so: `talaria config set people.owner.ids "
    "'[\"telegram:ID\"]'`."
)


class HermesImport:
    """A plan. It keeps the items and their steps, but no messages: these are read when they are written."""

    def __init__(
        self,
        home: HermesHome,
        target: Target,
        parts: Parts,
        only: Collection[ImportKind],
        channels: Collection[str],
    ) -> None:
        self._home = home
        self._target = target
        self._parts = parts
        self._only = only
        self._channels = frozenset(channels)
        self._planned: list[Planned] = []
        self._notes: list[str] = []

    async def plan(self, database: sqlite3.Connection | None) -> ImportReport:
        """Look at everything, and change nothing. Raises `BadRequest` for a home that cannot be read."""
        home, target = self._home, self._target
        found: list[Planned] = []
        if self._wants(ImportKind.SESSION) and database is not None:
            limit_rows(database)
            for item, conversation in plan_sessions(home, database, target.agent):
                found.append(await self._plan_session(database, item, conversation))
        if self._wants(ImportKind.JOB):
            found += await plan_jobs(home, target)
        if self._wants(ImportKind.MEMORY):
            found += await asyncio.to_thread(plan_memory, home, target)
        if self._wants(ImportKind.SKILL):
            found += await asyncio.to_thread(plan_skills, home, target)
        if self._wants(ImportKind.PERSON):
            found += await plan_people(home, target, self._channels)
        if self._wants(ImportKind.SETTING):
            found += plan_settings(home, target, self._parts)
        if self._wants(ImportKind.FILE):
            found += [(item, None) for item in list_side_files(home)]
        self._planned = found
        kinds = {item.kind for item, step in found if step is not None}
        self._notes = [RUNNING_NOTE] * home.is_running() + [PAUSE_NOTE] * (ImportKind.JOB in kinds)
        self._notes += [OWNER_NOTE] * ({ImportKind.MEMORY, ImportKind.PERSON} <= kinds)
        return self._report(tuple(item for item, _ in found))

    async def apply(self, on_item: Callable[[ImportItem], None]) -> ImportReport:
        """Import what was planned, one item after the other. Each is whole or not there; after a kill, a new
        run imports the rest. `on_item` is called after each item."""
        items = []
        for item, step in self._planned:
            done = item if step is None else await step()
            on_item(done)
            items.append(done)
        return self._report(tuple(items))

    def _wants(self, kind: ImportKind) -> bool:
        return not self._only or kind in self._only

    def _report(self, items: tuple[ImportItem, ...]) -> ImportReport:
        return ImportReport(str(self._home.source), items, tuple(self._notes))

    async def _plan_session(
        self, database: sqlite3.Connection, item: ImportItem, conversation: SourceConversation | None
    ) -> Planned:
        if conversation is None:
            return item, None
        if await self._target.store.session(conversation.id) is not None:
            return item.skip("It was imported before. Later messages of hermes-agent are not added."), None
        if conversation.is_current:
            current = await self._target.store.current_session(conversation.chat_key)
            note = (
                ""
                if current is None
                else "Its chat goes on in its current session here; /resume changes that."
            )
            item = ImportItem(
                item.id, item.kind, item.title, item.state, item.target, note=note, messages=item.messages
            )
        return item, partial(self._import_session, database, item, conversation)

    async def _import_session(
        self, database: sqlite3.Connection, item: ImportItem, conversation: SourceConversation
    ) -> ImportItem:
        reader = LogReader(database, conversation)
        if await self._target.store.import_session(reader.order(item.title)) is None:
            return item.skip("It was imported before.")
        return item.done(left_out=dict(reader.left_out))
