"""The family `recall`: finding and reading again what was said, also what the model does not see any more.

A session reaches its own log and, behind the point where it began as a branch, those of its ancestors. By an
id with a session in front it also reads other sessions that may be seen from the chat.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from talaria.core.entries import Entry, Summary
from talaria.core.errors import BadRequest, ToolError
from talaria.core.ids import ChatKey, SessionId, asking_chat, channel_of
from talaria.core.ledger import BranchPoint
from talaria.core.messages import Content, Image, Part, Text, ToolResult, ToolResults, UserMessage
from talaria.core.shown import RecallId, RecallKind, entry_id, result_id, summary_id
from talaria.core.tasks import stop
from talaria.core.tools import ToolSpec
from talaria.core.units import format_size
from talaria.search.index import FoundEntry
from talaria.search.words import excerpt, full_text, speaker_of, terms
from talaria.tools.function import Arguments, FunctionTool, counted, parameters, text
from talaria.tools.part import ToolScope
from talaria.tools.search import open_matcher
from talaria.tools.tool import Tool, ToolContext

MOST_HITS = 30
_USUAL_HITS = 10
_BESIDE_CHARS = 160
_BESIDE_TRIES = 3
_REGEX = re.compile(r"/(.+)/", re.DOTALL)
_REGEX_SECONDS = 15.0
_REGEX_HITS = 50
_SLICE_BYTES = 1 << 20
_HEAD_BYTES = 400
_LISTED = 60
_TIMEOUT = timedelta(seconds=60)

SEARCH = ToolSpec(
    name="recall_search",
    description=(
        "Search this whole conversation, also what you no longer see: words or a question, best hits first; "
        '"a phrase" in quotation marks; or /a regex/ for lines.'
    ),
    parameters=parameters(
        {"query": text("Words, a question, or /regex/."), "limit": counted("Hits, 10 by default.")}, ["query"]
    ),
    read_only=True,
    idempotent=True,
    timeout=_TIMEOUT,
    uses_files=False,
)
DESCRIBE = ToolSpec(
    name="recall_describe",
    description="Show what is under a summary (s40) or in an entry (e12), or without id in the whole log.",
    parameters=parameters({"id": text("A recall id."), "page": counted("Next pages of a long list.")}),
    read_only=True,
    idempotent=True,
    timeout=_TIMEOUT,
    uses_files=False,
)
EXPAND = ToolSpec(
    name="recall_expand",
    description="Get originals back word for word: an entry (e12), a result (r12.2), all of a summary (s40).",
    parameters=parameters({"id": text("A recall id."), "page": counted("From 1 on.")}, ["id"]),
    read_only=True,
    idempotent=True,
    timeout=_TIMEOUT,
    uses_files=False,
)


def recall_tools(scope: ToolScope, max_result: int) -> tuple[Tool, ...]:
    recall = _Recall(scope, max_result - _HEAD_BYTES)
    return (
        FunctionTool(SEARCH, recall.search),
        FunctionTool(DESCRIBE, recall.describe),
        FunctionTool(EXPAND, recall.expand),
    )


@dataclass(frozen=True, slots=True)
class _Recall:
    """The handlers. A page of a result has at most `page_bytes`."""

    scope: ToolScope
    page_bytes: int

    # -- searching

    async def search(self, arguments: Arguments, context: ToolContext) -> Content:
        query, limit = arguments["query"].strip(), min(arguments.get("limit", _USUAL_HITS), MOST_HITS)
        logs = await self._logs(context)
        for log in logs:
            await distrust_log(self.scope, log.session_id, context)
        if found := _REGEX.fullmatch(query):
            return await self._search_lines(found[1], logs, context)
        try:
            hits = await self.scope.search.find(query, logs, limit + 10)
        except BadRequest as error:
            raise ToolError(error.user_text, "Use words that were said, or /a regex/.") from error
        wanted = frozenset(terms(query))
        shown: list[str] = []
        for hit in hits:
            log = next(log for log in logs if log.session_id == hit.session_id)
            entry = await self.scope.store.recall.entry(hit.session_id, hit.seq)
            if entry is None or entry.turn_id == context.turn_id:
                continue  # the question that is being answered is no answer
            shown += await self._hit_lines(entry, log, wanted, context)
            if len(shown) >= 3 * limit:
                break
        if not shown:
            return "Nothing was found. Try other words, or describe the log with recall_describe."
        return self._cut(
            "\n".join(["Each hit with its neighbours; recall_expand(id) shows the whole.", *shown])
        )

    async def _hit_lines(
        self, entry: Entry, log: BranchPoint, wanted: frozenset[str], context: ToolContext
    ) -> list[str]:
        lines = []
        for step, mark in ((-1, "  before"), (0, ""), (1, "  after")):
            shown = entry if not step else await self._beside(entry, step, log, context)
            if shown is not None:
                name = _name_of(shown, wanted, context)
                said = excerpt(full_text(shown), wanted, _BESIDE_CHARS if step else 2 * _BESIDE_CHARS)
                lines.append(f"{mark + ' ' if mark else ''}[{name}] {self._head(shown)}: {said}")
        return lines

    async def _beside(self, entry: Entry, step: int, log: BranchPoint, context: ToolContext) -> Entry | None:
        """Return the nearest entry before or after this one that says something."""
        for distance in range(1, _BESIDE_TRIES + 1):
            seq = entry.seq + step * distance
            if not 1 <= seq <= log.seq:
                break
            found = await self.scope.store.recall.entry(entry.session_id, seq)
            if found is not None and found.turn_id == context.turn_id:
                break
            if found is not None and full_text(found):
                return found
        return None

    async def _search_lines(self, pattern: str, logs: Sequence[BranchPoint], context: ToolContext) -> str:
        """Search the texts of all entries for a regular expression, line by line, in bounded time."""
        hits: list[str] = []
        async with (
            open_matcher(context, pattern, _REGEX_SECONDS) as child,
            _read_ahead(self._batches(logs, context)) as batches,
        ):
            async for batch in batches:
                (found,) = await child.ask(batch.data)
                for number, line in found[: _REGEX_HITS - len(hits)]:
                    entry = batch.entry_at(number)
                    hits.append(f"[{_name(entry, context)}] {self._head(entry)}: {line}")
                if len(hits) == _REGEX_HITS:
                    break
        if not hits:
            return "No line matches."
        more = (
            [f"[The first {_REGEX_HITS} lines. Narrow the pattern for others.]"]
            if len(hits) == _REGEX_HITS
            else []
        )
        return self._cut("\n".join([*hits, *more]))

    async def _batches(
        self, logs: Sequence[BranchPoint], context: ToolContext
    ) -> AsyncGenerator[_LineBatch, None]:
        """Yield the texts of all logs, the oldest first."""
        for log in reversed(logs):
            seq = 0
            while seq < log.seq and (
                entries := await self.scope.store.recall.slice(log.session_id, seq, _SLICE_BYTES)
            ):
                seq = entries[-1].seq
                yield await context.resources.in_thread(_LineBatch.of, entries, log, context)

    # -- reading

    async def describe(self, arguments: Arguments, context: ToolContext) -> Content:
        page = arguments.get("page", 1)
        if "id" not in arguments:
            logs = await self._logs(context)
            await distrust_log(self.scope, logs[0].session_id, context)
            lines = [await self._log_line(log, context) for log in logs]
            return self._cut("\n".join([*lines, *await self._list(logs[0], 1, page, context)]))
        entry = await self._find(RecallId.parse(arguments["id"]), context)
        if isinstance(entry.body, Summary):
            return self._cut("\n".join(await self._describe_summary(entry, entry.body, page, context)))
        lines = [f"[{_name(entry, context)}] {self._head(entry)}, {_size(entry)}"]
        if isinstance(entry.body, ToolResults):
            lines += [
                f"  [{_prefix(entry, context)}{result_id(entry.seq, nth)}] {result.name}, "
                f"{format_size(len(result.text.encode(errors='replace')))}, {result.outcome}"
                for nth, result in enumerate(entry.body.results, 1)
            ]
        else:
            lines.append(f"  {excerpt(full_text(entry), ())}")
        return self._cut("\n".join(lines))

    async def _describe_summary(
        self, entry: Entry, summary: Summary, page: int, context: ToolContext
    ) -> list[str]:
        """Return what is under a summary: the summaries that went into it, and the entries behind them."""
        place = summary.of or entry.session_id
        behind = summary.first
        lines = [
            f"[{_name(entry, context)}] {self._time(entry)} summary of e{summary.first} to e{summary.last}"
        ]
        for seq in summary.children:
            child = await self.scope.store.recall.entry(place, seq)
            if child is not None and isinstance(child.body, Summary):
                under = child.body
                behind = max(behind, under.last + 1)
                what = f"summary of e{under.first} to e{under.last}"
                lines.append(f"  [{_name(child, context)}] {what}: {excerpt(under.text, (), 100)}")
        return [*lines, *await self._list(BranchPoint(place, summary.last), behind, page, context)]

    async def expand(self, arguments: Arguments, context: ToolContext) -> Content:
        named, page = RecallId.parse(arguments["id"]), arguments.get("page", 1)
        entry = await self._find(named, context)
        head = f"[{named}] {self._head(entry)}"
        if named.kind is RecallKind.RESULT:
            result = _result(entry, named)
            return self._page(f"{head}, {result.name}", result.text, page, result.parts)
        if isinstance(entry.body, Summary):
            return await self._expand_summary(named, entry, entry.body, page, context)
        parts = entry.body.parts if isinstance(entry.body, UserMessage) else ()
        return self._page(head, full_text(entry), page, parts)

    async def _expand_summary(
        self, named: RecallId, entry: Entry, summary: Summary, page: int, context: ToolContext
    ) -> Content:
        """Return a page of the entries for which a summary stands."""
        first, last, offset, shown = (page - 1) * self.page_bytes, page * self.page_bytes, 0, list[bytes]()
        log = BranchPoint(summary.of or entry.session_id, summary.last)
        async for original in self._entries(log, summary.first):
            if said := full_text(original):
                data = f"[{_name(original, context)}] {self._head(original)}\n{said}\n".encode(
                    errors="replace"
                )
                piece = data[_at_character(data, first - offset) : _at_character(data, last - offset)]
                offset += len(data)
                if piece:
                    shown.append(piece)
            if offset > last:
                shown.append(f"\n[page {page}; page {page + 1} goes on from here]".encode())
                break
        if not shown:
            raise ToolError(f"{named} has no page {page}.", "Pages are counted from 1 on.")
        return b"".join(shown).decode(errors="replace")

    def _page(self, head: str, whole: str, page: int, parts: Sequence[Part] = ()) -> Content:
        """Return a page of a text, cut by bytes, and with the first page the images."""
        data = whole.encode(errors="replace")
        pages = max(1, -(-len(data) // self.page_bytes))
        if page > pages:
            raise ToolError(f"There are {pages} pages.", "Pages are counted from 1 on.")
        start = _at_character(data, (page - 1) * self.page_bytes)
        end = _at_character(data, page * self.page_bytes)
        of = f", page {page} of {pages}" if pages > 1 else ""
        shown = f"{head}{of}\n{data[start:end].decode(errors='replace')}"
        images = [part for part in parts if isinstance(part, Image)] if page == 1 else []
        return (Text(shown), *images) if images else shown

    # -- logs and entries

    async def _logs(self, context: ToolContext) -> list[BranchPoint]:
        """Return the logs that the session reaches, its own first."""
        store = self.scope.store
        session = await store.session(context.session_id)
        if session is None:
            raise ToolError("This session has no log.")
        own = BranchPoint(session.id, session.revision.seq)
        return [own, *await store.recall.lineage(session.id)]

    async def _find(self, named: RecallId, context: ToolContext) -> Entry:
        """Return an entry that the session may read."""
        logs = await self._logs(context)
        wanted = named.session_id or context.session_id
        log = next((log for log in logs if log.session_id == wanted), None)
        if log is None:
            session = await self.scope.store.session(wanted)
            reach = self.scope.people.reach(context.chat_key) if context.chat_key else None
            if session is None or reach is None or not reach.includes(session.chat_key):
                raise ToolError(f"There is no session {wanted} here.", "recall_describe shows what there is.")
            log = BranchPoint(session.id, session.revision.seq)
        entry = await self.scope.store.recall.entry(wanted, named.seq) if named.seq <= log.seq else None
        if entry is None:
            raise ToolError(f"There is no entry {named}.", f"The last one is {entry_id(log.seq)}.")
        await distrust_log(self.scope, wanted, context)
        if isinstance(entry.body, Summary) and entry.body.of:
            await distrust_log(self.scope, entry.body.of, context)
        return entry

    async def _log_line(self, log: BranchPoint, context: ToolContext) -> str:
        own = log.session_id == context.session_id
        first = await self.scope.store.recall.entry(log.session_id, 1)
        since = f" since {self._time(first)}" if first else ""
        name = "This conversation" if own else f"Before the branch, as {log.session_id}/e1 and so on"
        return f"{name}: {log.seq} entries{since}."

    async def _list(self, log: BranchPoint, first: int, page: int, context: ToolContext) -> list[str]:
        """Return a line for each entry from `first` on that says something, by pages."""
        lines, skipped = list[str](), (page - 1) * _LISTED
        async for entry in self._entries(log, first):
            if isinstance(entry.body, Summary):
                said = excerpt(entry.body.text, (), 100)
            elif not (said := excerpt(full_text(entry), (), 100)):
                continue
            if skipped:
                skipped -= 1
                continue
            if len(lines) == _LISTED:
                return [*lines, f"[More: page {page + 1}.]"]
            lines.append(f"[{_name(entry, context)}] {self._head(entry)}, {_size(entry)}: {said}")
        return lines

    async def _entries(self, log: BranchPoint, first: int) -> AsyncIterator[Entry]:
        """Yield the entries of a log from `first` on."""
        seq = max(first, 1) - 1
        while seq < log.seq and (
            entries := await self.scope.store.recall.slice(log.session_id, seq, _SLICE_BYTES)
        ):
            seq = entries[-1].seq
            for entry in entries:
                if entry.seq <= log.seq:
                    yield entry

    # -- lines

    def _time(self, entry: Entry) -> str:
        return datetime.fromtimestamp(entry.at, self.scope.zone).strftime("%a %Y-%m-%d %H:%M")

    def _head(self, entry: Entry) -> str:
        return f"{self._time(entry)} {speaker_of(entry)}"

    def _cut(self, shown: str) -> str:
        data = shown.encode(errors="replace")
        if len(data) <= self.page_bytes:
            return shown
        end = _at_character(data, self.page_bytes)
        return f"{data[:end].decode(errors='replace')}\n[The rest was left out.]"


@asynccontextmanager
async def _read_ahead(
    batches: AsyncGenerator[_LineBatch, None],
) -> AsyncIterator[AsyncGenerator[_LineBatch, None]]:
    """Let the next batch be read while the caller works on one. Nothing is read after the block."""
    turn = asyncio.current_task()
    assert turn is not None
    coming: asyncio.Task[_LineBatch | None] | None = None

    async def follow() -> AsyncGenerator[_LineBatch, None]:
        nonlocal coming
        coming = asyncio.create_task(_next(batches), name=turn.get_name())
        while (batch := await coming) is not None:
            coming = asyncio.create_task(_next(batches), name=turn.get_name())
            yield batch

    async with aclosing(batches), aclosing(follow()) as followed:
        try:
            yield followed
        finally:
            if coming is not None:
                await stop(coming)


async def _next(batches: AsyncGenerator[_LineBatch, None]) -> _LineBatch | None:
    return await anext(batches, None)


@dataclass(frozen=True, slots=True)
class _LineBatch:
    """The texts of entries, one after another, and the line in which each begins."""

    data: bytes
    starts: tuple[tuple[int, Entry], ...]

    @classmethod
    def of(cls, entries: Sequence[Entry], log: BranchPoint, context: ToolContext) -> _LineBatch:
        pieces, starts, line = [], [], 1
        for entry in entries:
            said = full_text(entry)
            if said and entry.seq <= log.seq and entry.turn_id != context.turn_id:
                starts.append((line, entry))
                pieces.append(said)
                line += said.count("\n") + 1
        return cls("\n".join(pieces).encode(errors="replace"), tuple(starts))

    def entry_at(self, line: int) -> Entry:
        return next(entry for start, entry in reversed(self.starts) if start <= line)


def _prefix(entry: Entry, context: ToolContext) -> str:
    return "" if entry.session_id == context.session_id else f"{entry.session_id}/"


def _name(entry: Entry, context: ToolContext) -> str:
    write = summary_id if isinstance(entry.body, Summary) else entry_id
    return _prefix(entry, context) + write(entry.seq)


def _name_of(entry: Entry, wanted: frozenset[str], context: ToolContext) -> str:
    """Return the id of the entry, or of that of its results which has the most of the wanted words."""
    prefix = _prefix(entry, context)
    if isinstance(entry.body, ToolResults) and len(entry.body.results) > 1:
        matches = [len(wanted & set(terms(result.text[:4096]))) for result in entry.body.results]
        if max(matches):
            return prefix + result_id(entry.seq, matches.index(max(matches)) + 1)
    return _name(entry, context)


def _result(entry: Entry, named: RecallId) -> ToolResult:
    results = entry.body.results if isinstance(entry.body, ToolResults) else ()
    if named.nth > len(results):
        raise ToolError(f"Entry {named.seq} has {len(results)} results.", "recall_describe lists them.")
    return results[named.nth - 1]


def _size(entry: Entry) -> str:
    said = entry.body.text if isinstance(entry.body, Summary) else full_text(entry)
    return format_size(len(said.encode(errors="replace")))


async def distrust_log(scope: ToolScope, session_id: SessionId, context: ToolContext) -> None:
    """Mark the result of a call that reads this log as untrusted if untrusted content ever entered it, also
    if that was undone, or if another person speaks in it. Every entry counts as untrusted then, because
    answers repeat what the model has read."""
    if session_id != context.session_id:
        session = await scope.store.session(session_id)
        if session is None or not _is_own(scope, session.chat_key, context.chat_key):
            context.distrust()
            return
    if await scope.store.recall.is_tainted(session_id):
        context.distrust()


def _is_own(scope: ToolScope, chat_key: ChatKey, here: ChatKey) -> bool:
    """Return whether nobody speaks in the chat but those who speak here."""
    chat_key, person = asking_chat(chat_key), scope.people.of_chat(here)
    return chat_key == here or (person is not None and person == scope.people.of_chat(chat_key))


def _at_character(data: bytes, at: int) -> int:
    """Return the nearest place before `at` that is not inside a character."""
    at = max(0, min(at, len(data)))
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


# -- the tool `session_search`: finding what was said in all conversations that may be seen from a chat ---


_HITS: Final = 10
_SPARE: Final = 5  # for entries of the running turn, which are left out

SESSION_SEARCH = ToolSpec(
    name="session_search",
    description=(
        "Search all earlier conversations with this person, on every channel. Returns the best passages with "
        "dates; recall_expand(id) shows the whole."
    ),
    parameters=parameters({"query": text('Words, a question, or "a phrase".')}, ["query"]),
    read_only=True,
    idempotent=True,
    uses_files=False,
)


def session_search_tool(scope: ToolScope) -> Tool:
    """Return the tool. It finds what may be seen from the chat in which it is called."""

    async def search(arguments: Arguments, context: ToolContext) -> str:
        try:
            reach = scope.people.reach(context.chat_key)
            page = await scope.search.search(arguments["query"], reach, _HITS + _SPARE)
        except BadRequest as error:
            raise ToolError(error.user_text, error.hint) from error
        lines: list[str] = []
        for hit in page.hits:
            entry = await scope.store.recall.entry(hit.session_id, hit.seq)
            if entry is None or entry.turn_id == context.turn_id or len(lines) == _HITS:
                continue
            await distrust_log(scope, hit.session_id, context)
            lines.append(_line(hit, scope, context))
        if not lines:
            lines = ["Nothing was found. Try other words, or fewer."]
        if not page.is_complete:
            lines.append("[Older conversations are still being indexed.]")
        return "\n".join(lines)

    return FunctionTool(SESSION_SEARCH, search)


def _line(hit: FoundEntry, scope: ToolScope, context: ToolContext) -> str:
    at = datetime.fromtimestamp(hit.at, scope.zone).strftime("%a %Y-%m-%d %H:%M")
    is_here = hit.session_id == context.session_id
    place = "this conversation" if is_here else f"{channel_of(hit.chat_key)}, “{hit.title}”"
    return f"[{hit.session_id}/e{hit.seq}] {at}, {place}, {hit.speaker}: {hit.excerpt}"
