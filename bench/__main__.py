"""`./dev bench`: the performance table. Everything takes about ten minutes; --quick about one.

--compare PATH shows the cost of a change: it alternates between this checkout and the one at PATH, which
needs a .venv of its own, and prints the medians and their ratios. With --instructions it counts instructions
under valgrind instead, which other work on the machine hardly changes.

--calls counts the Python and C calls of a turn, by package. The counts are exact. --top N lists the functions
that are called most often. --record writes bench/calls.json, which the tests compare with.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import uvloop

from bench import calls, pieces, streams
from bench.compare import ROUNDS, compare, render
from bench.instructions import compare_instructions
from bench.suite import PARTS, Suite
from bench.table import Row, render_markdown, render_svg, render_text


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer turns, shorter conversations")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (may be repeated)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--docs", action="store_true", help="also write docs/performance.md and .svg")
    parser.add_argument(
        "--compare", type=Path, metavar="PATH", help="turns of this checkout and another one's"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="of --compare (default: %(default)s)"
    )
    parser.add_argument("--instructions", action="store_true", help="--compare counts instructions")
    parser.add_argument("--calls", action="store_true", help="count the calls of a turn, by package")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="with --calls: the top N functions")
    parser.add_argument("--record", action="store_true", help="with --calls: write bench/calls.json")
    parser.add_argument(
        "--store", choices=("postgres",), help="turns on PostgreSQL against turns on SQLite, and nothing else"
    )
    parser.add_argument(
        "--gateways", type=int, metavar="N", help="with --store: 1 to N gateways on one database only"
    )
    options = parser.parse_args()
    if options.calls:
        counted = calls.count_calls()
        print(calls.render(counted, options.top))
        if options.record:
            calls.record(counted)
        return
    if options.instructions:
        if options.compare is None:
            parser.error("--instructions needs --compare PATH")
        print(render(uvloop.run(compare_instructions(options.compare, _say)), "thousands of instructions"))
        return
    if options.compare is not None:
        print(render(uvloop.run(compare(options.compare, _say, options.rounds))))
        return
    if options.store is not None:
        from bench.gateways import cluster_rows  # noqa: PLC0415
        from bench.postgres import postgres_rows  # noqa: PLC0415
        from bench.postgres_sizes import size_rows  # noqa: PLC0415

        scale = 1 / 20 if options.quick else 1
        if options.gateways:
            print(render_text(uvloop.run(cluster_rows(options.gateways, scale))))
            return
        print(render_text([*uvloop.run(postgres_rows(scale)), *uvloop.run(size_rows(scale))]))
        return
    suite = Suite(1 / 20 if options.quick else 1)
    uvloop.run(suite.run(options.only or PARTS))
    if options.json:
        rows = [{**asdict(row), "wanted": row.wanted.value, "verdict": row.verdict} for row in suite.rows]
        print(json.dumps(rows, indent=1))
    else:
        print(render_text(suite.rows))
    if options.docs:
        write_docs(suite.rows)


def _say(text: str) -> None:
    print(f"  {text} …", file=sys.stderr, flush=True)


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
fsync. Its cost is the CPU time of the gateway's process, user and system, all threads. Of three rounds the
best counts: other work of the machine can only add to it. The scripted server sends its short answer in one
HTTP chunk; a server that sends one for each event adds about 0.1 ms, in the client library.

`./dev bench --calls` counts the Python and C calls of one durable turn in the gateway's process, by package:
one connection for each message, a warm agent, no tools. Counts are exact and do not depend on the load of the
machine, so they also show what a small change costs. They do not show how long a call takes.

![CPU per call and per turn](performance.svg)

A *streamed piece* is what one HTTP chunk of an answer costs the process that reads it, while
{streams.STREAMS} answers come in side by side over plain HTTP, each a piece every {streams.PAUSE:g} seconds;
an *open stream* is what that process grows by for each of them. The SDKs read the same pieces from the same
server. A *piece through* an API of `/v1` is what the gateway spends on it, from the model's server to the
client, with {pieces.STREAMS} answers side by side.

![CPU per streamed piece](streams.svg)

*Jobs*: eight people send messages one by one, at rest and while 1,000 jobs come due in the same second; the
limit is 1.5 times the time at rest and 20 ms. An *idle job* is stored and not due.

{render_markdown(rows)}
"""
    )


if __name__ == "__main__":
    main()
