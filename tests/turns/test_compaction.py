"""Conversations that outgrow the model's window: what the model sees, what is told, what is kept."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.rig import Rig, chat, start
from support.scripted_model import ScriptedModel, ScriptedModels
from talaria.access.settings import BudgetSettings
from talaria.agent.compaction.engine import Ask, SummaryEngine
from talaria.agent.compaction.plan import CompactionRequest
from talaria.agent.settings import ContextSettings
from talaria.agent.side_calls import SIDE_TASK
from talaria.core.clock import SystemClock
from talaria.core.entries import Summary
from talaria.core.errors import ContextTooLong
from talaria.core.ids import SessionId
from talaria.core.messages import Image, Text, ToolResults, UserMessage
from talaria.core.shown import ShownLog
from talaria.core.specs import Completion, ModelCall, ModelDelta, Prefix
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.models.known import Abilities, PriceSettings
from talaria.models.settings import FallbackSettings, ModelSettings
from talaria.store.in_memory import MemoryStore
from talaria.tools.function import parameters
from talaria.tools.tool import Tool, ToolContext, ToolSource
from talaria.tools.toolset import Family

WINDOW = 12_300  # the prefix, the tools and some messages
ABILITIES = {"scripted/*": Abilities(context=WINDOW, tools=True)}
LONG = "word " * 600  # about 750 tokens


async def summaries(rig: Rig, session_id: SessionId) -> list[Summary]:
    log = await rig.store.log(session_id, 0)
    return [entry.body for entry in log if isinstance(entry.body, Summary)]


def answers(rig: Rig) -> list[bytes]:
    """The requests of answers, without those of summaries."""
    return [body for body in rig.model.bodies if b"This is a task beside" not in body]


def tokens(body: bytes) -> int:
    return len(body) // 4 + 1


async def test_a_conversation_that_outgrows_the_window_goes_on(tmp_path: Path) -> None:
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES) as rig:
        turn = await rig.say(f"my name is Ada {LONG}")
        noted = []
        for n in range(40):
            turn = await rig.say(f"message {n} {LONG}")
            assert turn.state is TurnState.DONE, turn.error
            if "[Compacted from" in (turn.reply or ""):
                noted.append(n)
        assert all(tokens(body) <= WINDOW for body in answers(rig))
        found = await summaries(rig, turn.session_id)
        assert len(found) == len(noted) >= 3, "people see one line for each"
        assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(noted)), noted
        assert found[0].first == 1 and found[0].after < found[0].before
        assert all(later.children for later in found[1:]), "a summary of summaries keeps its children"
        assert b"my name is Ada" in answers(rig)[0]
        log = await rig.store.log(turn.session_id, 0)
        assert sum(b"my name is Ada" in msgspec.json.encode(entry.body) for entry in log) >= 1
        assert len(await rig.store.shown_log(turn.session_id)) < len(log) / 2


class Summarizer(ScriptedModel):
    """A scripted model whose summaries are as a test wants them."""

    def __init__(self, marks: str) -> None:
        super().__init__()
        self.marks = marks
        self.asked = 0

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        if SIDE_TASK.encode() in call.prefix.system:
            self.asked += 1
            system = call.prefix.system.replace(b"Begin with the facts", self.marks.encode())
            call = msgspec.structs.replace(call, prefix=Prefix(system, b""))
        return await super().complete(call, sink)


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        ("[[status 500]]", "is failing"),
        ("[[status 400]]", "refused the request"),
        ("[[empty]]", "empty answer"),
        ("[[words 9000]]", "not shorter than its source"),
        ("[[malformed]]", "cannot be read"),
    ],
)
async def test_a_compaction_that_fails_is_told_once_and_not_repeated_in_a_loop(
    tmp_path: Path, marks: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Summarizer(marks)
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES, model=model) as rig:
        replies = []
        for n in range(16):
            turn = await rig.say(f"message {n} {LONG}")
            assert turn.state is TurnState.DONE, turn.error
            replies.append(turn.reply or "")
        assert all(tokens(body) <= WINDOW for body in answers(rig))
        told = [reply for reply in replies if "could not be summarised" in reply]
        assert reason in told[0]
        tries = [line for line in caplog.messages if "could not be summarised" in line]
        assert len(told) == 1 and 2 <= len(tries) <= 6, "it is tried again after a tenth of the window only"
        [first, *_] = await summaries(rig, turn.session_id)
        assert first.text.startswith("No summary could be written."), "the oldest part had to go"


async def test_a_summary_that_hangs_is_given_up(tmp_path: Path) -> None:
    model, engine = Summarizer("[[hang]]"), SummaryEngine(call_seconds=0.05)
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, abilities=ABILITIES, model=model, engine=engine) as rig:
        replies = [(await rig.say(f"message {n} {LONG}")).reply or "" for n in range(9)]
        assert any("did not finish within 0.05 seconds" in reply for reply in replies)
        assert model.asked <= 3


async def test_a_compaction_over_the_cap_is_left_and_the_turn_goes_on(tmp_path: Path) -> None:
    prices = {
        "scripted/scripted": PriceSettings(input=0.0, output=0.0),
        "scripted/dear": PriceSettings(input=1000.0, output=1000.0),
    }
    async with start(
        MemoryStore(SystemClock()),
        tmp_path,
        abilities=ABILITIES,
        prices=prices,
        budgets=BudgetSettings(per_day_usd=0.01),
        context=ContextSettings(summary_model="scripted/dear"),
    ) as rig:
        replies = [(await rig.say(f"message {n} {LONG}")).reply or "" for n in range(9)]
        [told] = [reply for reply in replies if "could not be summarised" in reply]
        assert "the gateway's budget for today" in told and "It continues" in told
        assert b'"model":"dear"' not in b"".join(rig.model.bodies)


async def test_compact_does_it_now_and_says_what_it_saved(tmp_path: Path) -> None:
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES) as rig:
        assert "nothing to compact" in ((await rig.say("/compact")).reply or "")
        for n in range(8):
            await rig.say(f"message {n} {'word ' * 100}")
        turn = await rig.say("/compact the numbers")
        found = re.fullmatch(r"Compacted from ([\d,]+) to ([\d,]+) tokens\.", turn.reply or "")
        assert found is not None, turn.reply
        before, after = (int(each.replace(",", "")) for each in found.groups())
        assert after < before
        assert b"keep this in view above all: the numbers" in rig.model.bodies[-1]
        [summary] = await summaries(rig, turn.session_id)
        assert (summary.before, summary.after) == (before, after)
        log = await rig.store.log(turn.session_id, 0)
        assert not any(b"/compact" in msgspec.json.encode(entry.body) for entry in log)
        assert (await rig.say("and now?")).state is TurnState.DONE
        record = await rig.store.turn_record(turn.id)
        assert record is not None and [step.name for step in record.steps] == ["scripted for the summary"]


async def test_context_shows_what_fills_the_window(tmp_path: Path) -> None:
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES) as rig:
        await rig.say(f"hello {LONG}")
        reply = (await rig.say("/context")).reply or ""
        assert f"of {WINDOW:,} tokens" in reply and "counted by the provider" in reply
        rows = dict(re.findall(r"^(\w+) +([\d,]+)", reply, re.MULTILINE))
        assert set(rows) == {"prompt", "tools", "memory", "summaries", "messages", "results", "free"}
        sizes = {name: int(text.replace(",", "")) for name, text in rows.items()}
        body = answers(rig)[-1]
        assert sizes["summaries"] == 0 and 600 < sizes["messages"] < 2000 and sizes["tools"] > 500
        assert abs(WINDOW - sizes["free"] - tokens(body)) < tokens(body) * 0.4
        await rig.say("/compact")


async def test_a_call_is_never_split_from_its_results_and_the_running_turn_is_kept(tmp_path: Path) -> None:
    """One turn with many steps, each of which has a large result, in a small window."""
    (tmp_path / "large.txt").write_text("line of text\n" * 2000)
    calls = "".join('[[call read_file {"path": "large.txt"}]]' for _ in range(12))
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES) as rig:
        await rig.say("hello")
        turn = await rig.say(f"Read it all. {calls}[[reply done]]")
        assert turn.state is TurnState.DONE and (turn.reply or "").startswith("done"), turn.error
        for n, body in enumerate(answers(rig)):
            assert tokens(body) <= WINDOW
            assert_paired(body)
            assert (b"Read it all" in body) is (n > 0)
        log = await rig.store.log(turn.session_id, 0)
        results = [
            each for entry in log if isinstance(entry.body, ToolResults) for each in entry.body.results
        ]
        assert len(results) == 12 and all(len(result.text) > 5000 for result in results), "the log has all"


def assert_paired(body: bytes) -> None:
    """Every call is followed by its results, and nothing else stands between."""
    open_calls: list[str] = []
    for message in msgspec.json.decode(body)["messages"]:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls, message
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    assert not open_calls


async def test_one_huge_message_never_exceeds_the_window(tmp_path: Path) -> None:
    abilities = {"scripted/scripted": Abilities(context=200_000), "scripted/fast": Abilities(context=WINDOW)}
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=abilities) as rig:
        await rig.say("hello")
        await rig.say("x" * 90_000)
        await rig.say("/model fast")
        large = len(rig.model.bodies)
        for text in ("go on", "and on"):
            turn = await rig.say(text)
            assert turn.state is TurnState.DONE, turn.error
        assert all(tokens(body) <= WINDOW for body in list(rig.model.bodies)[large:])
        await rig.say("/undo 2")
        await rig.say("/retry")
        assert tokens(rig.model.bodies[-1]) <= WINDOW
        assert b"more characters are left out to save room" in rig.model.bodies[-1]


async def test_a_refused_request_is_compacted_once_and_asked_again(tmp_path: Path) -> None:
    """The window is not known; the endpoint refuses what is too long."""

    refused = list[ModelCall]()

    class Small(ScriptedModel):
        async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
            if sum(map(len, call.chunks)) > 24_000:
                refused.append(call)
                raise ContextTooLong("It is too long.", "Send /new.", status=400)
            return await super().complete(call, sink)

    async with start(MemoryStore(SystemClock()), tmp_path, model=Small()) as rig:
        for n in range(20):
            turn = await rig.say(f"message {n} {LONG}")
            assert turn.state is TurnState.DONE, turn.error
        assert 1 <= len(refused) <= 4, "the size that was refused is remembered"
        turn = await rig.say("z" * 30_000)
        assert turn.state is TurnState.DONE, "one long message is cut"


async def test_a_smaller_fallback_gets_a_shorter_view_for_its_turn_only(tmp_path: Path) -> None:
    first, small = ScriptedModel(name="first"), ScriptedModel(name="small")
    settings = ModelSettings("first", "m", fallback=(FallbackSettings("small", "m"),))
    abilities = {"first/*": Abilities(context=100_000), "small/*": Abilities(context=WINDOW)}
    async with start(
        MemoryStore(SystemClock()),
        tmp_path,
        model=first,
        models=ScriptedModels(first, {"first": first, "small": small}),
        settings=settings,
        abilities=abilities,
    ) as rig:
        for n in range(15):
            await rig.say(f"message {n} {LONG}")
        first.is_down = True
        turn = await rig.say("who answers?")
        assert turn.state is TurnState.DONE and "Answered by small/m" in (turn.reply or ""), turn.error
        assert small.bodies and all(tokens(body) <= WINDOW for body in small.bodies)
        first.is_down = False
        await rig.say("and now?")
        assert not await summaries(rig, turn.session_id), "nothing was committed"
        assert b"message 0 " in first.bodies[-1]


async def test_a_larger_model_sees_again_what_was_hidden_for_a_smaller_one(tmp_path: Path) -> None:
    abilities = {"scripted/scripted": Abilities(context=100_000), "scripted/fast": Abilities(context=WINDOW)}
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=abilities) as rig:
        for n in range(15):
            await rig.say(f"message {n} {LONG}")
        await rig.say("/model fast")
        turn = await rig.say("short please")
        assert tokens(rig.model.bodies[-1]) <= WINDOW
        [summary] = await summaries(rig, turn.session_id)
        assert summary.window == WINDOW
        await rig.say("/model scripted/scripted")
        await rig.say("all of it")
        assert b"message 0 " in rig.model.bodies[-1] and b"short please" in rig.model.bodies[-1]
        await rig.pool.drain()
        await rig.say("still all of it")
        assert b"message 0 " in rig.model.bodies[-1]


async def test_an_undo_behind_the_floor_brings_back_what_a_summary_stood_for(tmp_path: Path) -> None:
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES) as rig:
        for n in range(14):
            turn = await rig.say(f"message {n} {LONG}")
        assert await summaries(rig, turn.session_id)
        undone = await rig.say("/undo 12")
        assert "Undid the last 12 exchanges, from your “message 2" in (undone.reply or "")
        await rig.say("what is left?")
        body = rig.model.bodies[-1]
        assert b"message 0 " in body and b"message 1 " in body and b"message 2 " not in body
        assert b"stands for the earlier part" not in body
        assert (await rig.say("/retry")).state is TurnState.DONE
        branch = await rig.say("/branch")
        assert branch.state is TurnState.DONE


async def test_all_that_a_summary_left_can_be_undone_and_more(tmp_path: Path) -> None:
    context = ContextSettings(keep_turns=1)
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES, context=context) as rig:
        for n in range(4):
            await rig.say(f"message {n} {'word ' * 60}")
        await rig.say("/compact")
        await rig.say("/undo")
        undone = await rig.say("/undo")
        assert "from your “message 2" in (undone.reply or "")
        retried = await rig.say("/retry")
        assert (retried.reply or "").startswith("You said: message 1")


async def test_a_branch_of_a_compacted_conversation_shows_the_same(tmp_path: Path) -> None:
    abilities = {"scripted/*": Abilities(context=4 * WINDOW, tools=True)}
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=abilities) as rig:
        for n in range(14):
            await rig.say(f"message {n} {LONG}")
        await rig.say("/compact")
        await rig.say("here")
        before = msgspec.json.decode(rig.model.bodies[-1])["messages"]
        await rig.say("/branch")
        await rig.say("there")
        after = msgspec.json.decode(rig.model.bodies[-1])["messages"]
        assert [each["content"] for each in after[2 : len(before)]] == [
            each["content"] for each in before[2:]
        ]
        assert "stands for the earlier part" in after[1]["content"] and "ses_" in after[1]["content"]


async def test_what_came_from_outside_still_counts_after_a_compaction(tmp_path: Path) -> None:
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES) as rig:
        turn = await rig.say("hello")
        picture = Inbound(chat(), Sender("tester"), (Text("look"), Image("https://x.example/a.png")))
        await rig.turns.wait(await rig.turns.submit(picture))
        for n in range(14):
            await rig.say(f"message {n} {LONG}")
        shown = await rig.store.shown_log(turn.session_id)
        assert not any(
            isinstance(part, Image) for entry in shown for part in getattr(entry.body, "parts", ())
        )
        assert ShownLog(await rig.store.shown_log(turn.session_id)).has_untrusted()


class CuttingEngine:
    """Another engine: it calls no model and leaves out everything but the last two turns."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self.calls = 0

    @property
    def tools(self) -> ToolSource:
        return Family("cutter", (GlanceTool(),), is_builtin=False)

    async def compact(self, request: CompactionRequest, ask: Ask) -> Summary | None:
        self.calls += 1
        users = [entry.seq for entry in request.entries if isinstance(entry.body, UserMessage)]
        if self._fault == "raises":
            raise RuntimeError("a bug")
        return Summary(1, users[-2] if self._fault == "splits" else users[-2] - 1, "Cut.")


