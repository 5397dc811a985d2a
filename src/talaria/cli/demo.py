"""`talaria demo`: the gateway's guarantees, shown without a key, an account or a trace."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from talaria.cli.options import Invocation, group, run_loop
from talaria.testing.crash_demo import CrashDemo, DemoState, MessageState

_LOG_LINES = 12
_FRAMES_PER_SECOND = 10
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # SIGINT ends every command
_CELLS = {
    MessageState.TO_COME: ("·", "dim"),
    MessageState.SENT: ("○", "white"),
    MessageState.ACCEPTED: ("◐", "bold yellow"),
    MessageState.ANSWERED: ("●", "bold green"),
    MessageState.RESENT: ("↻", "bold green"),
    MessageState.GIVEN_UP: ("!", "bold yellow"),
    MessageState.LOST: ("✗", "bold red"),
    MessageState.DUPLICATED: ("‼", "bold red"),
}


@group("demo", "talaria demo crash")
def command() -> None:
    """See the gateway keep its promises. No key is needed, and nothing is left behind."""


@command.verb("crash", "talaria demo crash", "talaria demo crash --kills 20")
@click.option("--kills", default=5, show_default=True, type=click.IntRange(1, 50), help="How many kills.")
def _crash(invocation: Invocation, kills: int) -> int:
    """Kill a gateway again and again while ten people write to it, and count their answers.

    A fake chat platform, a scripted model and a real gateway run on this machine for about half a minute,
    in a temporary home. Exits with status 1 if a message was lost, or answered twice without a mark.
    """
    return run_loop(_run(kills))


async def _run(kills: int) -> int:
    showing, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert showing is not None
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, showing.cancel, number)
    log: deque[str] = deque(maxlen=_LOG_LINES)
    is_live = sys.stdout.isatty()
    demo = CrashDemo(
        lambda line: (log.append if is_live else click.echo)(f"{demo.seconds:5.1f} s  {line}"), kills
    )
    try:
        end = await (_show(demo, log) if is_live else demo.run())
    except asyncio.CancelledError as stopped:
        if not stopped.args:
            raise
        return 128 + int(stopped.args[0])
    click.echo(summary(end))
    return 0 if end.is_good else 1


async def _show(demo: CrashDemo, log: deque[str]) -> DemoState:
    """Draw the demonstration until it ends. The last picture stays on the terminal."""
    running = asyncio.create_task(demo.run(), name="crash demo")
    try:
        with Live(render(demo.state(), log), auto_refresh=False) as live:
            while not running.done():
                await asyncio.wait((running,), timeout=1 / _FRAMES_PER_SECOND)
                live.update(render(demo.state(), log), refresh=True)
        return running.result()
    finally:
        running.cancel()
        await asyncio.wait((running,))


def render(state: DemoState, log: deque[str]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for name, states in state.rows:
        grid.add_row(Text(f"  {name:<5}"), *(Text(*_CELLS[each]) for each in states))
    events = Text("\n".join(log), style="dim", no_wrap=True, overflow="ellipsis")
    events.highlight_regex(r"kill -9 \d+", "bold red")
    events.highlight_regex(r"gateway up", "bold green")
    columns = Table.grid(padding=(0, 4))
    columns.add_row(grid, events)
    total = sum(len(states) for _, states in state.rows)
    style = "bold red" if state.gateway == "DOWN" else "bold"
    head = Text.assemble("  gateway ", (state.gateway, style), f"   kills {state.kills} of {state.planned}")
    head.append(f"   answered {state.answered} of {total}   {state.seconds:.0f} s")
    times = "once" if state.planned == 1 else f"{state.planned} times"
    title = Text(f"  Ten people write to a gateway that is killed {times} (SIGKILL)", style="bold")
    return Group("", title, "", head, "", columns, "", _legend(), "")


def _legend() -> RenderableType:
    parts: list[str | tuple[str, str]] = ["  "]
    for state, (sign, style) in _CELLS.items():
        if state not in (MessageState.TO_COME, MessageState.GIVEN_UP):
            text = "twice, marked" if state is MessageState.RESENT else state.value
            parts += [(sign, style), f" {text}   "]
    return Text.assemble(*parts, style="dim")


def summary(end: DemoState) -> str:
    report = end.report
    assert report is not None
    lines = [
        f"{report.sent} messages, {end.kills} kills, {end.seconds:.0f} s: "
        f"{report.answered} answered, {len(report.lost)} lost, {len(report.duplicated)} duplicated.",
        f"Tool calls that took effect twice: {end.repeated}. "
        f"Replies out of order: {len(report.out_of_order)}.",
    ]
    if report.given_up:
        lines.append(f"Abandoned after three crashes, and reported as such: {report.given_up}.")
    if report.resent:
        why = "because a kill hid whether the first attempt arrived"
        lines.append(f"Sent again with a visible mark, {why}: {report.resent}.")
    if report.previews:
        lines.append(f"Previews of unfinished answers that a kill left in a chat: {report.previews}.")
    return "\n".join(lines)
