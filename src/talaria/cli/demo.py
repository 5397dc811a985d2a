"""`talaria demo`: what the gateway promises, for anyone to see; no key, no account, nothing left behind."""

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

from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, group
from talaria.testing.crash_demo import CrashDemo, Scene

_LINES = 12
_LOOKS_PER_SECOND = 10
_ENDING = (signal.SIGTERM, signal.SIGHUP)  # Ctrl-C ends it too, as every command
_CELLS = {
    "to come": ("·", "dim"),
    "sent": ("○", "white"),
    "accepted": ("◐", "bold yellow"),
    "answered": ("●", "bold green"),
    "answered, and again with a mark": ("↻", "bold green"),
    "given up, and told": ("!", "bold yellow"),
    "lost": ("✗", "bold red"),
    "doubled": ("‼", "bold red"),
}


@group("demo", "talaria demo crash", later=("memory",))
def command() -> None:
    """See for yourself what the gateway promises. No key is needed, and nothing is left behind."""


@command.verb("crash", "talaria demo crash", "talaria demo crash --kills 20")
@click.option("--kills", default=5, show_default=True, type=click.IntRange(1, 50), help="How many kills.")
def _crash(invocation: Invocation, kills: int) -> int:
    """Kill a gateway again and again while ten people write to it, and count their answers.

    A fake chat platform, a scripted model and a real gateway run on this machine for about half a minute,
    in a temporary home. Ends with status 1 if a message was lost, or answered twice without a mark.
    """
    return run_loop(_run(kills))


async def _run(kills: int) -> int:
    showing, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert showing is not None
    for number in _ENDING:
        loop.add_signal_handler(number, showing.cancel, number)
    told: deque[str] = deque(maxlen=_LINES)
    try:
        if sys.stdout.isatty():
            demo = CrashDemo(lambda text: told.append(f"{demo.scene().seconds:5.1f} s  {text}"), kills)
            scene = await _show(demo, told)
        else:
            demo = CrashDemo(lambda text: click.echo(f"{demo.scene().seconds:5.1f} s  {text}"), kills)
            scene = await demo.run()
    except asyncio.CancelledError as stopped:
        if not stopped.args:
            raise
        return 128 + int(stopped.args[0])
    click.echo(summary(scene))
    return 0 if scene.is_good else 1


async def _show(demo: CrashDemo, told: deque[str]) -> Scene:
    """The grid, drawn until the show is over; the last look stays on the terminal."""
    running = asyncio.create_task(demo.run(), name="crash demo")
    try:
        with Live(render(demo.scene(), told), auto_refresh=False) as live:
            while not running.done():
                await asyncio.wait((running,), timeout=1 / _LOOKS_PER_SECOND)
                live.update(render(demo.scene(), told), refresh=True)
        return running.result()
    finally:
        running.cancel()
        await asyncio.wait((running,))


def render(scene: Scene, told: deque[str]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for name, fates in scene.rows:
        grid.add_row(Text(f"  {name:<5}"), *(Text(*_CELLS[fate]) for fate in fates))
    events = Text("\n".join(told), style="dim", no_wrap=True, overflow="ellipsis")
    events.highlight_regex(r"kill -9 \d+", "bold red")
    events.highlight_regex(r"gateway up", "bold green")
    beside = Table.grid(padding=(0, 4))
    beside.add_row(grid, events)
    total = sum(len(fates) for _, fates in scene.rows)
    style = "bold red" if scene.gateway == "DOWN" else "bold"
    head = Text.assemble("  gateway ", (scene.gateway, style), f"   kills {scene.kills} of {scene.planned}")
    head.append(f"   answered {scene.answered} of {total}   {scene.seconds:.0f} s")
    times = "once" if scene.planned == 1 else f"{scene.planned} times"
    title = Text(f"  Ten people write to a gateway that is killed {times} (SIGKILL)", style="bold")
    return Group("", title, "", head, "", beside, "", _legend(), "")


def _legend() -> RenderableType:
    parts: list[str | tuple[str, str]] = ["  "]
    for fate, (sign, style) in _CELLS.items():
        if fate not in ("to come", "given up, and told"):
            parts += [(sign, style), f" {'twice, marked' if 'again' in fate else fate}   "]
    return Text.assemble(*parts, style="dim")


def summary(scene: Scene) -> str:
    verdict = scene.verdict
    assert verdict is not None
    lines = [
        f"{verdict.asked} messages, {scene.kills} kills, {scene.seconds:.0f} s: "
        f"{verdict.answered} answered, {len(verdict.lost)} lost, {len(verdict.unmarked)} doubled.",
        f"Tool calls that took effect twice: {scene.repeated}. "
        f"Replies out of order: {len(verdict.disordered)}.",
    ]
    if verdict.told:
        lines.append(f"Given up after three crashes, and told so: {verdict.told}.")
    if verdict.resent:
        why = "because a kill hid whether the first try arrived"
        lines.append(f"Sent again with a visible mark, {why}: {verdict.resent}.")
    if verdict.previews:
        lines.append(f"Previews of unfinished answers that a kill left in a chat: {verdict.previews}.")
    return "\n".join(lines)