class GlanceTool(Tool):
    spec = ToolSpec("glance", "Looks at what was cut.", parameters({}))

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        return "nothing"


async def test_another_engine_chooses_what_is_seen(tmp_path: Path) -> None:
    engine = CuttingEngine()
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, abilities=ABILITIES, engine=engine, sources=(engine.tools,)) as rig:
        for n in range(9):
            turn = await rig.say(f"message {n} {LONG}")
        [summary, *_] = await summaries(rig, turn.session_id)
        assert summary.text == "Cut." and summary.model == "scripted/scripted"
        assert all(b'"glance"' in body and tokens(body) <= WINDOW for body in rig.model.bodies)


@pytest.mark.parametrize("fault", ["raises", "splits"])
async def test_the_mistakes_of_an_engine_cost_nothing(tmp_path: Path, fault: str) -> None:
    store, engine = MemoryStore(SystemClock()), CuttingEngine(fault)
    async with start(store, tmp_path, abilities=ABILITIES, engine=engine) as rig:
        for n in range(9):
            turn = await rig.say(f"message {n} {LONG}")
            assert turn.state is TurnState.DONE
        assert all(tokens(body) <= WINDOW for body in rig.model.bodies)
        assert engine.calls > 0
        assert all(summary.text != "Cut." for summary in await summaries(rig, turn.session_id))
