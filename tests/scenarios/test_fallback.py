"""Fallbacks over real HTTP: from one wire format to another in the middle of a turn, and back."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from support.rig import start
from talaria.core.turns import TurnState
from talaria.models.providers import WIRES, Providers
from talaria.models.settings import FallbackSettings, ModelSettings, ProviderSettings
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import HastyClock
from talaria.testing.model_server import ModelServer

MODEL = ModelSettings("first", "m-1", fallback=(FallbackSettings("second", "m-2"),))
WORK = '[[think {0}]][[call todo {{"items":[{{"text":"x","status":"done"}}]}}]][[reply noted]]'


def provider(server: ModelServer, api: str) -> ProviderSettings:
    limits = {"timeout": timedelta(seconds=20), "max_retries": 1}
    return ProviderSettings(server.base_url, api, api_key="sk-test", **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WIRES, WIRES)))
async def test_a_conversation_goes_to_another_wire_format_and_back(
    first: str, second: str, tmp_path: Path
) -> None:
    clock = HastyClock()
    async with ModelServer() as spare, AsyncExitStack() as lives:
        server = await lives.enter_async_context(ModelServer())
        port = int(server.base_url.rpartition(":")[2].partition("/")[0])
        settings = {"first": provider(server, first), "second": provider(spare, second)}
        async with (
            Providers(settings, {}, clock) as providers,
            start(MemoryStore(clock), tmp_path, clock=clock, settings=MODEL, models=providers) as rig,
        ):
            assert (await rig.say(WORK.format("alpha"))).reply == "noted"
            before = list(server.bodies)
            await lives.aclose()
            turn = await rig.say(WORK.format("beta"))
            assert turn.state is TurnState.DONE
            note = "noted\n\n[Answered by second/m-2, because first (model m-1) cannot be reached"
            assert str(turn.reply).startswith(note)
            assert len(spare.bodies) == 2, "the strict server took both steps"
            server = await lives.enter_async_context(ModelServer(port=port))
            assert (await rig.say("and now?")).reply == "You said: and now?"
            [after] = server.bodies
            assert providers.built == 2
            assert (rig.pool.counters.builds, rig.pool.counters.rebuilds) == (1, 0)
    shared = history(before[-1])
    assert history(after).startswith(shared), "the primary's bytes changed under it"
    assert said_outside_messages("alpha", spare.bodies[-1]) == 0, "a thought of the first went to the second"
    assert said_outside_messages("beta", after) == 0, "a thought of the second went to the first"


def history(body: bytes) -> bytes:
    """The messages of a request without what moves: cache marks, and all behind the last bracket."""
    body = body.replace(b',"cache_control":{"type":"ephemeral"}', b"")
    start = body.index(b'"input":[' if b'"input":[' in body[:40] else b'"messages":[')
    ends = [body.find(mark, start) for mark in (b'],"tools"', b'],"stream"', b'],"max_tokens"')]
    return body[start : min(end for end in ends if end > 0)]


def said_outside_messages(word: str, body: bytes) -> int:
    """How often a thought stands elsewhere than in the mark that asked for it."""
    return body.count(word.encode()) - body.count(f"[[think {word}]]".encode())
