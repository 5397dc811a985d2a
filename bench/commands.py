"""What commands of the terminal cost the gateway: a small one, and one with much output."""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench.load import Client, fresh_names
from bench.processes import Metered, gateway, model_server

MODEL_SECONDS = 0.2  # until the first token of a quick model
_CROWD = 4
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class CommandCosts:
    """A command that does nothing: seconds of the clock and of the gateway's CPU, over a call that fails at
    once."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class OutputCosts:
    """Much output of one chat: how much the gateway grew by, and by what factor the first token of other
    chats came later than beside the same command without output."""

    growth: int
    delay: float


async def command_costs(rounds: int, count: int) -> CommandCosts:
    with model_server() as model, gateway(model.url) as (served, token):
        client = Client(served.url, token)
        try:
            (name,) = fresh_names(1)
            for _ in range(3):
                await client.turn(name, call("terminal", "true"))
            empty = [
                await _cost(client, served, name, call("no_such_tool", ""), count) for _ in range(rounds)
            ]
            filled = [
                await _cost(client, served, name, call("terminal", "true"), count) for _ in range(rounds)
            ]
        finally:
            await client.close()
    return CommandCosts(
        min(wall for wall, _ in filled) - min(wall for wall, _ in empty),
        min(cpu for _, cpu in filled) - min(cpu for _, cpu in empty),
    )


async def output_costs(megabytes: int) -> OutputCosts:
    words = f"seq 1 {2 * megabytes * _MEGABYTE // 9} | head -c {megabytes * _MEGABYTE}"
    with model_server(MODEL_SECONDS) as model, gateway(model.url) as (served, token):
        client = Client(served.url, token)
        try:
            names = fresh_names(_CROWD + 1)
            await client.run(names, 2)
            await client.turn(names[0], call("terminal", "true"))
            silent = f"for n in 1 2 3 4; do {words} >/dev/null; done"
            before = await _beside(client, names[1:], names[0], call("terminal", silent))
            rss = served.rss()
            _reset_peak(served)
            during = await _beside(client, names[1:], names[0], call("terminal", words))
            return OutputCosts(_peak(served) - rss, statistics.median(during) / statistics.median(before))
        finally:
            await client.close()


def call(tool: str, command: str) -> str:
    """Return a message upon which the scripted model calls a tool."""
    return f"[[call {tool} {json.dumps({'command': command})}]][[reply done]]"


async def _cost(client: Client, served: Metered, name: str, text: str, count: int) -> tuple[float, float]:
    before = served.cpu()
    walls = [await client.turn(name, text) for _ in range(count)]
    return statistics.median(walls), (served.cpu() - before) / count


async def _beside(client: Client, names: list[str], busy: str, text: str) -> list[float]:
    """Return the latencies of turns in other chats while one chat runs a command."""
    running = asyncio.create_task(client.turn(busy, text))
    await asyncio.sleep(2 * MODEL_SECONDS)  # until the model has called the tool
    found: list[float] = []
    while not running.done() or not found:
        found += (await client.run(names, 1)).latencies
    await running
    return found


def _reset_peak(served: Metered) -> None:
    Path(f"/proc/{served.pid}/clear_refs").write_text("5")


def _peak(served: Metered) -> int:
    status = Path(f"/proc/{served.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
