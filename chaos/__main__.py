"""`./dev chaos`: kills, pauses and stops of real processes, and attacks. --quick runs a twentieth."""

from __future__ import annotations

import argparse
import asyncio
import logging
import platform
import sys
from functools import partial
from pathlib import Path

from chaos import sandbox, schema
from chaos.addresses import AddressRun
from chaos.attacks import all_attacks
from chaos.catching import on_cluster, run_planted
from chaos.cluster_docs import SECTION, read_cluster_docs, write_cluster_docs
from chaos.commands_docs import write_commands_docs
from chaos.disk import DELETED, FAULTS, FROZEN, DiskRun
from chaos.fuzz import HttpFuzzRun
from chaos.hostile import HostileRun, Outcome
from chaos.job_kills import JobKillRun
from chaos.kills import KillResults, KillRun
from chaos.limits_docs import render_table, write_limits_docs
from chaos.loop_disk import why_not
from chaos.nonces import explore_many
from chaos.pauses import PauseRun
from chaos.processes import ProcessKillRun
from chaos.proxy_attacks import ProxyAttackRun, all_proxy_attacks
from chaos.reminder_kills import ReminderKillRun
from chaos.retries import RetryRun, has_node
from chaos.start_kills import StartKillRun
from chaos.stops import CancelRun, DrainRun, PoisonRun
from chaos.webhooks import WebhookRun
from mutants.planting import planted_faults
from soak.report import Figure, Progress, render_markdown, render_svg, render_text

