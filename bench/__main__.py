"""`./dev bench`: the performance table. `--quick` is its short form, `--docs` writes docs/performance.*"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median

import uvloop

from bench import streams, tiny
from bench.accepts import group_commit_gain, http_accept_cpu
from bench.agents import warm_agent_costs
from bench.load import Client, Load, bare_call_cpu, fresh_names, sdk_call_cpu
from bench.processes import Metered, gateway, model_server
from bench.table import Row, Wanted, render_markdown, render_svg, render_text

LONG, SHORT = 1000, 2
CHATS = 50
KILOBYTE = "What did we say about the second part of the plan, and who takes it on? " * 14
ROUNDS = 3  # the best counts: what else the machine does can only add


class Bench:
    """One run. All ratios are within it, because machines differ and are shared."""

    def __init__(self, scale: float) -> None:
        """Below a scale of 1 conversations are shorter too, and there is one round: how good is not asked."""
        self._scale = scale
        self._long, self._rounds = (LONG, ROUNDS) if scale >= 1 else (LONG // 10, 1)
        self.rows: list[Row] = []
        self._bare_ms = 0.0

    def times(self, count: int) -> int:
        return max(2, round(count * self._scale))

    def say(self, text: str) -> None:
        print(f"  {text} …", file=sys.stderr, flush=True)

    def add_cpu(
        self, name: str, seconds: float, wanted: Wanted = Wanted.FOR_COMPARISON, limit: float = 0.0
    ) -> float:
        ms = seconds * 1000
        self.rows.append(Row(name, ms, "ms CPU", wanted, limit, ms / self._bare_ms))
        return ms

    async def run(self) -> None:
        with model_server() as model:
            self.say("bare aiohttp call")
            bare = min([await bare_call_cpu(model.url, self.times(300)) for _ in range(self._rounds)])
            self._bare_ms = bare * 1000
            self.add_cpu("bare aiohttp call, streamed", bare)
            self.say("openai SDK calls")
            self.add_cpu(
                "openai SDK call at 2 messages", await sdk_call_cpu(model.url, SHORT, self.times(200))
            )
            self.add_cpu(
                f"openai SDK call at {self._long:,} messages",
                await sdk_call_cpu(model.url, self._long, self.times(20)),
            )
            with gateway(model.url) as (served, token):
                start_cpu = served.cpu()
                await asyncio.sleep(2)  # until what it loads beside its work has been loaded
                idle_rss = served.rss()
                client = Client(served.url, token)
                try:
                    await self.turns(client, served)
                finally:
                    await client.close()
            self.rows.append(Row("start to ready", start_cpu, "s CPU", Wanted.AT_MOST, 0.5))
            self.rows.append(Row("idle RSS", idle_rss / 1e6, "MB", Wanted.AT_MOST, 60))
        self.streams()
        await self.slow_model()
        await self.live_chats()
        await self.accepts()
        await self.agents()
        await self.tiny_model()

    async def tiny_model(self) -> None:
        """Only in the long form, and only where its weights are: nothing is fetched for a figure."""
        why = "the short form leaves it out" if self._scale < 1 else tiny.missing()
        self.say(f"right answers of the built-in model{f': skipped, {why}' if why else ''}")
        if why:
            return
        score = await tiny.evaluate()
        wanted = {
            "request": ("first answers", 20),
            "dialogue": ("answers from results", 9),
            "chat": ("replies", 6),
        }
        for kind, (what, limit) in wanted.items():
            name = f"built-in model, right of {score.of[kind]} {what}"
            self.rows.append(Row(name, score.right[kind], "", Wanted.AT_LEAST, limit))
        self.rows += [
            Row("built-in model, load", score.load_seconds, "s"),
            Row("built-in model, answers", score.tokens_per_second, "tokens/s"),
            Row("built-in model, RSS", score.rss_bytes / 1e6, "MB"),
        ]

    def streams(self) -> None:
        """Ours, best of the rounds, and the official SDKs', each in a process of its own."""
        pieces = 24 if self._scale >= 1 else 3
        costs: dict[str, streams.Cost] = {}
        with model_server() as model:
            for kind in (*streams.OURS, *streams.SDKS):
                self.say(f"{streams.STREAMS} streams, {kind}")
                times = self._rounds if kind in streams.OURS else 1
                found = [streams.measure(kind, model.url, pieces) for _ in range(times)]
                costs[kind] = min(found, key=lambda cost: cost.cpu_us)
        for kind, cost in costs.items():
            wanted = (Wanted.AT_MOST, 40) if kind in streams.OURS else (Wanted.FOR_COMPARISON, 0)
            self.rows.append(Row(f"streamed piece, {_named(kind)}", cost.cpu_us, "µs CPU", *wanted))
        for kind, cost in costs.items():
            wanted = (Wanted.AT_MOST, 20) if kind in streams.OURS else (Wanted.FOR_COMPARISON, 0)
            self.rows.append(Row(f"open stream, {_named(kind)}", cost.kilobytes, "KB", *wanted))

    async def accepts(self) -> None:
        self.say("durable accepts, 64 at once")
        # The median: one part of the ratio is the disk, which is as often too good as too bad.
        gain = median([await group_commit_gain(self.times(200)) for _ in range(2 * self._rounds - 1)])
        self.rows.append(Row("durable accepts, 64 tasks over one", gain, "×", Wanted.AT_LEAST, 10))
        cpu = await http_accept_cpu(self.times(40))
        self.add_cpu("durable accept through HTTP, 64 at once", cpu, Wanted.AT_MOST, 1)

    async def agents(self) -> None:
        self.say("warm agents")
        build, held, transcript = min([await warm_agent_costs(self.times(100)) for _ in range(self._rounds)])
        self.add_cpu("agent built from 100 messages", build, Wanted.AT_MOST, 2)
        allowed = 3 * transcript + 20_000
        self.rows.append(Row("agent in memory over its allowance", held / allowed, "×", Wanted.AT_MOST, 1))

    async def turns(self, client: Client, served: Metered) -> None:
        """CPU of the gateway's process for each durable turn through HTTP."""
        await client.run(fresh_names(4), self.times(50))

        self.say("turns, alone")
        alone = [
            await self._batch(client, served, fresh_names(1), self.times(400)) for _ in range(self._rounds)
        ]
        self.add_cpu("durable turn through HTTP, alone", min(cpu for cpu, _ in alone), Wanted.AT_MOST, 2)

        self.say("turns, 16 sessions at once")
        crowd = [
            await self._batch(client, served, fresh_names(16), self.times(120)) for _ in range(self._rounds)
        ]
        self.add_cpu("durable turn, 16 sessions at once", min(cpu for cpu, _ in crowd), Wanted.AT_MOST, 1.2)
        best = max(load.per_second for _, load in crowd)
        self.rows.append(Row("turns with 16 sessions", best, "/s", Wanted.AT_LEAST, 500))

        self.say(f"turns at {SHORT} and at {self._long:,} messages")
        long_names = fresh_names(min(16, self.times(96)))
        await client.run(long_names, self._long // 2)
        short, long = [], []
        for _ in range(self._rounds):
            names = fresh_names(self.times(96))
            await client.run(names, 1)
            short.append(await self._one_by_one(client, served, names))
            long.append(
                await self._one_by_one(client, served, long_names * (self.times(96) // len(long_names)))
            )
        self.add_cpu(f"durable turn at {SHORT} messages", min(short))
        self.add_cpu(f"durable turn at {self._long:,} messages", min(long))
        growth = min(long) / min(short)
        self.rows.append(
            Row(f"growth from {SHORT} to {self._long:,} messages", growth, "×", Wanted.AT_MOST, 1.3)
        )

    async def slow_model(self) -> None:
        self.say("64 sessions with a 2 s model")
        latency = 2.0
        with model_server(latency) as model, gateway(model.url) as (served, token):
            client = Client(served.url, token)
            try:
                load = await client.run(fresh_names(64), 4 if self._scale >= 1 else 1)
            finally:
                await client.close()
        self.rows.append(
            Row("p50 of 64 sessions over the model's 2 s", load.p50 / latency, "×", Wanted.AT_MOST, 1.05)
        )

    async def live_chats(self) -> None:
        """Memory of a gateway of its own while fifty chats with a history each wait for their answers."""
        self.say(f"{CHATS} live chats")
        with model_server() as model, gateway(model.url) as (served, token):
            client = Client(served.url, token)
            try:
                names = fresh_names(CHATS)
                await client.run(names, self.times(20), KILOBYTE)
                answers = asyncio.gather(*(client.turn(name, f"[[delay 3]] {KILOBYTE}") for name in names))
                while await client.busy_agents() < CHATS:
                    await asyncio.sleep(0.1)
                rss = served.rss()
                await answers
            finally:
                await client.close()
        self.rows.append(Row(f"RSS with {CHATS} live chats", rss / 1e6, "MB", Wanted.AT_MOST, 200))

    async def _batch(
        self, client: Client, served: Metered, names: list[str], turns: int
    ) -> tuple[float, Load]:
        """CPU per turn of sessions side by side, and how it looked from outside."""
        before = served.cpu()
        load = await client.run(names, turns)
        return (served.cpu() - before) / len(load.latencies), load

    async def _one_by_one(self, client: Client, served: Metered, names: list[str]) -> float:
        """CPU per turn, one in each session, one after the other."""
        before = served.cpu()
        for name in names:
            await client.run([name], 1)
        return (served.cpu() - before) / len(names)


def _named(kind: str) -> str:
    return f"{kind} SDK" if kind in streams.SDKS else kind


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns, shorter conversations")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--docs", action="store_true", help="also write docs/performance.md and .svg")
    options = parser.parse_args()
    bench = Bench(1 / 20 if options.quick else 1)
    uvloop.run(bench.run())
    if options.json:
        rows = [{**asdict(row), "wanted": row.wanted.value, "verdict": row.verdict} for row in bench.rows]
        print(json.dumps(rows, indent=1))
    else:
        print(render_text(bench.rows))
    if options.docs:
        write_docs(bench.rows)


def write_docs(rows: list[Row]) -> None:
    docs = Path(__file__).parent.parent / "docs"
    machine = (
        f"{platform.machine()}, Python {platform.python_version()}, 2 cores with client and model server"
    )
    (docs / "performance.svg").write_text(render_svg(rows, "ms CPU", "CPU, milliseconds, logarithmic scale"))
    (docs / "streams.svg").write_text(
        render_svg(rows, "µs CPU", "CPU for a streamed piece, microseconds, logarithmic scale")
    )
    (docs / "performance.md").write_text(
        f"""# What a turn costs

Written by `./dev bench --docs`. All figures come from one run on one machine
({machine}); compare the ratios, not the milliseconds.

A *durable turn* is everything from the HTTP request to its answer: accepted with an
fsync, leased, run against the scripted model server (which answers at once), logged and settled with another
fsync. Its cost is the CPU time of the gateway's process, user and system, all threads; of three rounds the
best counts, since whatever else the machine does can only add to it. The scripted server sends its short
answer in one HTTP chunk; a server that sends one for each event adds about 0.1 ms, in the client library.

![CPU per call and per turn](performance.svg)

A *streamed piece* is what one HTTP chunk of an answer costs the process that reads it, while
{streams.STREAMS} answers come in side by side over plain HTTP, each a piece every {streams.PAUSE:g} seconds;
an *open stream* is what that process grows by for each of them. The SDKs read the same pieces from the same
server.

![CPU per streamed piece](streams.svg)

{render_markdown(rows)}
"""
    )


if __name__ == "__main__":
    main()
