"""Lives of a conversation: whatever is compacted, undone, branched or restarted, every word is in the log,
every request is well formed and fits, and requests extend each other between compactions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.rig import Rig, start
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.core.ledger import BranchPoint
from talaria.core.messages import AssistantMessage, Message, ToolResults, UserMessage
from talaria.core.shown import ShownLog
from talaria.core.turns import TurnState
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.known import Abilities
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.store.in_memory import MemoryStore

LARGE, SMALL = 20_000, 12_000
WINDOWS = {"scripted": LARGE, "fast": SMALL}
ABILITIES = {f"scripted/{name}": Abilities(context=window) for name, window in WINDOWS.items()}
WIRES = (OpenAIChat(), OpenAIResponses(), AnthropicMessages())
READ = '[[call read_file {"path": "large.txt"}]][[reply read]]'

texts = st.integers(1, 12).map(lambda size: f"SAY {'word ' * (60 * size)}")
actions = st.one_of(
    texts,
    st.just(f"SAY {READ}"),
    st.just(f"SAY {READ[: READ.index('[[reply')] * 3}[[reply thrice]]"),
    st.integers(1, 6).map(lambda n: f"/undo {n}"),
    st.sampled_from(
        ["/compact", "/retry", "/branch", "/model fast", "/model scripted/scripted", "EVICT", "RESTART"]
    ),
)


def check_pairs(messages: list[Message]) -> None:
    """Every call stands right before its results, in the same order, and every format can encode it."""
    open_calls: tuple[str, ...] = ()
    for message in messages:
        if isinstance(message, ToolResults):
            assert tuple(result.call_id for result in message.results) == open_calls
            open_calls = ()
            continue
        assert not open_calls
        if isinstance(message, AssistantMessage):
            open_calls = tuple(call.id for call in message.tool_calls)
            assert all(isinstance(msgspec.json.decode(call.arguments), dict) for call in message.tool_calls)
    assert not open_calls
    for wire in WIRES:
        msgspec.json.decode(b"[%b]" % b",".join(map(wire.encode, messages)))


class Life:
    """A conversation, and what must hold of it after each action."""

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.bodies: list[bytes] = []
        self.count = 0
        self.session_id = SessionId("")
        self._key = (SessionId(""), 0)

    async def act(self, rig: Rig, action: str) -> None:
        before = len(rig.model.bodies)
        if action == "EVICT":
            await rig.pool.drain()
            return
        text = action.removeprefix("SAY ")
        if action.startswith("SAY "):
            self.count += 1
            text = f"needle{self.count}x {text}"
            self.said.add(text)
        turn = await rig.say(text)
        assert turn.state is TurnState.DONE, turn.error
        self.session_id = turn.session_id
        await self._check(rig, list(rig.model.bodies)[before:])

    async def _check(self, rig: Rig, bodies: list[bytes]) -> None:
        answers = [body for body in bodies if b"This is a task beside" not in body]
        for body in answers:
            model = msgspec.json.decode(body)["model"]
            assert len(body) // 4 + 1 <= WINDOWS[model], "the request is larger than the window"
        shown = await rig.store.shown_log(self.session_id)
        check_pairs([each.message for each in ShownLog(shown).messages()])
        log = await rig.store.log(self.session_id, 0)
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        self._check_prefix(answers, log[-1].epoch)
        found = set()
        for place in ((self.session_id, None), *((p.session_id, p.seq) for p in await self._ancestors(rig))):
            for entry in await rig.store.log(place[0], 0):
                if isinstance(entry.body, UserMessage) and (place[1] is None or entry.seq <= place[1]):
                    found.add(entry.body.text)
        assert self.said <= found, "a message is not where recall reads"

    async def _ancestors(self, rig: Rig) -> list[BranchPoint]:
        return list(await rig.store.recall.lineage(self.session_id))

    def _check_prefix(self, answers: list[bytes], epoch: int) -> None:
        key = (self.session_id, epoch)
        for body in answers:
            raw = bytes(msgspec.json.decode(body, type=_Body).messages)
            if self.bodies and self._key == key and len(answers) == 1:
                assert raw.startswith(self.bodies[-1][:-1]), "the prefix changed without a compaction"
            self.bodies.append(raw)
            self._key = key


class _Body(msgspec.Struct):
    messages: msgspec.Raw


async def live(folder: Path, plan: list[str]) -> None:
    (folder / "large.txt").write_text("a line of text in a file\n" * 800)
    store, life = MemoryStore(SystemClock()), Life()
    steps = list(plan)
    while steps:
        async with start(store, folder, abilities=ABILITIES) as rig:
            while steps and (action := steps.pop(0)) != "RESTART":
                await life.act(rig, action)


_PHASES = (Phase.explicit, Phase.generate)  # a life takes too long to shrink it
_WITHIN = settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck), phases=_PHASES)


@_WITHIN
@given(plan=st.lists(actions, min_size=4, max_size=14))
def test_nothing_is_lost_and_every_request_fits(
    plan: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    asyncio.run(live(tmp_path_factory.mktemp("life"), ["SAY hello", *plan]))


@pytest.mark.long
@settings(_WITHIN, max_examples=100)
@given(plan=st.lists(actions, min_size=8, max_size=40))
def test_nothing_is_lost_in_long_lives(plan: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    asyncio.run(live(tmp_path_factory.mktemp("life"), ["SAY hello", *plan]))
