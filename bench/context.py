"""The cost of a long conversation that was compacted: of its turns, and of its agent when it is cold."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.load import Client, fresh_names
from bench.processes import Metered, gateway, model_server
from support.scripted_model import ScriptedModels
from talaria.agent.warm import AgentBuilder
from talaria.core.clock import SystemClock
from talaria.core.entries import EntryBody, Summary
from talaria.core.ids import OwnerId
from talaria.core.ledger import Commit, Page
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.store.sqlite.store import SqliteStore
from talaria.workspace.workspaces import ChatWorkspaces

COMPACTED_LENGTH = 5_000
_KEPT = 12
_LEASE_SECONDS = 60.0
_TEXT = "What did we say about the second part of the plan, and who takes it on? " * 3


@dataclass(frozen=True, slots=True)
class ContextCosts:
    """CPU seconds of a turn in short conversations and in a long compacted one, and of building the agent of
    the long one from the store."""

    short: float
    long: float
    cold: float


async def measure_context(turns: int, builds: int) -> ContextCosts:
    """Make a conversation long in the database of a gateway that is stopped, then talk to it."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as folder, model_server() as model:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        (name,) = fresh_names(1)
        with gateway(model.url, home=home) as (served, token):
            await _talk(served, token, [name])
        cold = await _lengthen(home, builds)
        names = fresh_names(turns)
        with gateway(model.url, home=home) as (served, token):
            await _talk(served, token, [name, *names] * 2)
            long = await _talk(served, token, [name] * turns)
            return ContextCosts(await _talk(served, token, names), long, cold)


async def _talk(served: Metered, token: str, names: list[str]) -> float:
    """Say something in each session, one after the other, and return the CPU per turn."""
    client = Client(served.url, token)
    try:
        await client.turn(names[0], "How are you today?")
        before = served.cpu()
        for name in names:
            await client.turn(name, "How are you today?")
        return (served.cpu() - before) / len(names)
    finally:
        await client.close()


async def _lengthen(home: Path, builds: int) -> float:
    """Append messages and a summary to the newest session, and return the CPU of building its agent."""
    async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
        (session,) = (await store.sessions(Page(1))).items
        bodies: list[EntryBody] = []
        for number in range(COMPACTED_LENGTH // 2):
            bodies += [UserMessage((Text(f"{number} {_TEXT}"),)), AssistantMessage(_TEXT)]
        last = session.revision.seq + len(bodies) - _KEPT
        bodies.append(Summary(1, last, _TEXT * 20, window=300_000, before=250_000, after=3_000))
        fence = await store.hold(session.id, OwnerId("own_bench"), _LEASE_SECONDS)
        await store.commit(Commit(session.id, fence, None, tuple(bodies), release=True))
        builder = AgentBuilder(store, ScriptedModels(), ChatWorkspaces(home))
        assert session.spec_id is not None
        await builder.build(session.id, session.spec_id)
        began = time.process_time()
        for _ in range(builds):
            await builder.build(session.id, session.spec_id)
        return (time.process_time() - began) / builds
