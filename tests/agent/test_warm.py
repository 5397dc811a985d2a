"""A warm agent is a view of the log: the same entries give the same bytes, however they came."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest

from support.scripted_model import ScriptedModels
from talaria.agent.transcript import Transcript
from talaria.agent.warm import AgentBuilder, WarmAgent, load_agent
from talaria.core.entries import Entry, EntryBody, Hidden, ReasoningSet, Revision, SpecSet, TitleSet
from talaria.core.errors import StoreError
from talaria.core.ids import ChatAddress, SessionId, SpecId, new_turn_id
from talaria.core.ledger import Accept, Fresh
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.specs import AgentSpec, ModelCall, PinnedSpec, Prefix, pin
from talaria.core.turns import Inbound, Sender
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.endpoint import SplicedBody
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.fake_workspaces import FakeWorkspaces

SESSION = SessionId("ses_x")
SPEC: PinnedSpec = pin(AgentSpec("main", "scripted", "m", "openai-chat", "p", (), "", ""), Prefix(b"", b""))


def log(*bodies: EntryBody) -> list[Entry]:
    return [Entry(SESSION, seq, 0, 0.0, None, body) for seq, body in enumerate(bodies, 1)]


def agent() -> WarmAgent:
    return WarmAgent(SESSION, SPEC, "", Transcript(OpenAIChat(), SPEC.spec))


ENTRIES = log(
    SpecSet(SpecId("spec_1")),
    UserMessage((Text("one"),)),
    AssistantMessage("two"),
    TitleSet("t"),
    UserMessage((Text("three"),)),
)


def test_the_bytes_do_not_depend_on_how_the_entries_came() -> None:
    at_once, piecemeal = agent(), agent()
    at_once.absorb(ENTRIES)
    for entry in ENTRIES:
        piecemeal.absorb((entry,))
        piecemeal.absorb(ENTRIES[: entry.seq])
    assert list(at_once.transcript.chunks) == list(piecemeal.transcript.chunks)
    assert at_once.revision == piecemeal.revision == Revision(0, 5)
    assert len(at_once.transcript.chunks) == 3
    assert at_once.transcript.size == sum(map(len, at_once.transcript.chunks))


def test_a_gap_in_the_log_is_an_error_and_not_a_wrong_answer() -> None:
    view = agent()
    view.absorb(ENTRIES[:2])
    with pytest.raises(StoreError, match="gap after entry 2"):
        view.absorb(ENTRIES[3:])


async def test_hidden_entries_leave_their_numbers_only() -> None:
    view = agent()
    await load_agent(view, [*ENTRIES, *log(*(TitleSet("pad"),) * 5, Hidden(2, 3))[5:]])
    assert view.revision.seq == 6
    assert [b"three" in chunk for chunk in view.transcript.chunks] == [True]


def test_the_last_word_on_reasoning_counts() -> None:
    view = agent()
    view.absorb(log(ReasoningSet("high"), ReasoningSet("low")))
    assert view.reasoning == "low"
    assert view.transcript.size == 0


def test_released_means_empty() -> None:
    view = agent()
    view.absorb(ENTRIES)
    assert view.release() is None, "there is nothing to wait for"
    assert (view.transcript.size, len(view.transcript.chunks)) == (0, 0)


async def test_an_agent_of_a_chat_has_a_handle_until_it_is_released(tmp_path: Path) -> None:
    workspaces = FakeWorkspaces(lambda key: tmp_path)
    store = MemoryStore(FakeClock())
    builder = AgentBuilder(store, ScriptedModels(), workspaces)
    chat = ChatAddress("main", "test", "dm", "a").key()
    fresh = Fresh(SESSION, SPEC, (UserMessage((Text("hi"),)),))
    await store.accept(Accept(new_turn_id(), Inbound(chat, Sender("x"), (Text("x"),)), fresh))
    stateless = await builder.build(SESSION, SPEC.id)
    assert stateless.workspace is None
    built = await builder.build(SESSION, SPEC.id, chat)
    assert workspaces.held == {built.workspace}
    built.release()
    built.release()
    assert (built.workspace, len(workspaces.held)) == (None, 0)
    with pytest.raises(StoreError, match="missing"):
        await builder.build(SESSION, SpecId("spec_none"), chat)
    assert not workspaces.held, "a failed build leaves none"


async def test_agents_of_one_spec_share_its_bytes(tmp_path: Path) -> None:
    workspaces = FakeWorkspaces(lambda key: tmp_path)
    store = MemoryStore(FakeClock())
    builder = AgentBuilder(store, ScriptedModels(), workspaces)
    built = []
    for name in ("a", "b"):
        chat = ChatAddress("main", "test", "dm", name).key()
        fresh = Fresh(SessionId(f"ses_{name}"), SPEC, (UserMessage((Text(name),)),))
        await store.accept(Accept(new_turn_id(), Inbound(chat, Sender("x"), (Text("x"),)), fresh))
        built.append(await builder.build(fresh.session_id, SPEC.id))
    assert built[0].pinned is built[1].pinned
    with pytest.raises(StoreError, match="missing"):
        await builder.build(SESSION, SpecId("spec_none"))


def test_an_agent_counts_what_it_really_holds() -> None:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = agent()
    held.absorb(log(*(UserMessage((Text(f"{n} " + "x" * (n % 300)),)) for n in range(1000))))
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.8 * held.size < used < 1.05 * held.size


def test_a_request_holds_no_second_copy_of_the_transcript() -> None:
    view = agent()
    view.absorb(log(*(UserMessage((Text("x" * 100_000),)) for _ in range(50))))
    call = ModelCall("m", SPEC.prefix, view.transcript.chunks)
    for wire in (OpenAIChat(), OpenAIResponses(), AnthropicMessages()):
        tracemalloc.start()
        body = SplicedBody(wire.body(call))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert body.size is not None
        assert body.size > 5_000_000
        assert used < 500_000


async def test_others_get_their_turn_while_a_long_log_is_encoded(tmp_path: Path) -> None:
    store = MemoryStore(FakeClock())
    builder = AgentBuilder(store, ScriptedModels(), FakeWorkspaces(lambda key: tmp_path))
    chat = ChatAddress("main", "test", "dm", "a").key()
    fresh = Fresh(SESSION, SPEC, (AssistantMessage('"quoted"\n' * 10_000, model="m"),) * 200)
    await store.accept(Accept(new_turn_id(), Inbound(chat, Sender("x"), (Text("x"),)), fresh))
    building = asyncio.create_task(builder.build(SESSION, SPEC.id))
    passes = 0
    while not building.done():
        passes += 1
        await asyncio.sleep(0)
    assert len(building.result().transcript.chunks) == 200
    assert passes > 50  # for 22 MB


def test_entries_that_an_agent_has_are_skipped_and_the_rest_is_taken() -> None:
    view, other = agent(), agent()
    view.absorb(ENTRIES[:2])
    view.absorb(ENTRIES)
    other.absorb(ENTRIES)
    assert list(view.transcript.chunks) == list(other.transcript.chunks)
    assert view.revision == Revision(0, 5)
