"""The contract of `core.memory.MemoryProvider`. A test class gives `memory`, which knows `SECRET`."""

from __future__ import annotations

import pytest

from talaria.core.access import OWNER, PersonId
from talaria.core.errors import ToolError
from talaria.core.ids import SessionId, TurnId
from talaria.core.memory import (
    AddFact,
    EditOrigin,
    ForgetFact,
    MemoryPage,
    MemoryPlace,
    ReplaceFact,
    TurnMemory,
    WritePage,
)
from talaria.tools.tool import MemoryProvider

MINE = MemoryPlace("main", OWNER)
ANNA = MemoryPlace("main", PersonId("pager:2"))
GROUP = MemoryPlace("main", chat="pager:group:-5")
OTHER_AGENT = MemoryPlace("other", OWNER)
PLACES = [MINE, ANNA, GROUP, OTHER_AGENT]
PAGE, USER = MemoryPage.MEMORY, MemoryPage.USER
SECRET = "a-secret-of-the-gateway"  # noqa: S105 - it is none


def origin(key: str) -> EditOrigin:
    return EditOrigin(key, "ses_1", 1_795_000_000.0)


def turn(place: MemoryPlace, said: str, turn_id: str = "turn_1") -> TurnMemory:
    return TurnMemory(place, SessionId("ses_1"), TurnId(turn_id), said, 0.0)


async def page_of(memory: MemoryProvider, place: MemoryPlace = MINE, page: MemoryPage = PAGE) -> str:
    return next(content.text for content in await memory.pages(place) if content.page is page)


class MemorySuite:
    def test_it_is_a_provider_and_a_source_of_the_family(self, memory: MemoryProvider) -> None:
        assert isinstance(memory, MemoryProvider)
        assert (memory.name, memory.is_builtin) == ("memory", True)
        names = [tool.spec.name for tool in memory.tools()]
        assert names and len(names) == len(set(names))

    async def test_a_place_without_memory_adds_nothing_to_a_prompt(self, memory: MemoryProvider) -> None:
        for place in PLACES:
            assert memory.prompt(place) == ""
            assert [content.page for content in await memory.pages(place)] == list(place.pages)

    async def test_a_fact_is_on_its_page_and_in_the_prompt_with_its_date(
        self, memory: MemoryProvider
    ) -> None:
        told = await memory.edit(MINE, AddFact(USER, "Likes tea."), origin("1"))
        assert "+ Likes tea. (2026-11-18)" in told.splitlines()
        assert "- Likes tea. (2026-11-18)" in memory.prompt(MINE).splitlines()
        assert "Likes tea." in await page_of(memory, page=USER)
        assert "ses_1" in await page_of(memory, page=USER)

    async def test_an_edit_counts_once(self, memory: MemoryProvider) -> None:
        await memory.edit(MINE, AddFact(PAGE, "Likes tea."), origin("1"))
        await memory.edit(MINE, ForgetFact(PAGE, "tea"), origin("2"))
        await memory.edit(MINE, AddFact(PAGE, "Likes tea."), origin("1"))
        assert memory.prompt(MINE) == ""

    async def test_replacing_and_forgetting_leave_the_rest(self, memory: MemoryProvider) -> None:
        for number, text in enumerate(["Likes tea.", "Has a cat.", "Is 40."]):
            await memory.edit(MINE, AddFact(PAGE, text), origin(str(number)))
        await memory.edit(MINE, ReplaceFact(PAGE, "cat", "Has a dog."), origin("3"))
        await memory.edit(MINE, ForgetFact(PAGE, "is 40"), origin("4"))
        facts = [line.partition(" (")[0] for line in memory.prompt(MINE).splitlines()]
        assert facts == ["## MEMORY.md", "- Likes tea.", "- Has a dog."]

    async def test_no_place_shows_what_another_one_has(self, memory: MemoryProvider) -> None:
        for number, place in enumerate(PLACES):
            await memory.edit(place, AddFact(PAGE, f"of place {number}"), origin(f"{number}"))
            await memory.sync(turn(place, f"words about place {number}", f"turn_{number}"), "")
        for number, place in enumerate(PLACES):
            texts = [memory.prompt(place), await page_of(memory, place)]
            texts.append(await memory.prefetch(turn(place, "words about place", "turn_x")))
            for other in range(len(PLACES)):
                assert (f"place {other}" in " ".join(texts)) == (other == number)

    async def test_a_chat_that_is_no_persons_has_no_page_about_one(self, memory: MemoryProvider) -> None:
        with pytest.raises(ToolError, match=r"USER\.md is not used here"):
            await memory.edit(GROUP, AddFact(USER, "x"), origin("1"))

    async def test_a_full_page_is_refused_and_stays_as_it_is(self, memory: MemoryProvider) -> None:
        for number in range(200):
            before = await memory.pages(MINE)
            try:
                await memory.edit(MINE, AddFact(PAGE, f"fact {number} {'x' * 200}"), origin(str(number)))
            except ToolError as error:
                assert "MEMORY.md is full" in error.user_text and error.hint
                assert await memory.pages(MINE) == before
                break
        assert number in range(25, 40)
        assert (await memory.pages(MINE))[0].size <= PAGE.max_bytes

    async def test_a_person_rewrites_a_page_unless_it_has_changed(self, memory: MemoryProvider) -> None:
        await memory.edit(MINE, AddFact(PAGE, "Likes tea."), origin("1"))
        digest = (await memory.pages(MINE))[0].digest
        await memory.edit(MINE, WritePage(PAGE, "# Mine\n- Likes water.", digest), origin("2"))
        assert await page_of(memory) == "# Mine\n- Likes water."
        with pytest.raises(ToolError, match="was changed meanwhile"):
            await memory.edit(MINE, WritePage(PAGE, "late", digest), origin("3"))
        await memory.edit(MINE, WritePage(PAGE, ""), origin("4"))
        assert memory.prompt(MINE) == ""

    async def test_no_secret_is_kept_or_shown(self, memory: MemoryProvider) -> None:
        await memory.edit(MINE, AddFact(PAGE, f"The key is {SECRET}."), origin("1"))
        await memory.sync(turn(MINE, f"the secret {SECRET}"), "")
        texts = [memory.prompt(MINE), await page_of(memory)]
        texts.append(await memory.prefetch(turn(MINE, "that secret again", "turn_2")))
        assert SECRET not in " ".join(texts)

    async def test_a_turn_that_is_told_twice_counts_once(self, memory: MemoryProvider) -> None:
        for _ in range(2):
            await memory.sync(turn(MINE, "the garden gate"), "yes")
        found = await memory.prefetch(turn(MINE, "which gate?", "turn_2"))
        assert found.count("garden") <= 1
        assert memory.follows_turns or found == ""
