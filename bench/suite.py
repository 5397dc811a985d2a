"""All figures of the performance table, part by part."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from statistics import median

from bench import pieces, streams
from bench.accepts import group_commit_gain, http_accept_cpu
from bench.agents import warm_agent_costs
from bench.commands import MODEL_SECONDS, command_costs, output_costs
from bench.context import COMPACTED_LENGTH, measure_context
from bench.delegates import delegate_cpu, parked_parent_bytes
from bench.idle_channels import measure_idle_channels
from bench.jobs import MODEL_SECONDS as RUN_SECONDS
from bench.jobs import measure_crowd, measure_stored
from bench.load import Client, bare_call_cpu, fresh_names, sdk_call_cpu
from bench.many_tools import FOREIGN_TOOLS, measure_many_tools
from bench.page import measure_page
from bench.processes import gateway, model_server
from bench.recall import measure_beside, measure_log, measure_sessions
from bench.table import Row, Wanted
from bench.turns import SESSIONS, SHORT, TurnLoad, measure_turns

PARTS = (
    "calls",
    "turns",
    "streams",
    "pieces",
    "latency",
    "chats",
    "accepts",
    "agents",
    "context",
    "commands",
    "delegates",
    "tools",
    "jobs",
    "recall",
    "channels",
    "page",
)
ROUNDS = 3  # the best counts: other work of the machine can only add to it
LENGTH = 1000  # messages of a long conversation
CHATS = 50
KILOBYTE = "What did we say about the second part of the plan, and who takes it on? " * 14


class Suite:
    """One run. All ratios are within it, because machines differ and are shared."""

    def __init__(self, scale: float) -> None:
        """Below a scale of 1, conversations are shorter too and there is one round: the figures are not
        judged then."""
        self._scale = scale
        self._is_long = scale >= 1
        self._rounds = ROUNDS if self._is_long else 1
        self._length = LENGTH if self._is_long else LENGTH // 10
        self._bare_ms: float | None = None
        self.rows: list[Row] = []

    async def run(self, parts: Collection[str] = PARTS) -> None:
        measures = (
            self._measure_calls,  # first: the other parts compare with its bare call
            self._measure_turns,
            self._measure_streams,
            self._measure_pieces,
            self._measure_latency,
            self._measure_chats,
            self._measure_accepts,
            self._measure_agents,
            self._measure_context,
            self._measure_commands,
            self._measure_delegates,
            self._measure_tools,
            self._measure_jobs,
            self._measure_recall,
            self._measure_channels,
            self._measure_page,
        )
        for part, measure in zip(PARTS, measures, strict=True):
            if part in parts:
                await measure()

    def _times(self, count: int) -> int:
        return max(2, round(count * self._scale))

    def _say(self, text: str) -> None:
        print(f"  {text} …", file=sys.stderr, flush=True)

    def _add_cpu(
        self, name: str, seconds: float, wanted: Wanted = Wanted.FOR_COMPARISON, limit: float = 0.0
    ) -> None:
        ms = seconds * 1000
        ratio = ms / self._bare_ms if self._bare_ms else None
        self.rows.append(Row(name, ms, "ms CPU", wanted, limit, ratio))

    async def _measure_calls(self) -> None:
        with model_server() as model:
            self._say("bare aiohttp call")
            bare = min([await bare_call_cpu(model.url, self._times(300)) for _ in range(self._rounds)])
            self._bare_ms = bare * 1000
            self._add_cpu("bare aiohttp call, streamed", bare)
            self._say("openai SDK calls")
            for messages, calls in ((SHORT, 200), (self._length, 20)):
                cpu = await sdk_call_cpu(model.url, messages, self._times(calls))
                self._add_cpu(f"openai SDK call at {messages:,} messages", cpu)

    async def _measure_turns(self) -> None:
        load = TurnLoad(
            self._rounds,
            self._times(50),
            self._times(400),
            self._times(120),
            self._times(96),
            self._length,
        )
        self._say("durable turns")
        with model_server() as model, gateway(model.url) as (served, token):
            start_cpu = served.cpu()
            await asyncio.sleep(2)  # until it has loaded what it loads beside its work
            idle_rss = served.rss()
            client = Client(served.url, token)
            try:
                costs = await measure_turns(client, served, load)
            finally:
                await client.close()
        self._add_cpu("durable turn through HTTP, alone", costs.alone, Wanted.AT_MOST, 2)
        self._add_cpu(f"durable turn, {SESSIONS} sessions at once", costs.crowd, Wanted.AT_MOST, 1.2)
        self.rows.append(Row(f"turns with {SESSIONS} sessions", costs.per_second, "/s", Wanted.AT_LEAST, 500))
        self._add_cpu(f"durable turn at {SHORT} messages", costs.short)
        self._add_cpu(f"durable turn at {self._length:,} messages", costs.long)
        growth = f"growth from {SHORT} to {self._length:,} messages"
        self.rows += [
            Row(growth, costs.long / costs.short, "×", Wanted.AT_MOST, 1.3),
            Row("start to ready", start_cpu, "s CPU", Wanted.AT_MOST, 0.5),
            Row("idle RSS", idle_rss / 1e6, "MB", Wanted.AT_MOST, 60),
        ]

    async def _measure_streams(self) -> None:
        """Our clients, best of the rounds, and the official SDKs, each in a process of its own."""
        count = 24 if self._is_long else 3
        costs: dict[str, streams.Cost] = {}
        with model_server() as model:
            for kind in (*streams.OURS, *streams.SDKS):
                self._say(f"{streams.STREAMS} streams, {kind}")
                times = self._rounds if kind in streams.OURS else 1
                found = [streams.measure(kind, model.url, count) for _ in range(times)]
                name = kind if kind in streams.OURS else f"{kind} SDK"
                costs[name] = min(found, key=lambda cost: cost.cpu_us)
        for name, cost in costs.items():
            wanted = (Wanted.AT_MOST, 40) if name in streams.OURS else (Wanted.FOR_COMPARISON, 0)
            self.rows.append(Row(f"streamed piece, {name}", cost.cpu_us, "µs CPU", *wanted))
        for name, cost in costs.items():
            wanted = (Wanted.AT_MOST, 20) if name in streams.OURS else (Wanted.FOR_COMPARISON, 0)
            self.rows.append(Row(f"open stream, {name}", cost.kilobytes, "KB", *wanted))

    async def _measure_pieces(self) -> None:
        """The gateway's own streams. The newer API may cost a little more than the older one."""
        self._say(f"{pieces.STREAMS} streams of /v1")
        with model_server() as model, gateway(model.url) as (served, token):
            count = 100 if self._is_long else 10
            costs = await pieces.piece_costs(served, token, count, self._rounds)
        chat, responses = costs[pieces.CHAT], costs[pieces.RESPONSES]
        self.rows += [
            Row("piece through /v1/chat/completions", chat * 1e6, "µs CPU"),
            Row("piece through /v1/responses", responses * 1e6, "µs CPU"),
            Row("piece, responses over chat completions", responses / chat, "×", Wanted.AT_MOST, 1.2),
        ]

    async def _measure_latency(self) -> None:
        latency = 2.0
        self._say(f"64 sessions with a {latency:g} s model")
        with model_server(latency) as model, gateway(model.url) as (served, token):
            client = Client(served.url, token)
            try:
                load = await client.run(fresh_names(64), 4 if self._is_long else 1)
            finally:
                await client.close()
        name = f"p50 of 64 sessions over the model's {latency:g} s"
        self.rows.append(Row(name, load.p50 / latency, "×", Wanted.AT_MOST, 1.05))

    async def _measure_chats(self) -> None:
        """Memory of a gateway of its own while fifty chats with a history each wait for their answers."""
        self._say(f"{CHATS} live chats")
        with model_server() as model, gateway(model.url) as (served, token):
            client = Client(served.url, token)
            try:
                names = fresh_names(CHATS)
                await client.run(names, self._times(20), KILOBYTE)
                answers = asyncio.gather(*(client.turn(name, f"[[delay 3]] {KILOBYTE}") for name in names))
                while await client.busy_agents() < CHATS:
                    await asyncio.sleep(0.1)
                rss = served.rss()
                await answers
            finally:
                await client.close()
        self.rows.append(Row(f"RSS with {CHATS} live chats", rss / 1e6, "MB", Wanted.AT_MOST, 200))

    async def _measure_accepts(self) -> None:
        self._say("durable accepts, 64 at once")
        # The median: one side of the ratio is the disk, which is as often too fast as too slow.
        gain = median([await group_commit_gain(self._times(200)) for _ in range(2 * self._rounds - 1)])
        self.rows.append(Row("durable accepts, 64 tasks over one", gain, "×", Wanted.AT_LEAST, 10))
        cpu = await http_accept_cpu(self._times(40))
        self._add_cpu("durable accept through HTTP, 64 at once", cpu, Wanted.AT_MOST, 1)

    async def _measure_agents(self) -> None:
        self._say("warm agents")
        found = [await warm_agent_costs(self._times(100)) for _ in range(self._rounds)]
        build, held, transcript = min(found)
        self._add_cpu("agent built from 100 messages", build, Wanted.AT_MOST, 2)
        allowed = 3 * transcript + 20_000
        self.rows.append(Row("agent in memory over its allowance", held / allowed, "×", Wanted.AT_MOST, 1))

    async def _measure_context(self) -> None:
        self._say(f"a conversation of {COMPACTED_LENGTH:,} messages")
        costs = await measure_context(self._times(100), self._times(100))
        name = f"agent built from {COMPACTED_LENGTH:,} messages, compacted"
        self._add_cpu(name, costs.cold, Wanted.AT_MOST, 20)
        growth = f"turn at {COMPACTED_LENGTH:,} messages, compacted, against 2"
        self.rows.append(Row(growth, costs.long / costs.short, "×", Wanted.AT_MOST, 1.5))

    async def _measure_commands(self) -> None:
        self._say("commands of the terminal")
        costs = await command_costs(self._rounds, self._times(40))
        self.rows.append(Row("command `true`, until its result", costs.wall * 1000, "ms", Wanted.AT_MOST, 40))
        self._add_cpu("command `true`, in the gateway", costs.cpu, Wanted.AT_MOST, 4)
        megabytes = 100 if self._is_long else 10
        self._say(f"{megabytes} MB of output")
        output = await output_costs(megabytes)
        self.rows += [
            Row(
                f"gateway's growth by {megabytes} MB of output", output.growth / 1e6, "MB", Wanted.AT_MOST, 5
            ),
            Row(
                f"first token of a {MODEL_SECONDS:g} s model beside it",
                output.delay,
                "×",
                Wanted.AT_MOST,
                1.1,
            ),
        ]

    async def _measure_delegates(self) -> None:
        self._say("delegates")
        cpu = await delegate_cpu(self._rounds, self._times(100))
        self._add_cpu("delegate, beside its own turn", cpu, Wanted.AT_MOST, 3)
        held = await parked_parent_bytes(self._times(20))
        self.rows.append(Row("parent that waits for eight delegates", held / 1000, "kB", Wanted.AT_MOST, 50))

    async def _measure_tools(self) -> None:
        self._say(f"turns with {FOREIGN_TOOLS} tools of servers")
        none, many = await measure_many_tools(self._times(300), self._rounds)
        self._add_cpu("turn without HTTP", none)
        name = f"turn with {FOREIGN_TOOLS} tools of servers over one with none"
        self.rows.append(Row(name, many / none, "×", Wanted.AT_MOST, 1.1))

    async def _measure_jobs(self) -> None:
        due, stored = (1_000, 100_000) if self._is_long else (50, 1_000)
        self._say(f"{due:,} jobs due in the same second")
        crowd = await measure_crowd(due, 40 if self._is_long else 4)
        limit = 1000 * crowd.limit
        self.rows += [
            Row(f"p99 of a person's turn with a {RUN_SECONDS:g} s model", crowd.rest * 1000, "ms"),
            Row(f"… while {due:,} jobs are due at once", crowd.crowd * 1000, "ms", Wanted.AT_MOST, limit),
            Row("… runs of jobs meanwhile", crowd.ran, ""),
        ]
        self._say(f"{stored:,} stored jobs")
        seconds = 30.0 if self._is_long else 2.0
        none, many = await measure_stored(stored, seconds, self._times(200), self._rounds)
        hour = abs(many.idle_hour - none.idle_hour) / stored * 1000
        growth = f"durable turn with {stored:,} stored jobs over one without"
        self.rows += [
            Row("idle job, for an hour", hour, "ms of CPU", Wanted.AT_MOST, 1),
            Row(growth, many.turn / none.turn, "×", Wanted.AT_MOST, 1.05),
        ]

    async def _measure_recall(self) -> None:
        megabytes, sessions, backlog = (100, 100_000, 40) if self._is_long else (2, 1_000, 2)
        self._say(f"recall in {megabytes} MB")
        costs = await measure_log(megabytes)
        told = f"recall_search in {megabytes} MB"
        self.rows += [
            Row(f"{told}, words", costs.words * 1000, "ms", Wanted.AT_MOST, 200),
            Row(f"{told}, words, the slowest of 30", costs.slowest * 1000, "ms"),
            Row(f"{told}, a regex", costs.regex * 1000, "ms", Wanted.AT_MOST, 2000),
        ]
        self._add_cpu("indexing a megabyte", costs.indexing)
        self._say(f"search over {sessions:,} sessions")
        usual, slowest, exchange = await measure_sessions(sessions)
        self.rows += [
            Row(f"search over {sessions:,} sessions", usual * 1000, "ms", Wanted.AT_MOST, 50),
            Row(f"search over {sessions:,} sessions, the slowest of 30", slowest * 1000, "ms"),
        ]
        self._add_cpu("indexing the exchange of a turn, beside it", exchange)
        self._say(f"turns while {backlog} MB are indexed")
        rest, beside = await measure_beside(backlog, self._times(100))
        self.rows.append(Row("turn while the index is filled over one at rest", beside / rest, "×"))

    async def _measure_channels(self) -> None:
        self._say("idle channels")
        costs = await measure_idle_channels(120.0 if self._is_long else 5.0)
        for name, cost in costs.items():
            self.rows += [
                Row(f"idle {name}, a gateway's growth", cost.rss / 1e6, "MB", Wanted.AT_MOST, 25),
                Row(f"idle {name}, for an hour", cost.cpu, "s CPU", Wanted.AT_MOST, 0.3),
            ]

    async def _measure_page(self) -> None:
        messages, lines, turns, pages = (2000, 2000, 300, 200) if self._is_long else (200, 100, 10, 20)
        self._say("the web page in Chromium")
        cost = await measure_page(messages, lines, turns, pages)
        away = "round trip of 150 ms"
        self.rows += [
            Row("page, until it is usable: loaded", cost.core / 1000, "kB", Wanted.AT_MOST, 60),
            Row("… headers of these responses", cost.heads / 1000, "kB"),
            Row(f"… with a {away}, without a cache", cost.cold, "s", Wanted.AT_MOST, 1),
            Row(f"… with a {away}, with a cache", cost.warm, "s", Wanted.AT_MOST, 0.4),
            Row(f"… until the chats are listed, with a {away}, without a cache", cost.listed, "s"),
            Row(f"… opening a chat of {messages:,} messages", cost.opening, "s CPU", Wanted.AT_MOST, 0.5),
            Row(
                f"… longest frame above 50 ms, {lines:,} streamed lines",
                cost.frame * 1000,
                "ms",
                Wanted.AT_MOST,
                0,
            ),
            Row(
                f"… its growth by the second half of {turns} turns, without compiled code",
                cost.growth / 1000,
                "kB",
                Wanted.AT_MOST,
                100,
            ),
            Row("… a message that was sent elsewhere appears", cost.appears, "s", Wanted.AT_MOST, 0.3),
            Row(
                f"open page, the gateway's growth ({pages} pages)", cost.each / 1000, "kB", Wanted.AT_MOST, 25
            ),
            Row("… pieces of an answer that they missed", cost.lost, "", Wanted.AT_MOST, 0),
        ]
