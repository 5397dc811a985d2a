"""The search index as a part of the gateway: it follows the logs of all sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from talaria.core.problems import Problem, ok, warn
from talaria.core.settings import Examination, NoSettings
from talaria.core.tasks import run_loops
from talaria.gateway import Gateway, ServicePart


@asynccontextmanager
async def _open(gateway: Gateway, settings: NoSettings) -> AsyncIterator[None]:
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
SEARCH_INDEX: Final = ServicePart(name=_NAME, settings=NoSettings, open=_open, findings=_examine)
