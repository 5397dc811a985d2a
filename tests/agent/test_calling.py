"""The model calls of a turn: retries, the breaker, fallbacks, and what is told of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from support import sim
from support.rig import Rig, chat, start
from support.scripted_model import ScriptedModel, ScriptedModels
from talaria.core.backoff import Backoff
from talaria.core.events import Event, FellBack, Retrying
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.tools import ToolSpec
from talaria.core.turns import Sender, StepKind, Turn, TurnState
from talaria.models.limiter import BreakerSettings, CallLimiter
from talaria.models.settings import FallbackSettings, ModelSettings
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock, HastyClock
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.tool import ToolContext
from talaria.turns.intake import StatelessCall
from talaria.turns.live import LiveTurn

CHAIN = ModelSettings("scripted", "main-model", fallback=(FallbackSettings("backup", "spare-model"),))
BREAKER = BreakerSettings(threshold=5, rests=Backoff(10.0, 60.0))


class FallbackRig:
    """A rig on a clock that jumps, with a model that rests and retries, and a spare one."""

    def __init__(self, rig: Rig, clock: HastyClock, primary: ScriptedModel, backup: ScriptedModel) -> None:
        self.rig = rig
        self.clock = clock
        self.primary = primary
        self.backup = backup

    @property
    def calls(self) -> tuple[int, int]:
        return len(self.primary.bodies), len(self.backup.bodies)

    async def say(self, text: str, name: str = "one") -> tuple[Turn, list[Event]]:
        return await self.end(await self.rig.submit(text, name))

    async def end(self, receipt: LiveTurn) -> tuple[Turn, list[Event]]:
        events = [event async for _, event in receipt.follow()]
        return await self.rig.turns.wait(receipt), events

    async def messages(self, name: str = "one") -> list[object]:
        session = await self.rig.store.current_session(chat(name))
        assert session is not None
        return [entry.body for entry in await self.rig.store.log(session.id, 0) if entry.message is not None]


@asynccontextmanager
async def open_world(
    settings: ModelSettings, max_retries: int = 3, patience: float = 30
) -> AsyncIterator[FallbackRig]:
    clock = HastyClock()
    limiter = CallLimiter(clock=clock, draw=lambda: 1.0, breaker=BREAKER)
    primary = ScriptedModel(clock, limiter=limiter, max_retries=max_retries, patience=patience)
    backup = ScriptedModel(clock, name="backup")
    models = ScriptedModels(primary, {"backup": backup})

    async def revive(arguments: dict[str, object], context: ToolContext) -> str:
        primary.is_down = False
        return "It is well again."

    tool = FunctionTool(ToolSpec("revive", "Heal the primary.", parameters({})), revive)
    async with start(
        MemoryStore(clock),
        Path("/nowhere"),
        clock=clock,
        model=primary,
        settings=settings,
        models=models,
        tools=lambda tools: tools.with_tools([tool]),
    ) as rig:
        yield FallbackRig(rig, clock, primary, backup)


@pytest.fixture
async def alone() -> AsyncIterator[FallbackRig]:
    async with open_world(ModelSettings("scripted", "main-model")) as world:
        yield world


@pytest.fixture
async def chained() -> AsyncIterator[FallbackRig]:
    async with open_world(CHAIN) as world:
        yield world


# -- retries ----------------------------------------------------------------------------------------------


async def test_a_failure_that_passes_is_waited_for(alone: FallbackRig) -> None:
    turn, events = await alone.say("[[first 2 status 503]][[reply here]]")
    assert (turn.state, turn.reply) == (TurnState.DONE, "here")
    assert alone.calls == (3, 0)
    waits = [event for event in events if isinstance(event, Retrying)]
    assert [(event.model, event.attempt, event.seconds) for event in waits] == [
        ("scripted/main-model", 2, 0.5),
        ("scripted/main-model", 3, 1.0),
    ]
    assert "HTTP 503" in waits[0].reason
    assert alone.clock.slept.count(0.5) == alone.clock.slept.count(1.0) == 1


@pytest.mark.parametrize(
    ("mark", "calls", "reason", "hint"),
    [
        ("[[status 400]]", 1, "refused the request", "/model"),
        ("[[status 401]]", 1, "did not accept the key", "`talaria setup`"),
        ("[[status 403]]", 1, "did not accept the key", "`talaria setup`"),
        ("[[status 404]]", 1, "does not know this model", "/model"),
        ("[[status 429]]", 4, "is limiting requests", "Try again in a moment."),
        ("[[status 429]][[retry-after 7]]", 4, "is limiting requests", "Try again in 7 seconds."),
        ("[[status 429]][[retry-after 300]]", 1, "is limiting requests", "Try again in 5 minutes."),
        ("[[status 500]]", 4, "is failing (HTTP 500)", "Try again in a moment."),
        ("[[status 503]][[retry-after 61]]", 1, "is failing (HTTP 503)", "Try again in 61 seconds."),
        ("[[hang]]", 4, "did not begin its answer within 30 seconds", "`first_token`"),
        ("[[cut 0]]", 4, "cut off", "Try again"),
        ("[[malformed]]", 4, "cannot be read", "Try again"),
        ("[[error-in-stream]]", 4, "broke off its answer with an error", "Try again"),
        ("[[call todo {}]][[half-call]]", 4, "cut off", "Try again"),
        ("[[chunks 3]][[words 6]][[cut 1]]", 1, "The answer broke off: scripted", "/retry"),
        ("[[think hm]][[chunks 3]][[words 6]][[cut 1]]", 1, "broke off while it was thinking", "again"),
    ],
)
async def test_each_kind_of_failure_costs_the_calls_that_its_rule_says(
    alone: FallbackRig, mark: str, calls: int, reason: str, hint: str
) -> None:
    if "half-call" in mark:
        mark = "[[half-call]][[call todo {}]]"
    turn, _ = await alone.say(mark)
    assert turn.state is TurnState.FAILED
    assert turn.error is not None
    assert (alone.calls, reason in turn.error.message) == ((calls, 0), True), turn.error
    assert hint in turn.error.hint
    assert turn.reply == turn.error.sentence()
    assert alone.rig.pool.counters.builds == 1
    assert alone.rig.pool.counters.rebuilds == 0


async def test_a_dead_endpoint_is_tried_again_and_told(alone: FallbackRig) -> None:
    alone.primary.is_down = True
    turn, _ = await alone.say("hello")
    assert turn.error is not None
    assert "cannot be reached" in turn.error.message
    assert alone.primary.reading().failures == 4


async def test_a_silent_model_is_told_within_three_minutes() -> None:
    async with open_world(ModelSettings("scripted", "main-model"), patience=120) as world:
        began = world.clock.elapsed()
        turn, events = await world.say("[[hang]]")
        assert 120 < world.clock.elapsed() - began <= 180
        assert turn.error is not None
        assert "did not begin its answer" in turn.error.message
        assert [event.attempt for event in events if isinstance(event, Retrying)] == [2]
        assert world.calls == (2, 0)


async def test_waits_honour_what_the_server_asked_for(alone: FallbackRig) -> None:
    await alone.say("[[status 429]][[retry-after 7]]")
    assert [seconds for seconds in alone.clock.slept if seconds >= 1] == [7.5, 7.5, 7.5]


async def test_text_that_was_shown_is_kept_and_never_asked_for_again(alone: FallbackRig) -> None:
    turn, _ = await alone.say("[[chunks 3]][[reply one two three]][[cut 2]]")
    assert turn.state is TurnState.FAILED
    said = (await alone.messages())[-1]
    assert isinstance(said, AssistantMessage)
    assert (said.interrupted, said.model, said.provider) == (True, "main-model", "scripted")
    assert "one two three".startswith(said.text) and said.text
    await alone.say("go on")
    sent = json.loads(alone.primary.bodies[-1])["messages"]
    assert sent[-2]["content"] == f"{said.text}\n[interrupted]"
    assert alone.calls == (2, 0)


async def test_a_stop_while_waiting_ends_the_turn_and_holds_nothing() -> None:
    clock = FakeClock()
    model = ScriptedModel(clock, max_retries=3)
    async with start(MemoryStore(clock), Path("/nowhere"), clock=clock, model=model) as rig:
        receipt = await rig.submit("[[status 503]]")
        await clock.until_sleepers(1)
        assert model.reading().busy == 0, "a permit is held while nobody calls"
        turn = await rig.turns.cancel(receipt)
        assert turn.state is TurnState.CANCELLED
        assert clock.sleepers == 0
        assert len(model.bodies) == 1


# -- the breaker --------------------------------------------------------------------------------------------


async def test_an_endpoint_that_fails_too_often_rests_and_heals_by_itself(alone: FallbackRig) -> None:
    await alone.say("[[status 500]]")
    alone.clock.slept.clear()
    turn, _ = await alone.say("[[status 500]]")
    assert alone.calls == (5, 0), "the fifth failure in a row opens the breaker, and nothing is tried again"
    assert turn.error is not None and "HTTP 500" in turn.error.message, "the reason is told, not the rest"
    assert max(alone.clock.slept, default=0) == 0, "somebody waited for an endpoint that rests"
    turn, events = await alone.say("hello", "another chat")
    assert alone.calls == (5, 0)
    assert turn.error is not None
    assert "failed 5 times in a row and is not asked for a while" in turn.error.message
    assert "Try again in 10 seconds" in turn.error.hint
    assert not any(isinstance(event, Retrying) for event in events)
    assert alone.primary.reading().state == "open"
    alone.clock.advance(10)
    turn, _ = await alone.say("hello", "another chat")
    assert turn.reply == "You said: hello"
    assert alone.primary.reading().state == "closed"


async def test_only_one_call_probes_an_endpoint_that_rested() -> None:
    def explore(seed: int) -> None:
        async def main() -> None:
            clock = sim.SimClock()
            model = ScriptedModel(clock, limiter=CallLimiter(clock=clock, breaker=BREAKER), latency=1.0)
            async with start(MemoryStore(clock), Path("/nowhere"), clock=clock, model=model) as rig:
                model.is_down = True
                for _ in range(5):
                    await rig.say("hello")
                model.is_down = False
                await asyncio.sleep(10)
                turns = await asyncio.gather(*(rig.say("hello", str(n)) for n in range(8)))
                assert len(model.bodies) == 1
                assert sorted(turn.state for turn in turns) == [TurnState.DONE] + [TurnState.FAILED] * 7
                assert model.reading().state == "closed"

        sim.run(seed, main)

    for seed in range(10):
        await asyncio.to_thread(explore, seed)


async def test_refusals_and_limits_do_not_open_the_breaker(alone: FallbackRig) -> None:
    for mark in ("[[status 400]]", "[[status 401]]", "[[status 429]]") * 5:
        await alone.say(mark)
    assert alone.primary.reading().state == "closed"
    assert alone.primary.reading().failures == 0


# -- the chain ----------------------------------------------------------------------------------------------


async def test_a_fallback_answers_and_the_user_is_told_once(chained: FallbackRig) -> None:
    chained.primary.is_down = True
    turn, events = await chained.say("hello")
    assert turn.state is TurnState.DONE
    assert turn.reply == (
        "You said: hello\n\n[Answered by backup/spare-model, because scripted (model main-model) cannot be "
        "reached at http://nowhere: Connection refused.]"
    )
    [told] = [event for event in events if isinstance(event, FellBack)]
    assert (told.model, told.instead_of) == ("backup/spare-model", "scripted/main-model")
    assert (await chained.messages())[-1] == AssistantMessage(
        "You said: hello", model="spare-model", provider="backup"
    ), "the note is for the user, not for the transcript"
    record = await chained.rig.store.turn_record(turn.id)
    assert record is not None
    assert [step.name for step in record.steps] == ["spare-model"]
    assert 'talaria_model_fallbacks_total{provider="scripted"} 1' in metrics(chained)
    assert 'talaria_model_calls_total{outcome="ok",provider="backup"} 1' in metrics(chained)


async def test_a_fallback_stays_for_the_turn_and_the_next_begins_with_the_primary(
    chained: FallbackRig,
) -> None:
    chained.primary.is_down = True
    turn, events = await chained.say("[[call revive {}]][[call todo {}]][[reply done]]")
    assert str(turn.reply).startswith("done\n\n[Answered by backup/spare-model, because")
    assert chained.calls == (0, 3), "the primary was well again after the first step"
    assert sum(isinstance(event, FellBack) for event in events) == 1
    turn, events = await chained.say("and now?")
    assert (turn.reply, chained.calls) == ("You said: and now?", (1, 3))
    assert not any(isinstance(event, FellBack) for event in events)


async def test_a_refusal_moves_on_at_once(chained: FallbackRig) -> None:
    """A wrong key is no reason to leave a message unanswered."""
    turn, events = await chained.say("[[status 401]]")
    assert chained.calls == (1, 1)
    assert turn.error is not None
    assert "did not accept the key" in turn.error.message
    assert "backup/spare-model failed too." in turn.error.message
    assert [type(event) for event in events if isinstance(event, (Retrying, FellBack))] == [FellBack]


async def test_a_resting_primary_is_passed_over_without_a_call(chained: FallbackRig) -> None:
    chained.primary.is_down = True
    for _ in range(2):
        await chained.say("hello")
    assert chained.primary.reading().state == "open"
    chained.primary.is_down = False
    turn, _ = await chained.say("hello")
    assert "because scripted (model main-model) has failed 5 times" in str(turn.reply)
    assert chained.calls == (0, 3)
    chained.clock.advance(10)
    turn, _ = await chained.say("hello")
    assert (turn.reply, chained.calls) == ("You said: hello", (1, 3))


async def test_the_primary_agent_stays_warm_and_knows_what_the_fallback_said(chained: FallbackRig) -> None:
    await chained.say("one")
    chained.primary.is_down = True
    await chained.say("[[think secret]][[call todo {}]][[reply two]]")
    chained.primary.is_down = False
    await chained.say("three")
    assert chained.rig.pool.counters.builds == 1
    assert chained.rig.pool.counters.rebuilds == 0
    first, last = chained.primary.bodies[0], chained.primary.bodies[-1]
    assert last.startswith(first[: first.rindex(b"]")].partition(b'],"tools"')[0])
    sent = json.loads(last)["messages"]
    assert [message["role"] for message in sent] == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert not any("reasoning_content" in m for m in sent), "a thought went to a model that has not had it"
    spare = json.loads(chained.backup.bodies[-1])["messages"]
    assert spare[-2]["reasoning_content"] == "secret", "a thought was taken from the model that had it"
    assert spare[:4] == sent[:4]


async def test_thoughts_do_not_follow_to_another_model_and_come_back_with_their_own(
    alone: FallbackRig,
) -> None:
    await alone.say("[[think secret]][[call todo {}]][[reply two]]")
    await alone.say("/model fast")
    await alone.say("three")
    assert b"secret" not in alone.primary.bodies[-1].rpartition(b"[[think secret]]")[2]
    session = await alone.rig.store.current_session(chat())
    assert session is not None
    before = alone.primary.bodies[-1]
    alone.rig.pool.release(session.id)
    await alone.say("four")
    assert alone.primary.bodies[-1].startswith(before.partition(b'],"tools"')[0])
    await alone.say("/model scripted/main-model")
    await alone.say("five")
    assert b"secret" in alone.primary.bodies[-1].rpartition(b"[[think secret]]")[2]


async def test_a_stateless_call_is_retried_and_falls_back_too(chained: FallbackRig) -> None:
    tools = b'[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}]'

    async def call(text: str) -> tuple[Turn, list[Event]]:
        context = (UserMessage((Text(text),)),)
        return await chained.end(
            await chained.rig.turns.call(StatelessCall(Sender("tester"), context, tools=tools))
        )

    turn, events = await call("[[first 1 status 503]][[reply yes]]")
    assert (turn.reply, chained.calls) == ("yes", (2, 0))
    assert any(isinstance(event, Retrying) for event in events)
    chained.primary.is_down = True
    turn, _ = await call("hello")
    assert (turn.reply, chained.calls) == ("You said: hello", (2, 1)), "programs get no note"
    assert json.loads(chained.backup.bodies[-1])["tools"] == json.loads(tools)


async def test_a_fallback_that_cannot_be_used_is_skipped() -> None:
    settings = ModelSettings(
        "scripted",
        "main-model",
        fallback=(FallbackSettings("scripted", "main-model"), FallbackSettings("backup", "spare-model")),
    )
    async with open_world(settings, max_retries=0) as world:
        turn, _ = await world.say("[[status 404]]")
        assert world.calls == (1, 1), "a session's own model is no fallback of itself"
        assert turn.state is TurnState.FAILED


async def test_what_a_fallback_used_is_booked_on_it(chained: FallbackRig) -> None:
    chained.primary.is_down = True
    turn, _ = await chained.say("[[usage 100 40 5 0]] hello")
    assert turn.usage is not None and turn.usage.input == 100
    assert 'talaria_tokens_total{kind="cached",provider="backup"} 40' in metrics(chained)
    record = await chained.rig.store.turn_record(turn.id)
    assert record is not None
    assert [step.kind for step in record.steps] == [StepKind.MODEL]


def metrics(world: FallbackRig) -> str:
    return world.rig.metrics.render().decode()


# -- two endpoints, one dying -------------------------------------------------------------------------------


def run_two_endpoints(seed: int, *, dies: bool) -> tuple[list[float], list[TurnState]]:
    """Sessions on both; how long each turn of those on the healthy one took, and how all turns ended."""

    async def main() -> tuple[list[float], list[TurnState]]:
        clock, loop = sim.SimClock(), asyncio.get_running_loop()
        settings = ModelSettings("scripted", "main-model", fallback=CHAIN.fallback)
        sick = ScriptedModel(
            clock, limiter=CallLimiter(clock=clock, breaker=BREAKER), max_retries=3, latency=0.5
        )
        well = ScriptedModel(clock, name="backup", limiter=CallLimiter(64, clock), latency=0.5)
        models = ScriptedModels(sick, {"backup": well})
        took: list[float] = []
        states: list[TurnState] = []
        async with start(
            MemoryStore(clock), Path("/nowhere"), clock=clock, model=sick, settings=settings, models=models
        ) as rig:

            async def talk(name: str, model: str) -> None:
                for n in range(6):
                    began = loop.time()
                    turn = await rig.say(f"message {n}", name, model=model)
                    states.append(turn.state)
                    if model.startswith("backup"):
                        took.append(round(loop.time() - began, 6))

            async def die() -> None:
                await asyncio.sleep(1.2)
                sick.is_down = dies

            await asyncio.gather(
                die(),
                *(talk(f"a{n}", "scripted/main-model") for n in range(10)),
                *(talk(f"b{n}", "backup/spare-model") for n in range(10)),
            )
            assert well.reading().waiting == 0
            assert sick.reading().state == ("open" if dies else "closed")
        return took, states

    return sim.run(seed, main)


@pytest.mark.parametrize("seed", range(5))
def test_the_sessions_of_a_surviving_endpoint_notice_nothing(seed: int) -> None:
    healthy, states = run_two_endpoints(seed, dies=False)
    assert set(states) == {TurnState.DONE} and len(states) == 120
    while_dying, states = run_two_endpoints(seed, dies=True)
    assert set(states) == {TurnState.DONE} and len(states) == 120
    assert sorted(while_dying) == sorted(healthy) == [0.5] * 60


# -- interleavings ------------------------------------------------------------------------------------------

SAYINGS = (
    "hello",
    "[[first 1 status 503]]",
    "[[status 500]]",
    "[[chunks 3]][[chunk-delay 0.2]][[words 6]][[cut 2]]",
    "[[think hm]][[call todo {}]][[first 2 cut 0]][[call todo {}]][[reply done]]",
    "[[hang]]",
)


@pytest.mark.parametrize("seed", range(30))
def test_no_interleaving_of_failures_and_stops_leaves_anything_behind(seed: int) -> None:
    async def main() -> None:
        clock, random = sim.SimClock(), Random(seed)

        def model(name: str) -> ScriptedModel:
            limiter = CallLimiter(random.randint(1, 3), clock, random.random, BREAKER)
            return ScriptedModel(
                clock, name=name, limiter=limiter, max_retries=random.randint(0, 3), patience=2.0, latency=0.3
            )

        primary, backup = model("scripted"), model("backup")
        models = ScriptedModels(primary, {"backup": backup})
        async with start(
            MemoryStore(clock),
            Path("/nowhere"),
            clock=clock,
            model=primary,
            settings=CHAIN,
            models=models,
            draw=random.random,
        ) as rig:

            async def talk(name: str) -> None:
                for _ in range(4):
                    receipt = await rig.submit(random.choice(SAYINGS), name)
                    if random.random() < 0.3:
                        await asyncio.sleep(random.uniform(0, 4))
                        await rig.turns.cancel(receipt)
                    turn = await rig.turns.wait(receipt)
                    assert turn.state.is_final
                    assert turn.error is None or turn.error.hint

            async def ail() -> None:
                while True:
                    await asyncio.sleep(random.uniform(0, 10))
                    patient = random.choice((primary, backup))
                    patient.is_down = not patient.is_down

            ailing = asyncio.create_task(ail())
            await asyncio.gather(*(talk(str(n)) for n in range(6)))
            ailing.cancel()
            await asyncio.wait((ailing,))
            for patient in (primary, backup):
                reading = patient.reading()
                assert (reading.busy, reading.waiting, patient.busy) == (0, 0, 0)
                assert reading.state != "half_open", "a probe was forgotten"
            primary.is_down = backup.is_down = False
            await asyncio.sleep(BREAKER.rests.longest)
            assert (await rig.say("hello", "0")).reply == "You said: hello"

    sim.run(seed, main)
