"""The index over all logs: what is found, what may be seen, and what a lost or spoilt file costs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from contracts.store_orders import START
from support.search_world import AWAY, HOME, SearchWorld, said
from talaria.core.access import EVERYTHING, Reach
from talaria.core.errors import BadRequest
from talaria.core.ids import SessionId
from talaria.core.ledger import BranchPoint
from talaria.core.messages import AssistantMessage, ToolCall, ToolResult, ToolResults
from talaria.core.problems import Severity
from talaria.core.settings import Examination, NoSettings
from talaria.search.index import IndexReading, LogIndex
from talaria.search.side_file import VERSION, open_side_file
from talaria.services import SEARCH_INDEX
from talaria.testing.clock import FakeClock

DAY = 86_400.0


async def found(world: SearchWorld, query: str, reach: Reach = EVERYTHING) -> list[tuple[SessionId, int]]:
    page = await world.index.search(query, reach)
    return [(hit.session_id, hit.seq) for hit in page.hits]


async def test_what_was_just_said_is_found_with_its_words_speaker_and_time(world: SearchWorld) -> None:
    session = await world.talk(said("My sister moved to Lisbon", "Ada"), AssistantMessage("How nice!"))
    page = await world.index.search("Where does the sister live?", EVERYTHING)
    hit = page.hits[0]
    assert (hit.session_id, hit.seq, hit.chat_key) == (session, 1, HOME)
    assert (hit.excerpt, hit.speaker, hit.at) == ("My sister moved to Lisbon", "Ada", START)
    assert page.is_complete and page.next is None


async def test_more_of_a_session_is_taken_in_by_the_next_search(world: SearchWorld) -> None:
    session = await world.talk(said("one apple"), AssistantMessage("yes"))
    assert await found(world, "pear") == []
    await world.talk(said("two pears"), AssistantMessage("yes"), session=session)
    assert await found(world, "pear") == [(session, 3)]


async def test_only_what_may_be_seen_is_found(world: SearchWorld) -> None:
    mine = await world.talk(said("the secret garden"), AssistantMessage("yes"))
    theirs = await world.talk(said("another garden"), AssistantMessage("yes"), chat=AWAY)
    assert await found(world, "garden", Reach((AWAY,))) == [(theirs, 1)]
    assert await found(world, "garden", Reach(())) == []
    assert {session for session, _ in await found(world, "garden")} == {mine, theirs}


async def test_a_chat_that_moved_is_seen_by_its_new_key(world: SearchWorld) -> None:
    session = await world.talk(said("the garden"), AssistantMessage("yes"), chat=AWAY)
    assert await found(world, "garden", Reach((AWAY,))) == [(session, 1)]
    assert await world.store.move_chat(AWAY, HOME)
    assert await found(world, "garden", Reach((AWAY,))) == []


async def test_a_deleted_session_vanishes_at_once_and_its_words_leave_the_file(world: SearchWorld) -> None:
    session = await world.talk(said("zanzibar holiday"), AssistantMessage("yes"))
    other = await world.talk(said("a holiday at home"), AssistantMessage("yes"))
    assert len(await found(world, "holiday")) == 2
    await world.store.delete_session(session, START)
    assert await found(world, "holiday") == [(other, 1)]
    await world.index.sweep()
    await world.index.close()
    file = open_side_file(world.index.path)
    assert file.session(session) is None and file.count() == 2
    file.close()


async def test_a_sitting_page_by_page_has_no_hit_twice(world: SearchWorld) -> None:
    for n in range(25):
        await world.talk(said(f"report number {n}"), AssistantMessage("noted"))
    seen: list[SessionId] = []
    after = None
    while True:
        page = await world.index.search("report", EVERYTHING, 10, after)
        seen += [hit.session_id for hit in page.hits]
        if (after := page.next) is None:
            break
    assert len(seen) == len(set(seen)) == 25


@pytest.mark.parametrize(
    ("said_text", "query"),
    [
        ("明日は東京タワーに行きます", "東京タワー"),
        ("明日は東京タワーに行きます", "いつ東京に行きますか"),
        ("我们在北京买了一只狗", "狗"),
        ("오늘 김치찌개를 먹었다", "김치찌개"),
        ("เราไปเชียงใหม่เมื่อวาน", "เชียงใหม่"),
        ("Wir fahren nach Österreich", "osterreich"),
        ("Мы купили собаку", "собаку"),
    ],
)
async def test_other_scripts_are_found(world: SearchWorld, said_text: str, query: str) -> None:
    session = await world.talk(said(said_text), AssistantMessage("好"))
    await world.talk(said("something else"), AssistantMessage("是"))
    assert (await found(world, query))[0] == (session, 1)


async def test_words_in_quotation_marks_stand_together(world: SearchWorld) -> None:
    await world.talk(said("blue house, red car"), AssistantMessage("yes"))
    session = await world.talk(said("a red house"), AssistantMessage("yes"))
    assert await found(world, '"red house"') == [(session, 1)]


@pytest.mark.parametrize("query", ["", "?!", "what is it"])
async def test_a_query_without_words_is_refused(world: SearchWorld, query: str) -> None:
    with pytest.raises(BadRequest, match="no words"):
        await world.index.search(query, EVERYTHING)


async def test_of_a_result_the_beginning_is_indexed(world: SearchWorld) -> None:
    result = ToolResult("c1", "web_fetch", "walrus " + "x " * 5000 + "penguin")
    calls = AssistantMessage(tool_calls=(ToolCall("c1", "web_fetch", '{"url": "https://albatross.org"}'),))
    session = await world.talk(said("read it"), calls, ToolResults((result,)), AssistantMessage("done"))
    assert await found(world, "walrus") == [(session, 3)]
    assert await found(world, "albatross") == [(session, 2)]
    assert await found(world, "penguin") == []


async def test_a_call_through_tool_call_is_indexed_as_the_call_of_its_tool(world: SearchWorld) -> None:
    wrapped = (
        ToolCall("c1", "tool_call", '{"name":"mcp_birds_find","arguments":{"kind":"albatross"}}'),
        ToolCall("c2", "tool_call", '{"name":"recall_search","arguments":{"query":"walrus"}}'),
    )
    session = await world.talk(said("go"), AssistantMessage(tool_calls=wrapped), AssistantMessage("done"))
    assert await found(world, '"find albatross"') == []
    assert await found(world, '"call mcp birds find"') == [(session, 2)]
    assert await found(world, "walrus") == []


async def test_a_copy_in_a_branch_is_not_found_twice(world: SearchWorld) -> None:
    bodies = (said("the walrus"), AssistantMessage("yes"))
    parent = await world.talk(*bodies)
    await world.talk(said("go on"), AssistantMessage("ok"), parent=BranchPoint(parent, 2), copied=bodies)
    assert len(await found(world, "walrus")) == 1


# -- the file -----------------------------------------------------------------------------------------------


def _spoil_middle(data: bytes) -> bytes:
    return data[:4096] + os.urandom(len(data) - 4096)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"no database at all" * 100,
        _spoil_middle,
        lambda data: data[: len(data) // 2],
    ],
    ids=["empty", "foreign", "random pages", "half"],
)
async def test_a_spoilt_file_is_made_anew(world: SearchWorld, spoil: object) -> None:
    sessions = [await world.talk(said(f"walrus number {n}"), AssistantMessage("yes")) for n in range(30)]
    assert len(await found(world, "walrus")) == 10
    await world.index.close()
    world.index.path.write_bytes(spoil(world.index.path.read_bytes()))  # type: ignore[operator]
    again = [session for session, _ in await found(world, "walrus")]
    again += [session for session, _ in await found(world, "walrus number")]
    assert set(again) <= set(sessions) and len(set(again)) >= 10


async def test_damage_that_a_search_meets_costs_no_hit(world: SearchWorld) -> None:
    texts = (said(f"walrus {' '.join(f'w{n}x{m}' for m in range(200))}") for n in range(100))
    session = await world.talk(*texts)
    assert len(await found(world, "walrus")) == 10
    await world.index.close()
    data = world.index.path.read_bytes()
    kept = 32 * 4096  # the tables are whole, and so is what opening looks at
    assert len(data) > 2 * kept
    world.index.path.write_bytes(data[:kept] + os.urandom(len(data) - kept))
    assert len(await found(world, "walrus")) == 10
    hits = await world.index.find("w50x7", [BranchPoint(session, 100)], 10)
    assert hits[0].seq == 51


def _spoil_tail(world: SearchWorld) -> None:
    """Spoil the pages behind the tables, so that opening and the cursor work and writing does not."""
    data = world.index.path.read_bytes()
    kept = 32 * 4096
    assert len(data) > 2 * kept
    world.index.path.write_bytes(data[:kept] + os.urandom(len(data) - kept))


async def _fill(world: SearchWorld) -> None:
    """Index a hundred sessions, with a minute between them."""
    assert isinstance(world.clock, FakeClock)
    for n in range(100):
        await world.talk(said(f"walrus {' '.join(f'w{n}x{m}' for m in range(200))}"), AssistantMessage("yes"))
        world.clock.advance(60.0)
    assert await world.index.catch_up(60.0)


async def test_damage_that_filling_meets_loses_no_older_session(world: SearchWorld) -> None:
    await _fill(world)
    await world.index.close()
    _spoil_tail(world)
    await world.talk(said("something new"), AssistantMessage("yes"))
    assert await world.index.catch_up(60.0)
    assert await found(world, "something")
    assert [len(await found(world, f"w{n}x7")) for n in range(100)] == [1] * 100


async def test_an_index_that_an_earlier_version_left_almost_empty_is_filled(world: SearchWorld) -> None:
    await _fill(world)
    await world.index.close()
    world.index.path.unlink()
    last = await world.talk(said("something new"), AssistantMessage("yes"))
    file = open_side_file(world.index.path)
    file.set_since(world.clock.now())
    file.close()
    world.index = LogIndex(world.index.path, world.store.recall, world.clock)  # as after a restart
    page = await world.index.search("w50x7", EVERYTHING)
    assert page.is_complete
    assert len(page.hits) == 1
    assert world.index.reading == IndexReading(sessions=101, missing_entries=0)
    assert await found(world, "something") == [(last, 1)]


@pytest.mark.parametrize(
    ("reading", "level"),
    [(None, None), (IndexReading(3, 0), Severity.OK), (IndexReading(3, 2), Severity.WARN)],
    ids=["unused", "whole", "behind"],
)
async def test_doctor_compares_the_index_with_the_log(
    tmp_path: Path, reading: IndexReading | None, level: Severity | None
) -> None:
    assert SEARCH_INDEX.findings is not None
    examination = Examination(tmp_path, NoSettings(), {}, {"search": msgspec.to_builtins(reading)})
    found = [finding async for finding in SEARCH_INDEX.findings(examination)]
    assert [finding.severity for finding in found] == [level] * (level is not None)


async def test_a_file_that_is_gone_or_of_another_version_is_made_anew(world: SearchWorld) -> None:
    session = await world.talk(said("walrus"), AssistantMessage("yes"))
    assert await found(world, "walrus") == [(session, 1)]
    await world.index.close()
    file = open_side_file(world.index.path)
    file._db.execute(f"PRAGMA user_version = {VERSION + 1}")
    file.close()
    assert await found(world, "walrus") == [(session, 1)]
    await world.index.close()
    world.index.path.unlink()
    assert await found(world, "walrus") == [(session, 1)]


async def test_an_older_database_that_was_put_back_is_read_again(world: SearchWorld) -> None:
    session = await world.talk(said("walrus"), AssistantMessage("yes"))
    await world.index.follow(session, HOME, 2)
    file = open_side_file(world.index.path)
    file._db.execute("UPDATE sessions SET head = 99")
    file.close()
    assert await found(world, "walrus") == [(session, 1)]


async def test_two_that_fill_it_at_once_add_nothing_twice(world: SearchWorld) -> None:
    session = await world.talk(*(said(f"walrus {n}") for n in range(500)))
    await asyncio.gather(*(world.index.follow(session, HOME, 500) for _ in range(4)))
    await world.index.close()
    file = open_side_file(world.index.path)
    assert file.count() == 500
    file.close()


async def test_a_gateway_in_which_nothing_happens_does_not_open_it(world: SearchWorld) -> None:
    await world.talk(said("walrus"), AssistantMessage("yes"))
    clock = FakeClock(START + DAY)
    index = LogIndex(world.index.path, world.store.recall, clock)
    running = asyncio.create_task(index.run())
    await clock.play(30)
    assert not world.index.path.exists()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await index.close()
