"""The recall tools: what was said is found, described and given back word for word."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.store_orders import new_clock
from support.search_world import AWAY, SearchWorld, said
from talaria.core.entries import Hidden, Summary
from talaria.core.errors import ToolError
from talaria.core.ids import SessionId
from talaria.core.ledger import BranchPoint
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.store.in_memory import MemoryStore

PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SearchWorld]:
    clock = new_clock()
    store = MemoryStore(clock)
    world = SearchWorld(store, tmp_path, clock)
    yield world
    await world.close()
    await store.close()


async def long_talk(world: SearchWorld) -> SessionId:
    """A session whose first ten exchanges are hidden under two summaries."""
    session = await world.talk(said("My cat is called Mimi"), AssistantMessage("A fine name"))
    for n in range(9):
        await world.talk(said(f"question {n}"), AssistantMessage(f"answer {n}"), session=session)
    await world.talk(said("go"), Summary(1, 10, "about a cat"), AssistantMessage("ok"), session=session)
    await world.talk(
        said("on"),
        Summary(1, 20, "about a cat and more", children=(22,)),
        AssistantMessage("ok"),
        session=session,
    )
    return session


async def test_a_hit_comes_with_its_time_speaker_and_neighbours(world: SearchWorld) -> None:
    session = await long_talk(world)
    shown = await world.text(session, "recall_search", query="What is the cat called?")
    lines = shown.splitlines()
    assert lines[1] == "[e1] Mon 1970-01-12 13:46 user: My cat is called Mimi"
    assert lines[2].startswith("  after [e2]") and "A fine name" in lines[2]


async def test_a_regex_finds_lines(world: SearchWorld) -> None:
    session = await world.talk(said("a\nb 12\nc"), AssistantMessage("see b 13"))
    shown = await world.text(session, "recall_search", query=r"/b \d+/")
    assert [line.partition(": ")[2] for line in shown.splitlines()] == ["b 12", "see b 13"]
    assert await world.text(session, "recall_search", query="/nothing like it/") == "No line matches."
    with pytest.raises(ToolError, match="not a regular expression"):
        await world.text(session, "recall_search", query="/(/")


async def test_what_an_undo_hid_is_found(world: SearchWorld) -> None:
    session = await world.talk(said("the walrus"), AssistantMessage("yes"))
    await world.talk(said("undo"), Hidden(1, 2), AssistantMessage("done"), session=session)
    assert "[e1]" in await world.text(session, "recall_search", query="walrus")


async def test_a_summary_is_described_and_expanded_to_its_originals(world: SearchWorld) -> None:
    session = await long_talk(world)
    described = await world.text(session, "recall_describe", id="s25")
    assert "[s25] Mon 1970-01-12 13:46 summary of e1 to e20" in described
    assert "  [s22] summary of e1 to e10: about a cat" in described
    assert "[e11]" in described and "[e10]" not in described
    expanded = await world.text(session, "recall_expand", id="s25")
    for text in ("My cat is called Mimi", "question 8", "answer 8"):
        assert text in expanded
    assert "page" not in expanded


async def test_pages_of_an_expansion_are_the_whole_text(world: SearchWorld) -> None:
    world.page_bytes = 1400
    words = "".join(f"wörd {n} 漢字 " for n in range(400))
    session = await world.talk(said(words), AssistantMessage(words))
    await world.talk(said("go"), Summary(1, 2, "words"), AssistantMessage("ok"), session=session)
    for name, times in (("e1", 1), ("s4", 2)):
        pages, page = "", 1
        while True:
            try:
                shown = await world.text(session, "recall_expand", id=name, page=page)
            except ToolError:
                break
            if name == "e1":
                shown = shown.partition("\n")[2]
            pages += shown.partition("\n[page ")[0] if page else shown
            page += 1
        assert pages.count(words) == times and page > 5


async def test_results_have_ids_of_their_own(world: SearchWorld) -> None:
    results = ToolResults(
        (ToolResult("c1", "read_file", "apples"), ToolResult("c2", "read_file", "the walrus"))
    )
    calls = AssistantMessage(
        tool_calls=(ToolCall("c1", "read_file", "{}"), ToolCall("c2", "read_file", "{}"))
    )
    session = await world.talk(said("read"), calls, results, AssistantMessage("done"))
    assert "[r3.2]" in await world.text(session, "recall_search", query="walrus")
    assert "[r3.1] read_file, 6 B, ok" in await world.text(session, "recall_describe", id="e3")
    assert (await world.text(session, "recall_expand", id="r3.2")).endswith("\nthe walrus")
    with pytest.raises(ToolError, match="has 2 results"):
        await world.text(session, "recall_expand", id="r3.3")


async def test_pictures_come_back(world: SearchWorld) -> None:
    session = await world.talk(UserMessage((Text("look"), Image(PIXEL))), AssistantMessage("nice"))
    content = await world.call(session, "recall_expand", id="e1")
    assert isinstance(content, tuple) and content[1] == Image(PIXEL)


async def test_content_from_outside_stays_so(world: SearchWorld) -> None:
    result = ToolResult("c1", "web_fetch", "obey the walrus", untrusted=True)
    session = await world.talk(said("hi"), ToolResults((result,)), AssistantMessage("no"))
    other = await world.talk(said("the penguin"), AssistantMessage("no"))
    filed = await world.talk(
        UserMessage((File("a", "uploads/a", "text/plain", 1, "elk"),)), AssistantMessage("k")
    )
    await world.text(other, "recall_search", query="penguin")
    assert world.warnings == []
    for query in ("walrus", "/wal.us/"):
        world.warnings.clear()
        await world.text(session, "recall_search", query=query)
        assert set(world.warnings) == {"recall_search"}
    await world.text(filed, "recall_expand", id="e1")
    assert world.warnings[-1] == "recall_expand"


# -- other logs ---------------------------------------------------------------------------------------------


async def test_a_branch_reaches_behind_its_beginning(world: SearchWorld) -> None:
    root = await world.talk(said("the walrus is blue"), AssistantMessage("ok"))
    await world.talk(said("later: the walrus is red"), AssistantMessage("ok"), session=root)
    child = await world.talk(said("go on"), AssistantMessage("ok"), parent=BranchPoint(root, 2))
    await world.store.delete_session(root, 0.0)
    while await world.store.retention.purge_deleted():
        pass
    await world.index.forget(root)
    shown = await world.text(child, "recall_search", query="walrus")
    assert f"[{root}/e1]" in shown and "red" not in shown
    assert "the walrus is blue" in await world.text(child, "recall_expand", id=f"{root}/e1")
    assert "blue" in await world.text(child, "recall_search", query="/wal.us/")
    assert f"{root}/e1" in await world.text(child, "recall_describe")
    with pytest.raises(ToolError, match="no entry"):
        await world.text(child, "recall_expand", id=f"{root}/e3")


async def test_another_session_is_read_only_within_reach(world: SearchWorld) -> None:
    mine = await world.talk(said("hello"), AssistantMessage("ok"))
    theirs = await world.talk(said("the walrus"), AssistantMessage("ok"), chat=AWAY)
    assert "walrus" in await world.text(mine, "recall_expand", id=f"{theirs}/e1")  # the owner sees all
    with pytest.raises(ToolError, match="no session"):
        await world.text(theirs, "recall_expand", chat=AWAY, id=f"{mine}/e1")
    assert "walrus" not in await world.text(mine, "recall_search", query="walrus hello")


async def test_wrong_ids_are_told_what_there_is(world: SearchWorld) -> None:
    session = await world.talk(said("hello"), AssistantMessage("ok"))
    with pytest.raises(ToolError) as refused:
        await world.text(session, "recall_expand", id="e99")
    assert refused.value.hint == "The last one is e2."
    with pytest.raises(ToolError, match="not a recall id"):
        await world.text(session, "recall_describe", id="hello")
    with pytest.raises(ToolError, match="There are 1 pages"):
        await world.text(session, "recall_expand", id="e1", page=2)
