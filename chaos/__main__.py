"""`./dev chaos`: kills, pauses, cancels and stops of real processes; `--quick`: a twentieth."""

from __future__ import annotations

import argparse
import asyncio
import logging
import platform
import sys
from pathlib import Path

from chaos.killing import Killing, Tally
from chaos.mutants import MUTANTS, Kills, Pauses, Tests, render, try_all
from chaos.nonces import explore_many
from chaos.pausing import Pausing
from chaos.stopping import Cancelling, Draining, Poison
from soak.report import Figure, Progress, render_markdown, render_svg, render_text

PARTS = ("kills", "nonces", "pauses", "cancels", "sigterm", "poison")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the counts")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (may be repeated)")
    parser.add_argument("--kills", type=int, metavar="N", help="so many kills (default: 500)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="gateways at once (default: 2)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="draws other moments (default: 1)")
    parser.add_argument("--mutants", action="store_true", help="plant known faults, and see each caught")
    parser.add_argument("--docs", action="store_true", help="also write docs/chaos.md and docs/chaos.svg")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    if options.mutants:
        caught = asyncio.run(try_all(lambda text: print(text, flush=True)))
        print(render(caught))
        sys.exit(0 if all(one.is_caught for one in caught) else 1)
    figures, tally = asyncio.run(_run(options))
    print(render_text(figures))
    if tally is not None and not tally.is_good:
        print(f"seed {options.seed}: effects repeated: {tally.repeated}, damage: {tally.damaged}")
        print("\n\n".join(tally.evidence))
    if options.docs:
        write_docs(figures, tally)
    sys.exit(0 if all(figure.is_reached for figure in figures) else 1)


async def _run(options: argparse.Namespace) -> tuple[list[Figure], Tally | None]:
    parts, progress = options.only or PARTS, Progress()
    figures: list[Figure] = []
    tally = None

    def times(count: int) -> int:
        return max(1, count // 20) if options.quick else count

    if "kills" in parts:
        kills = options.kills or times(500)
        tally = await Killing(kills, progress, workers=options.workers, seed=options.seed).run()
        figures += tally.figures()
    if "nonces" in parts:
        figures += await explore_many(times(500), progress)
    if "pauses" in parts:
        figures += await Pausing(times(500), progress, options.seed).run()
    if "cancels" in parts:
        figures += await Cancelling(times(2000), progress, options.seed).run()
    if "sigterm" in parts:
        figures += await Draining(50, 3.0 if options.quick else 10.0).run()
    if "poison" in parts:
        figures += await Poison().run()
    return figures, tally


def write_docs(figures: list[Figure], tally: Tally | None) -> None:
    docs = Path(__file__).parent.parent / "docs"
    struck = ""
    if tally is not None:
        title = f"{tally.total} kills of gateways in the middle of their work"
        (docs / "chaos.svg").write_text(render_svg(title, tally.curves(), "kills"))
        struck = ", ".join(f"{point} {count}" for point, count in tally.kills.most_common())
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    (docs / "chaos.md").write_text(
        f"""# What holds when processes die

Written by `./dev chaos --docs` ({machine}). Everything is seen from outside: what the chats show, which files
the tools changed, what `/proc` and `/api/status` say. `talaria demo crash` is the same in small, to watch.

- *Kills*: people write to real gateways on a fake Bot API, with plain messages, tool calls, slow answers that
  are shown while they grow, commands, edits, buttons, messages that join or stop a turn, and updates that
  the platform hands out twice. Each life ends with SIGKILL, at a labelled point between a commit and what the
  world hears of it (`core/failpoints.py`) or at any moment. A few homes live through all of it; half of them
  poll, the others are called by webhook. A message is *lost* when its chat shows no reply to it once nothing
  is owed any more. A tool call appends a line to a file, so a repeated *effect* is seen in the file. After
  each kill a copy of the database goes through `PRAGMA integrity_check`.
- Telegram takes no nonce. When a kill hides whether a reply arrived, it is sent again with a mark that people
  can see; only a second copy *without* it counts as doubled. A live message whose id a kill kept from being
  stored stays in the chat with its cursor, and the reply comes as a message of its own.
- *Nonces*: where a platform takes them there are no second copies. Shown in one process, with a platform in
  memory that fails in every way, over crashes at any moment.
- *Pauses*: four processes on one SQLite file hold leases of 300 ms. Two at a time are stopped with SIGSTOP
  past their leases, the others take their sessions over, and what the stopped ones write afterwards must be
  refused.
- *Cancels*: turns are stopped with `/stop` and over HTTP at any moment. Afterwards the gateway must have no
  more sockets, children, threads, leased agents, permits or owed turns than before.
- *SIGTERM* with fifty live turns, a third of which can end in time; the next start takes up the others.
- *Poison*: a message that takes the process down whenever it is tried.

`./dev test` runs a twentieth of all this.

![answered, resent and lost over the kills](chaos.svg)

{render_markdown(figures)}

Where the kills struck: {struck or "not run"}.

## Faults that must be caught

`./dev chaos --mutants` plants each of these in a copy of the source, one at a time, and shows that it is
caught.

{_faults()}
"""
    )


def _faults() -> str:
    lines = ["| fault | what it breaks | caught by |", "|---|---|---|"]
    for mutant in MUTANTS:
        match mutant.noticed_by:
            case Kills(points=points):
                how = f"kills at {', '.join(f'`{point}`' for point in points)}"
            case Pauses(count=count):
                how = f"{count} pauses"
            case Tests(node=node):
                how = f"`{node}`"
        lines.append(f"| {mutant.name} | {mutant.why} | {how} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # every process and folder is gone by now
        sys.exit(130)
