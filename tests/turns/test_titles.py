"""Titles that a model writes beside the turns, and all that keeps the first words instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.rig import Rig, chat, start
from support.scripted_model import ScriptedModel
from talaria.access.settings import BudgetSettings
from talaria.agent.settings import ContextSettings
from talaria.agent.side_calls import SIDE_TASK
from talaria.core.clock import SystemClock
from talaria.core.specs import Completion, ModelCall, ModelDelta
from talaria.models.known import PriceSettings
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.turns.titles import clean_title

CHEAP = ContextSettings(summary_model="scripted/cheap")


@pytest.fixture
def store() -> Store:
    """One engine is enough: what the store does has suites of its own."""
    return MemoryStore(SystemClock())


class SlowAside(ScriptedModel):
    """A server that answers the cheap model's calls once `answers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        if call.model == "cheap":
            await self.answers.wait()
        return await super().complete(call, sink)


async def title(rig: Rig, name: str = "one") -> str:
    """Return the chat's title once nothing looks for a better one."""
    while tasks := [task for task in asyncio.all_tasks() if task.get_name().startswith("title of ")]:
        await asyncio.wait(tasks)
    session = await rig.store.current_session(chat(name))
    assert session is not None
    return session.title


def asides(rig: Rig) -> list[dict[str, Any]]:
    bodies = [msgspec.json.decode(body) for body in rig.model.bodies]
    return [body for body in bodies if body["messages"][0]["content"].startswith(SIDE_TASK)]


async def test_a_cheap_model_titles_a_session_after_its_first_turn(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, context=CHEAP) as rig:
        turn = await rig.say("How do I repot a monstera?")
        assert turn.reply == "You said: How do I repot a monstera?"
        assert (await title(rig)).startswith("In short (")
        await rig.say("And a fern?")
        await title(rig)
    (call,) = asides(rig)
    assert call["model"] == "cheap"
    assert "How do I repot a monstera?" in call["messages"][1]["content"]
    assert "tools" not in call


async def test_without_a_cheap_model_no_call_is_made(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.say("How do I repot a monstera?")
        assert await title(rig) == "How do I repot a monstera?"
    assert not asides(rig)


async def test_a_title_of_a_person_stays(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, context=CHEAP) as rig:
        await rig.say("/title Mine")
        await rig.say("How do I repot a monstera?")
        assert await title(rig) == "Mine"


async def test_a_title_that_a_person_gives_meanwhile_stays(store: Store, tmp_path: Path) -> None:
    model = SlowAside()
    async with start(store, tmp_path, context=CHEAP, model=model) as rig:
        await rig.say("How do I repot a monstera?")
        await rig.say("/title Mine")
        model.answers.set()
        assert await title(rig) == "Mine"
    assert asides(rig)


async def test_a_budget_that_is_used_up_forbids_the_call(store: Store, tmp_path: Path) -> None:
    price = PriceSettings(input=1, output=1, max_output=10)
    dear = PriceSettings(input=9000, output=9000, max_output=10)
    caps = BudgetSettings(per_day_usd=0.05)
    prices = {"scripted/scripted": price, "scripted/cheap": dear}
    async with start(store, tmp_path, context=CHEAP, budgets=caps, prices=prices) as rig:
        assert (await rig.say("How do I repot a monstera?")).reply
        assert await title(rig) == "How do I repot a monstera?"
    assert not asides(rig)


@pytest.mark.parametrize("model", ["nowhere/none", "local/tiny"])
async def test_a_model_that_cannot_do_it_costs_nothing(store: Store, tmp_path: Path, model: str) -> None:
    async with start(store, tmp_path, context=ContextSettings(summary_model=model)) as rig:
        await rig.say("How do I repot a monstera?")
        assert await title(rig) == "How do I repot a monstera?"


async def test_a_title_never_delays_a_reply_or_the_end(store: Store, tmp_path: Path) -> None:
    """The call hangs; the reply is there, the next turn too, and draining cancels the call."""
    async with start(store, tmp_path, context=CHEAP, model=SlowAside()) as rig:
        assert (await rig.say("one")).reply == "You said: one"
        assert (await rig.say("two")).reply == "You said: two"
        assert any(task.get_name().startswith("title of ") for task in asyncio.all_tasks())
    assert not any(task.get_name().startswith("title of ") for task in asyncio.all_tasks())


@pytest.mark.parametrize(
    ("answer", "clean"),
    [
        ("Repotting a monstera", "Repotting a monstera"),
        ('"Repotting a monstera."', "Repotting a monstera"),
        ("Title: “Umtopfen”\n\nI hope this helps!", "Umtopfen"),
        ("**Monstera**", "Monstera"),
        ("\n  \n", ""),
        ("x" * 500, "x" * 59 + "…"),
    ],
)
def test_an_answer_becomes_one_line(answer: str, clean: str) -> None:
    assert clean_title(answer) == clean
