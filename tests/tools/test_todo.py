from __future__ import annotations

import pytest

from tools.conftest import ToolCaller

MAX_CHARS = 500
MAX_ITEMS = 100

ITEMS = [{"text": "read"}, {"text": "write", "status": "in_progress"}, {"text": "plan", "status": "done"}]
SHOWN = "1. [ ] read\n2. [>] write\n3. [x] plan\n1 of 3 done."


async def test_the_list_is_replaced_and_comes_back_as_it_was(caller: ToolCaller) -> None:
    assert await caller.ok("todo") == "The list is empty."
    assert await caller.ok("todo", items=ITEMS) == SHOWN
    assert await ToolCaller(caller.folder).ok("todo") == SHOWN
    assert await caller.ok("todo", items=[]) == "The list is empty."
    assert await caller.ok("todo") == "The list is empty."


async def test_each_session_has_its_own_list(caller: ToolCaller) -> None:
    other = ToolCaller(caller.folder, session="ses_2")
    await caller.ok("todo", items=ITEMS)
    assert await other.ok("todo") == "The list is empty."
    assert await caller.ok("todo") == SHOWN


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{"text": "x"}] * (MAX_ITEMS + 1), "at most 100 items"),
        ([{"text": "x" * (MAX_CHARS + 1)}], "at most 500 characters"),
        ([{"text": "  "}], "1 to 500 characters"),
        ([{"text": "x", "status": "later"}], "must be one of 'pending', 'in_progress', 'done'"),
        ([{"status": "done"}], "items[0].text is missing"),
        ([{"text": "x", "when": "now"}], "when is not known"),
        ("read", "must be an array"),
    ],
)
async def test_a_list_that_does_not_fit_changes_nothing(caller: ToolCaller, items: object, says: str) -> None:
    await caller.ok("todo", items=ITEMS)
    assert says in await caller.error("todo", items=items)
    assert await caller.ok("todo") == SHOWN


@pytest.mark.parametrize("junk", [b"", b"{}", b"[1]", b"\xff", b'[{"text":1}]'])
async def test_a_spoilt_file_is_an_empty_list(caller: ToolCaller, junk: bytes) -> None:
    file = caller.folder / ".talaria/todo/ses_1.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(junk)
    assert await caller.ok("todo") == "The list is empty."
