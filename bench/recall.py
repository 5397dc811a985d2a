"""The cost of finding what was said: in one long log, and over many sessions."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from bench.load import Client, fresh_names
from bench.processes import gateway, model_server
from talaria.access.people import People
from talaria.core.access import EVERYTHING
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatAddress, ChatKey, OwnerId, SessionId, TurnId
from talaria.core.ledger import Accept, Begin, Commit, Fresh, TurnEnd
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.search.index import LogIndex, open_index
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.part import ToolScope
from talaria.tools.recall import recall_tools
from talaria.tools.tool import CallScope, ToolContext
from talaria.tools.workers import ToolWorkers

_OWNER, _LEASE = OwnerId("own_bench"), 600.0
_MESSAGE_WORDS = 150
_VOCABULARY = 30_000
_BATCH = 500
_QUERIES = 30
_SETTLE_SECONDS = 3.0  # after which sessions are not looked at again for late changes
_POLL_SECONDS = 5.5  # after which a gateway looks for something to index
_SESSION = SessionId("ses_bench")


@dataclass(frozen=True, slots=True)
class RecallCosts:
    """Seconds: of a search by words (the median and the slowest), and of one by a regular expression; and of
    indexing a megabyte (CPU)."""

    words: float
    slowest: float
    regex: float
    indexing: float


class _Speaker:
    """Texts whose words are as unequally frequent as in a language."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        letters = "bcdfghklmnprstvw"
        vowels = "aeiou"
        pick = self._random.choice
        self.words = list(
            {
                "".join(pick(letters) + pick(vowels) for _ in range(self._random.randint(2, 4)))
                for _ in range(_VOCABULARY)
            }
        )
        self._weights = list(accumulate(1 / rank for rank in range(1, len(self.words) + 1)))

    def say(self, count: int) -> str:
        return " ".join(self._random.choices(self.words, cum_weights=self._weights, k=count))


def _chat(name: str) -> ChatKey:
    return ChatAddress("main", "http", "api", name).key()


async def measure_log(megabytes: float) -> RecallCosts:
    """Fill one session with so much text, index it, and search in it with the tool."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as name:
        folder, speaker, clock = Path(name), _Speaker(), SystemClock()
        async with (
            await SqliteStore.open(folder / "talaria.db", clock) as store,
            open_index(folder, store.recall, clock) as index,
        ):
            head = await _fill(store, speaker, megabytes)
            began = time.process_time()
            await index.follow(_SESSION, _chat("long"), head)
            indexing = (time.process_time() - began) / megabytes
            search = _searcher(folder, store, index)
            queries = [speaker.say(7) for _ in range(_QUERIES)]
            await search("warm up " + queries[0])
            words = sorted([await _timed(search, f"When did {query}?") for query in queries])
            regex = await _timed(search, r"/\b[xyz]{3,}\w*q/")
            return RecallCosts(words[len(words) // 2], words[-1], regex, indexing)


async def measure_sessions(count: int) -> tuple[float, float, float]:
    """Return the seconds of a search over so many sessions, the median and the slowest, and the CPU of
    indexing the exchange that each of them has."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as name:
        folder, speaker, clock = Path(name), _Speaker(), SystemClock()
        async with (
            await SqliteStore.open(folder / "talaria.db", clock) as store,
            open_index(folder, store.recall, clock) as index,
        ):
            for first in range(0, count, _BATCH):
                some = range(first, min(first + _BATCH, count))
                await asyncio.gather(*(_add_session(store, speaker, number) for number in some))
            began = time.process_time()
            while not await index.catch_up(60.0):
                pass
            indexing = (time.process_time() - began) / count
            await asyncio.sleep(_SETTLE_SECONDS)

            async def search(query: str) -> None:
                await index.search(query, EVERYTHING)

            await search("warm up")
            found = sorted([await _timed(search, speaker.say(4)) for _ in range(_QUERIES)])
            return found[len(found) // 2], found[-1], indexing


async def measure_beside(megabytes: float, turns: int) -> tuple[float, float]:
    """Return the median seconds of a person's turn: at rest, and while so much text is indexed."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as name, model_server() as model:
        home, clock = Path(name), SystemClock()
        async with await SqliteStore.open(home / "talaria.db", clock) as store:
            await _fill(store, _Speaker(), megabytes)
            busy = await _median_turn(model.url, home, turns)
            async with open_index(home, store.recall, clock) as index:
                while not await index.catch_up(60.0):
                    pass
        return await _median_turn(model.url, home, turns), busy


async def _median_turn(model_url: str, home: Path, turns: int) -> float:
    with gateway(model_url, home=home) as (served, token):
        client = Client(served.url, token)
        try:
            (name,) = fresh_names(1)
            await client.run([name], 1)
            await asyncio.sleep(_POLL_SECONDS)  # until the index is filled
            return (await client.run([name], turns)).p50
        finally:
            await client.close()


async def _timed(search: Callable[[str], Awaitable[None]], query: str) -> float:
    began = time.perf_counter()
    await search(query)
    return time.perf_counter() - began


def _searcher(folder: Path, store: SqliteStore, index: LogIndex) -> Callable[[str], Awaitable[None]]:
    """Return `recall_search` as a turn calls it."""
    scope = ToolScope(folder, {}, SystemClock(), People(), opened=store, index=index)
    tool = next(tool for tool in recall_tools(scope, 16 << 10) if tool.spec.name == "recall_search")
    workers = ToolWorkers()

    async def search(query: str) -> None:
        context = ToolContext(
            _SESSION,
            TurnId("turn_now"),
            "call_1",
            FakeWorkspaces(lambda key: folder).open(_SESSION, _chat("long")),
            CallScope(time.monotonic, 60),
            lambda text: None,
            workers.resources(_SESSION),
        )
        await tool.run({"query": query}, context)

    return search


async def _fill(store: SqliteStore, speaker: _Speaker, megabytes: float) -> int:
    turn_id = TurnId("turn_bench")
    begin = Begin(turn_id, _OWNER, _LEASE, UserMessage((Text("begin"),)))
    inbound = Inbound(_chat("long"), Sender("bench"), (Text("."),))
    accepted = await store.accept(Accept(turn_id, inbound, Fresh(_SESSION, None), begin=begin))
    assert accepted.began is not None
    fence, size = accepted.began.fence, 0.0
    while size < megabytes * 1e6:
        texts = [speaker.say(_MESSAGE_WORDS) for _ in range(_BATCH)]
        bodies = tuple(
            AssistantMessage(text) if number % 2 else UserMessage((Text(text),))
            for number, text in enumerate(texts)
        )
        await store.commit(Commit(_SESSION, fence, turn_id, bodies))
        size += sum(map(len, texts))
    end = TurnEnd(TurnState.DONE, ".")
    return (
        await store.commit(Commit(_SESSION, fence, turn_id, (AssistantMessage("end"),), end=end))
    ).revision.seq


async def _add_session(store: SqliteStore, speaker: _Speaker, number: int) -> None:
    context = (UserMessage((Text(speaker.say(20)),)), AssistantMessage(speaker.say(60)))
    turn_id = TurnId(f"turn_{number}")
    inbound = Inbound(_chat(f"chat-{number}"), Sender("bench"), (Text("."),))
    await store.accept(Accept(turn_id, inbound, Fresh(SessionId(f"ses_{number}"), None, context)))
