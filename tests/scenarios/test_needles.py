"""Facts in a conversation that is many times longer than the model's window: each is found again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from support.rig import start
from support.scripted_model import ScriptedModel
from support.search_world import SearchWorld
from talaria.core.clock import SystemClock
from talaria.core.entries import Summary
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.specs import Completion, ModelCall, ModelDelta
from talaria.core.turns import TurnState
from talaria.models.known import Abilities
from talaria.store.in_memory import MemoryStore

PEOPLE = ("Ada", "Bela", "Carl", "Dora", "Edda", "Finn", "Gita", "Hugo", "Ines", "Jara", "Karl", "Lena")
THINGS = (
    *(
        "password",
        "birthday",
        "address",
        "dentist",
        "flight",
        "locker",
        "invoice",
        "recipe",
        "garden",
        "boat",
    ),
    *("teacher", "piano", "bicycle", "contract", "allergy", "passport", "sister", "hotel", "printer", "tent"),
    *("rehearsal", "ladder", "violin", "insurance", "wallet"),
)
COLOURS = ("amber", "blue", "copper", "green", "ivory", "purple", "silver")
HIT = re.compile(r"^\[(e\d+)\]", re.MULTILINE)


class Forgetful(ScriptedModel):
    """A model whose summaries keep nothing."""

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        if any(b"This is a task beside" in chunk for chunk in call.chunks):
            answer = AssistantMessage("They talked.", model=call.model)
            return Completion(answer, TokenUsage(10, 0, 3), "stop")
        return await super().complete(call, sink)


def facts(count: int) -> list[tuple[str, str]]:
    """Questions, and the sentences that answer them."""
    pairs = list(product(PEOPLE, THINGS))
    random.Random(5).shuffle(pairs)
    return [
        (
            f"What do we know about the {thing} of {person}?",
            f"By the way, the {thing} of {person} is {COLOURS[n % 7]} {n * 7919 % 10007}.",
        )
        for n, (person, thing) in enumerate(pairs[:count])
    ]


def small_talk(source: random.Random, words: int) -> str:
    """Words that mean nothing, and between them the names of people and things of other facts."""
    said = [f"word{source.randrange(2000)}" for _ in range(words)]
    for _ in range(4):
        said[source.randrange(words)] = source.choice((*PEOPLE, *THINGS))
    return " ".join(said)


async def found_again(tmp_path: Path, model: ScriptedModel, count: int, window: int, words: int) -> int:
    """Talk, and return how many facts are found by their question and expanded to the original words."""
    source, known = random.Random(3), facts(count)
    abilities = {"scripted/*": Abilities(context=window, tools=True)}
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, model=model, abilities=abilities) as rig:
        for _, fact in known:
            said = f"{small_talk(source, words // 2)}. {fact} {small_talk(source, words // 2)}"
            turn = await rig.say(said)
            assert turn.state is TurnState.DONE, turn.error
        log = await store.log(turn.session_id, 0)
        assert sum(isinstance(entry.body, Summary) for entry in log) >= 3
        hidden = await store.shown_log(turn.session_id)
        assert len(hidden) < len(log) / 2
        world = SearchWorld(store, tmp_path, SystemClock())
        right = 0
        for question, fact in known:
            hits = HIT.findall(await world.text(turn.session_id, "recall_search", query=question))
            originals = [await world.text(turn.session_id, "recall_expand", id=name) for name in hits]
            right += any(fact in original for original in originals)
        await world.close()
    return right


@pytest.mark.parametrize("model", [ScriptedModel, Forgetful])
async def test_every_fact_is_found_again_behind_compactions(
    tmp_path: Path, model: Callable[[], ScriptedModel]
) -> None:
    assert await found_again(tmp_path, model(), count=24, window=6_000, words=200) == 24


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", [ScriptedModel, Forgetful])
async def test_three_hundred_facts_are_found_in_four_hundred_thousand_tokens(
    tmp_path: Path, model: Callable[[], ScriptedModel]
) -> None:
    assert await found_again(tmp_path, model(), count=300, window=32_000, words=900) == 300
