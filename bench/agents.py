"""The cost of a warm agent: the CPU to build it from the log, and its memory."""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from pathlib import Path

from support.scripted_model import ScriptedModels
from talaria.agent.settings import AgentSettings
from talaria.agent.spec_resolver import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatAddress, ChatKey, SessionId, SpecId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Fresh
from talaria.core.messages import AssistantMessage, Message, Text, UserMessage
from talaria.core.turns import Inbound, Sender
from talaria.models.catalog import Catalog
from talaria.models.settings import ModelSettings
from talaria.parts import builtin_tools
from talaria.store.sqlite.store import SqliteStore
from talaria.tools.settings import ToolSettings
from talaria.workspace.workspaces import ChatWorkspaces

_MESSAGES = 100
_TEXT = "What did we say about the second part of the plan, and who takes it on? " * 3


async def warm_agent_costs(builds: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a build from 100 messages, the bytes of an agent, and of its transcript."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as folder:
        async with await SqliteStore.open(Path(folder) / "talaria.db", SystemClock()) as store:
            models = ScriptedModels()
            catalog = Catalog(ModelSettings("scripted", "scripted"), {}, providers=("scripted",))
            tools = builtin_tools(ToolSettings())
            spec = SpecResolver(AgentSettings(), catalog, models, lambda: tools).resolve(
                ChatKey("agent:main:http:api:x")
            )
            session_id = new_session_id()
            await store.accept(
                Accept(
                    new_turn_id(),
                    Inbound(ChatAddress("main", "bench", "dm", "one").key(), Sender("bench"), ()),
                    Fresh(session_id, spec, _conversation()),
                )
            )
            builder = AgentBuilder(store, models, ChatWorkspaces(Path(folder)))
            await builder.build(session_id, spec.id)
            began = time.process_time()
            for _ in range(builds):
                await builder.build(session_id, spec.id)
            cpu = (time.process_time() - began) / builds
            held, transcript = await _measure(builder, session_id, spec.id)
            return cpu, held, transcript


async def _measure(builder: AgentBuilder, session_id: SessionId, spec_id: SpecId) -> tuple[float, float]:
    count = 50
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    agents = [await builder.build(session_id, spec_id) for _ in range(count)]
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count, agents[0].transcript.size


def _conversation() -> tuple[Message, ...]:
    return tuple(
        UserMessage((Text(_TEXT),), "2026-11-15 20:10 UTC") if number % 2 == 0 else AssistantMessage(_TEXT)
        for number in range(_MESSAGES)
    )