PARTS = (
    "kills",
    "processes",
    "starts",
    "jobs",
    "reminders",
    "retries",
    "nonces",
    "pauses",
    "cancels",
    "sigterm",
    "poison",
)
# Attacks from outside, with a page of their own.
OUTSIDE = ("hostile", "http", "webhooks", "schema", "addresses", "proxy", "disk", "sandbox")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the counts")
    parser.add_argument(
        "--only", choices=PARTS + OUTSIDE, action="append", help="this part (may be repeated)"
    )
    parser.add_argument("--kills", type=int, metavar="N", help="number of kills (default: 500)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="gateways at once (default: 2)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="other random moments (default: 1)")
    parser.add_argument(
        "--store", choices=("postgres",), help="faults of three gateways on PostgreSQL, and nothing else"
    )
    parser.add_argument("--faults", type=int, metavar="N", help="with --store (default: 300)")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="plant known faults, as `./dev mutants --planted` does"
    )
    parser.add_argument("--resume", action="store_true", help="with --mutants: continue the last run")
    parser.add_argument("--docs", action="store_true", help="also write docs/chaos.md and docs/limits.md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    if options.mutants is not None:
        has_cluster = options.store is not None
        tell = partial(print, flush=True)
        sys.exit(run_planted(options.mutants, tell, is_resumed=options.resume, has_cluster=has_cluster))
    sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the tests bring PostgreSQL
    progress = Progress()
    if options.store is not None:
        sys.exit(0 if _strike_cluster(options, progress) else 1)
    figures, results = asyncio.run(_run(options, progress))
    outside, outcomes = asyncio.run(_attack(options, progress))
    commands = asyncio.run(_run_commands(options, progress))
    print(render_text(figures + outside + commands))
    if results is not None and not results.is_good:
        print(f"seed {options.seed}: effects repeated: {results.repeated}, damage: {results.damaged}")
        print("\n\n".join(results.evidence))
    if options.docs and figures:
        write_docs(figures, results)
    if options.docs and outcomes:
        write_limits_docs(outside, outcomes)
    sys.exit(0 if all(figure.is_reached for figure in figures + outside + commands) else 1)


def _strike_cluster(options: argparse.Namespace, progress: Progress) -> bool:
    """Strike three gateways on PostgreSQL, and return whether all figures are reached."""
    from chaos.cluster import ClusterRun  # noqa: PLC0415 - psycopg and the server are not needed otherwise

    count = options.faults or (15 if options.quick else 300)
    run = ClusterRun(count, progress, options.seed)
    figures = asyncio.run(run.run())
    print(render_text(figures))
    if options.docs:
        write_cluster_docs(figures, on_cluster(planted_faults()))
    if not (is_good := all(figure.is_reached for figure in figures)):
        print(f"seed {options.seed}:\n{run.findings()}")
    return is_good


async def _run(options: argparse.Namespace, progress: Progress) -> tuple[list[Figure], KillResults | None]:
    parts = options.only or PARTS
    figures: list[Figure] = []
    results = None

    def times(count: int) -> int:
        return max(1, count // 20) if options.quick else count

    if "kills" in parts:
        kills = options.kills or times(500)
        results = await KillRun(kills, progress, workers=options.workers, seed=options.seed).run()
        figures += results.figures()
    if "processes" in parts:
        beside = ProcessKillRun(times(100), progress, options.seed)
        figures += await beside.run()
        found = beside.results
        print(*found.untold, *found.repeated, *found.left, sep="\n")
    if "starts" in parts:
        starts = StartKillRun(times(3000), options.seed)
        figures += await starts.run()
        print(*starts.left, sep="\n")
    if "jobs" in parts:
        jobs = JobKillRun(times(200), progress, options.seed)
        figures += await jobs.run()
        print(*jobs.results.untold, *jobs.results.told_twice, *jobs.results.unended, sep="\n")
    if "reminders" in parts:
        reminders = ReminderKillRun(200, 20, progress, options.seed)
        figures += await reminders.run()
        told = reminders.results
        print(*told.lost, *told.sent_twice, *told.late, sep="\n")
    if "retries" in parts:
        retries = await RetryRun(times(1000), progress, options.seed, with_node=has_node()).run()
        figures += retries.figures()
        if not retries.is_good:
            print(retries.evidence())
    if "nonces" in parts:
        figures += await explore_many(times(500), progress)
    if "pauses" in parts:
        figures += await PauseRun(times(500), progress, options.seed).run()
    if "cancels" in parts:
        figures += await CancelRun(times(2000), progress, options.seed).run()
    if "sigterm" in parts:
        figures += await DrainRun(50, 3.0 if options.quick else 10.0).run()
    if "poison" in parts:
        figures += await PoisonRun().run()
    return figures, results


async def _attack(options: argparse.Namespace, progress: Progress) -> tuple[list[Figure], list[Outcome]]:
    parts, share = options.only or OUTSIDE, 20 if options.quick else 1
    figures: list[Figure] = []
    outcomes: list[Outcome] = []
    if "hostile" in parts:
        run = HostileRun(all_attacks()[::share], progress)
        figures += await run.run()
        outcomes = run.outcomes
        print(render_table(outcomes), *run.evidence, sep="\n")
    if "http" in parts:
        fuzz = HttpFuzzRun(10_000 // share, 2000 // share, 16, progress, options.seed)
        figures += await fuzz.run()
        print(*fuzz.evidence, sep="\n")
    if "webhooks" in parts:
        calls = WebhookRun(1000 // share, progress, options.seed)
        figures += await calls.run()
        print(*calls.evidence, sep="\n")
    if "schema" in parts and (lack := schema.why_not()):
        print(f"schema: not run, because {lack}")
    elif "schema" in parts:
        checked = schema.SchemaRun(3 if options.quick else 60)
        figures += await checked.run()
        if not all(figure.is_reached for figure in figures):
            print(checked.text)
    if "addresses" in parts:
        addresses = AddressRun(500 // share, progress, options.seed)
        figures += await addresses.run()
        print(*addresses.reached, sep="\n")
    if "proxy" in parts:
        attacked = ProxyAttackRun(all_proxy_attacks(300 // share), progress)
        figures += await attacked.run()
        print(*attacked.evidence, sep="\n")
    if "disk" in parts and (reason := why_not()):
        print(f"disk: not run, because {reason}")
    elif "disk" in parts:
        faults = (FROZEN, DELETED) if options.quick else FAULTS
        figures += await DiskRun(faults, progress, 3.0 if options.quick else 5.0).run()
    return figures, outcomes


async def _run_commands(options: argparse.Namespace, progress: Progress) -> list[Figure]:
    if "sandbox" not in (options.only or OUTSIDE):
        return []
    if reason := await sandbox.why_not():
        print(f"sandbox: not run, because {reason}")
        return []
    run = sandbox.SandboxRun(50 if options.quick else 1000, progress, options.seed)
    figures = await run.run()
    print(*run.evidence, sep="\n")
    if options.docs:
        write_commands_docs(figures, run.outcomes)
    return figures


def write_docs(figures: list[Figure], results: KillResults | None) -> None:
    docs = Path(__file__).parent.parent / "docs"
    struck = ""
    if results is not None:
        title = f"{results.total} kills of gateways in the middle of their work"
        (docs / "chaos.svg").write_text(render_svg(title, results.curves(), "kills"))
        struck = ", ".join(f"{point} {count}" for point, count in results.kills.most_common())
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    (docs / "chaos.md").write_text(
        f"""# What holds when processes die

Written by `./dev chaos --docs` ({machine}). All checks are from the outside: the
messages in the chats, the files that tools changed, `/proc` and `/api/status`. `talaria demo crash` is a
small version to watch.

- *Kills*: users write to real gateways on a fake Bot API. They send plain messages, tool calls, slow
  answers with a live preview, commands, edits, buttons, and messages that join or stop a turn. The
  platform delivers some updates twice. Each life ends with SIGKILL, at a random moment or at a labelled
  point between a commit and its effect outside (`core/failpoints.py`). A few homes live through the whole
  run; half of them poll, the others use a webhook. A message is *lost* when nothing is owed any more and
  its chat shows no reply. A tool call appends a line to a file, so a repeated *effect* is visible there.
  After each kill a copy of the database goes through `PRAGMA integrity_check`.
- *Kills beside processes*: chats run commands and start background processes, half of which wake them, while
  the gateway is killed, also between a record, a start, a note or a turn and what follows it. A fifth of
  the kills hits a shim too. Every process that ended must have been told to its session exactly once, as
  ended or as lost; no command may have run twice; after `/new` no process and no folder is left.
- *Kills while a sandbox starts*: gateways are killed at random moments between the start of bubblewrap and
  that of the command, or while the network of a session is made. No process may be left.
- *Retries*: clients ask sessions for a tool call with an effect. Their connections are cut, their time limits
  are shorter than most turns, and the gateway is killed. openai-python and openai-node number their
  retries; the AI SDK and a plain client just send the request again. (The clients for node take part where
  `TALARIA_NODE_MODULES` has them.) No effect may happen twice, and the answer must tell a missing one as
  *outcome unknown*.
- Telegram takes no nonce. When a kill hides whether a reply arrived, the reply is sent again with a
  visible mark; only a second copy *without* the mark counts as duplicated. When a kill keeps the id of a
  live preview from being stored, the preview stays in the chat with its cursor, and the reply is a new
  message.
- *Nonces*: on a platform that takes them there are no second copies. This runs in one process, with a
  platform in memory that fails in every way, and crashes at random moments.
- *Pauses*: four processes on one SQLite file hold leases of 300 ms. Two at a time are stopped with
  SIGSTOP for longer than their leases. The others take over their sessions, and late writes of the
  stopped ones must be refused.
- *Cancels*: turns are cancelled with `/stop` and over HTTP at random moments. Afterwards the gateway must
  have no more sockets, children, threads, leased agents, permits or owed turns than before.
- *SIGTERM* with fifty live turns, a third of which can end in time. The next start resumes the others.
- *Poison*: a message that kills the process on every attempt.
- *HTTP*: fuzzed requests and slow or silent connections from four addresses, while chats go on over the same
  server. No turn may fail, no answer may be a 500, and descriptors and memory must come back.
- *Addresses*: forms of addresses that are not public, in URLs, redirects and answers of DNS that change,
  through the proxy of commands and a client that fetches pages. What the check lets through is counted
  instead of connected to.
- *Proxy*: commands and hosts attack the proxy: endless and smuggled heads, silent and too many connections,
  chunks without end, tunnels to paths. After each, a good request must be answered.
- *Disk*: the home is on an ext4 file system of its own, which becomes full, read-only, frozen or slow while
  sixteen chats write, or loses the database file. Needs root and loop devices.

`./dev test` runs a twentieth of all this.

![answered, resent and lost over the kills](chaos.svg)

{render_markdown(figures)}

Kills by point: {struck or "not run"}.

{SECTION}{read_cluster_docs()}
## Planted faults

`./dev mutants --planted` plants known faults in a copy of the source, one at a time. A test, or a short
form of one of the runs above, must catch each of them: see [mutants.md](mutants.md#planted-faults).
"""
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # all processes and folders are gone by now
        sys.exit(130)
