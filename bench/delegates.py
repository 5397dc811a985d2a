"""What delegates cost: CPU beside their own turns, and the memory of a parent that waits for eight."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path

from bench.load import Client, fresh_names
from bench.processes import Metered, gateway, model_server
from support.delegate_world import open_gateway
from support.rig import Rig, inbound
from talaria.core.clock import SystemClock
from talaria.store.in_memory import MemoryStore
from talaria.tools.settings import DelegateSettings

CHILDREN = 8


def hand_out(*tasks: str) -> str:
    return f"[[call delegate {json.dumps({'tasks': tasks})}]][[reply ok]]"


async def delegate_cpu(rounds: int, count: int) -> float:
    """Return the CPU seconds of a delegate that are neither its turn's nor those of a call of its parent."""
    with model_server() as model, gateway(model.url) as (served, token):
        client = Client(served.url, token)
        try:
            costs = []
            for text in (hand_out("[[reply hi]]"), "[[call no_such_tool {}]][[reply ok]]", "[[reply hi]]"):
                await _cpu(client, served, text, 20)
                costs.append(min([await _cpu(client, served, text, count) for _ in range(rounds)]))
        finally:
            await client.close()
    with_delegate, call, turn = costs
    return with_delegate - call - turn


async def _cpu(client: Client, served: Metered, text: str, count: int) -> float:
    """Return the CPU of a turn in a new session, as the session of a delegate is."""
    before = served.cpu()
    for name in fresh_names(count):
        await client.turn(name, text)
    return (served.cpu() - before) / count


async def parked_parent_bytes(parents: int) -> float:
    """Return the bytes that a parked parent of eight delegates holds, with its own warm agent and without
    what eight turns of people would hold that wait for their model."""
    alone = [f"alone-{number}" for number in range(CHILDREN * parents)]
    plain = await _held(alone, "[[hang]]", len(alone))
    waiting = [f"parent-{number}" for number in range(parents)]
    trees = await _held(waiting, hand_out(*["[[hang]]"] * CHILDREN), CHILDREN * parents)
    return (trees - plain) / parents


async def _held(names: list[str], text: str, hanging: int) -> int:
    """Return the bytes that are held while so many turns wait for the model."""
    settings = DelegateSettings(max_parallel=CHILDREN)
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as folder:
        async with AsyncExitStack() as scopes:
            store = MemoryStore(SystemClock())
            rig = await scopes.enter_async_context(open_gateway(store, Path(folder), settings))
            await _hang(rig, ["first"], text, 1 if text == "[[hang]]" else CHILDREN)
            first = rig.model.busy
            gc.collect()
            tracemalloc.start()
            await _hang(rig, names, text, first + hanging)
            await asyncio.sleep(2.5)  # two updates of each line
            rig.model.bodies.clear()
            rig.model.sessions.clear()
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return held


async def _hang(rig: Rig, names: list[str], text: str, busy: int) -> None:
    for name in names:
        await rig.turns.submit(inbound(text, name))
    while rig.model.busy < busy:
        await asyncio.sleep(0.01)
