"""How far a session's context can be trusted, read from its log and its grants."""

from __future__ import annotations

import re
from collections.abc import Iterator

from talaria.core.entries import Entry, Summary, hidden_seqs
from talaria.core.messages import Message, ToolResults, UserMessage, is_untrusted
from talaria.core.shown import find_summary
from talaria.core.store_ports import Store
from talaria.core.turns import Turn

_URL = re.compile(r"https?://[^\s<>\"'`\\^{|}]+")
_CLOSING = {")": "(", "]": "["}


class LoggedTrust:
    """Implements `core.tools.SessionTrust`. Nothing is kept: an undo and a new session count at once, and an
    eviction or a restart changes nothing. The run of a job has the grants of its job too."""

    def __init__(self, store: Store, turn: Turn) -> None:
        self._store = store
        self._session_id = turn.session_id
        self._order = turn.inbound.order

    async def is_granted(self, digest: str) -> bool:
        order, store = self._order, self._store
        is_jobs = order is not None and await store.is_granted_to_job(order.job_id, order.plan, digest)
        return is_jobs or await store.is_granted(self._session_id, digest)

    async def is_tainted(self) -> bool:
        return any(map(_brought_content, await self._visible()))

    async def has_shown(self, url: str) -> bool:
        wanted = _without_fragment(url)
        return any(
            wanted == shown
            for entry in await self._visible()
            if entry.message is not None
            for text in _texts(entry.message)
            for shown in urls_in(text)
        )

    async def _visible(self) -> list[Entry]:
        """Return the entries that the model sees, in whole or shortened, and the summary in force."""
        entries = await self._store.shown_log(self._session_id)
        hidden, summary = hidden_seqs(entries), find_summary(entries)
        return [
            entry
            for entry in entries
            if entry is summary or (entry.message is not None and entry.seq not in hidden)
        ]


def _brought_content(entry: Entry) -> bool:
    if isinstance(entry.body, Summary):
        return entry.body.untrusted
    return entry.message is not None and is_untrusted(entry.message)


def urls_in(text: str) -> Iterator[str]:
    """Yield the addresses of pages in a text, without fragments and without the marks of a sentence."""
    for match in _URL.finditer(text):
        url = match[0].rstrip(".,;:!?*_~")
        while url and url[-1] in _CLOSING and url.count(url[-1]) > url.count(_CLOSING[url[-1]]):
            url = url[:-1].rstrip(".,;:!?*_~")
        yield _without_fragment(url)


def _texts(message: Message) -> Iterator[str]:
    """The words of the person and of results. What the model wrote itself shows nothing."""
    match message:
        case ToolResults(results=results):
            yield from (result.text for result in results)
        case UserMessage(text=text):
            yield text
        case _:
            pass


def _without_fragment(url: str) -> str:
    return url.partition("#")[0].rstrip("/")
