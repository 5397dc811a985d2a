"""The import of another program's home: a plan of everything that it holds, and carrying it out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from talaria.core.errors import StoreError
from talaria.core.settings import Parts
from talaria.imports.files import plan_memory, plan_skills
from talaria.imports.item import ImportItem, ImportKind, ImportReport
from talaria.imports.logs import SourceLog
from talaria.imports.settings import plan_people, plan_settings
from talaria.imports.source import clean_text
from talaria.imports.target import Planned, Source, Target, file_item

_CONFIGURED = (ImportKind.SETTING, ImportKind.SERVER, ImportKind.SECRET)
_PAUSE_NOTE = (
    "Jobs are imported paused. Pause each one in {title} first (`{pause}`), then resume it here "
    "(`talaria jobs resume NAME`). Otherwise both programs run it."
)
_RUNNING_NOTE = (
    "The gateway of {title} is running. Stop it (`{stop}`) before you start this one. Two gateways with the "
    "same bot take each other's messages, and later messages of {title} are not imported."
)
_OWNER_NOTE = (
    "Memory is imported for the owner. If a paired person is you, run `talaria config set people.owner.ids "
    "'[\"telegram:ID\"]'`."
)


class Import:
    """A plan. It keeps the items and their steps, but no messages: these are read when they are written."""

    def __init__(
        self,
        source: Source,
        target: Target,
        parts: Parts,
        only: Collection[ImportKind] = (),
        *,
        with_secrets: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._parts = parts
        self._only = only
        self._with_secrets = with_secrets
        self._planned: list[Planned] = []
        self._notes: list[str] = []

    async def plan(self) -> ImportReport:
        """Look at everything, and change nothing. Raises `BadRequest` for a home that cannot be read."""
        source, target = self._source, self._target
        found: list[Planned] = []
        if self._wants(ImportKind.SESSION):
            for item, log in source.sessions(target):
                found.append(await self._plan_session(item, log))
        if self._wants(ImportKind.JOB):
            found += await source.jobs(target)
        if self._wants(ImportKind.MEMORY):
            found += await asyncio.to_thread(plan_memory, source, target)
        if self._wants(ImportKind.SKILL):
            found += await asyncio.to_thread(plan_skills, source, target)
        if self._wants(ImportKind.PERSON):
            found += await plan_people(source, target)
        if self._wants(*_CONFIGURED):
            planned = plan_settings(source, target, self._parts, with_secrets=self._with_secrets)
            found += [(item, step) for item, step in planned if self._wants(item.kind)]
        if self._wants(ImportKind.FILE):
            found += [(file_item(name, reason), None) for name, reason in source.side_files().items()]
        found += [(file_item(name, why), None) for name, why in source.home.troubles.items()]
        self._planned = found
        kinds = {item.kind for item, step in found if step is not None}
        told = [_RUNNING_NOTE] * source.is_running() + [_PAUSE_NOTE] * (ImportKind.JOB in kinds)
        self._notes = [
            each.format(title=source.title, pause=source.pause, stop=source.stop) for each in told
        ] + [_OWNER_NOTE] * ({ImportKind.MEMORY, ImportKind.PERSON} <= kinds)
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

    def _wants(self, *kinds: ImportKind) -> bool:
        return not self._only or any(kind in self._only for kind in kinds)

    def _report(self, items: tuple[ImportItem, ...]) -> ImportReport:
        return ImportReport(clean_text(str(self._source.home.source)), items, tuple(self._notes))

    async def _plan_session(self, item: ImportItem, log: SourceLog | None) -> Planned:
        if log is None:
            return item, None
        if await self._target.store.session(log.id) is not None:
            title = self._source.title
            return item.skip(f"It was imported before. Later messages of {title} are not added."), None
        if log.is_current and await self._target.store.current_session(log.chat_key) is not None:
            note = "Its chat continues in its current session here; /resume changes that."
            item = msgspec.structs.replace(item, note=f"{item.note} {note}".strip())
        return item, partial(self._import_session, item, log)

    async def _import_session(self, item: ImportItem, log: SourceLog) -> ImportItem:
        """Import a session. One that cannot be read does not keep the others out; raises `StoreError` if it
        is the store that fails."""
        store, left_out = self._target.store, Counter[str]()
        try:
            session = await store.import_session(log.order(item.title, left_out))
        except StoreError as error:
            if store.trouble is not None:
                raise
            return item.skip(error.user_text)
        if session is None:
            return item.skip("It was imported before.")
        return item.done(left_out=dict(left_out))
