"""Whatever a model sends, the work on it grows with its size and not faster, and is bounded."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.complexity import assert_linear, refused
from talaria.core.errors import ToolError
from talaria.core.limits import has_more_values
from talaria.core.messages import ToolCall
from talaria.core.redaction import Redactor
from talaria.core.tools import Risk, ToolSpec
from talaria.tools.approvals import find_question
from talaria.tools.files import find_passage
from talaria.tools.function import Arguments, FunctionTool, parameters, parse_arguments, text
from talaria.tools.matcher import find_hits
from talaria.tools.search import find_plain
from talaria.tools.todo import TODO
from talaria.tools.tool import ToolContext
from talaria.workspace.reading import Position, look_at, read_page
from talaria.workspace.spill import Spill

MAX_VALUES = 20_000


async def nothing(arguments: Arguments, context: ToolContext) -> str:
    return ""


WRITE = FunctionTool(ToolSpec("write", "", parameters({"path": text(""), "content": text("")})), nothing)
LIST = FunctionTool(TODO, nothing)
OPEN = FunctionTool(ToolSpec("open", "", '{"type":"object"}'), nothing)


def repeated(unit: str, head: str = "", tail: str = "") -> Callable[[int], str]:
    return lambda size: head + unit * (size // len(unit)) + tail


ARGUMENTS = {
    "one long text": repeated("a", '{"content":"', '"}'),
    "escapes": repeated("\\n", '{"content":"', '"}'),
    "escaped quotes": repeated('\\"', '{"content":"', '"}'),
    "backslashes": repeated("\\\\", '{"content":"', '"}'),
    "commas in a text": repeated(",", '{"content":"', '"}'),
    "lists": repeated("[],", '{"content":[', "[]]}"),
    "nested lists": repeated("["),
    "objects": repeated('{"text":"a"},', '{"items":[', "{}]}"),
    "numbers": repeated("1,", '{"items":[', "1]}"),
    "a long key": repeated("k", '{"', '":1}'),
    "keys": lambda size: "{" + ",".join(f'"{n}":1' for n in range(size // 11)) + "}",
    "blanks": repeated(" "),
    "no JSON": repeated('"'),
}


MANY_VALUES = ["lists", "nested lists", "objects", "numbers", "keys"]


@pytest.mark.parametrize("shape", ARGUMENTS)
def test_parsing_arguments_is_linear(shape: str) -> None:
    def work(arguments: str) -> None:
        for tool in (WRITE, LIST, OPEN):
            with refused("are wrong|are not JSON"):
                parse_arguments(tool, arguments)

    assert_linear(ARGUMENTS[shape], work, largest=MAX_VALUES if shape in MANY_VALUES else 1 << 40)


@pytest.mark.parametrize("shape", MANY_VALUES)
def test_arguments_of_too_many_values_are_not_decoded(shape: str) -> None:
    arguments = ARGUMENTS[shape](1 << 20)
    with pytest.raises(ToolError, match=f"more than {MAX_VALUES} values"):
        parse_arguments(OPEN, arguments)


@given(st.recursive(st.text(',[{"\\', max_size=5) | st.integers(), lambda inner: st.lists(inner, max_size=5)))
def test_values_are_counted_as_they_are(value: object) -> None:
    def count(value: object) -> int:
        return 1 + max(0, len(value) - 1) + sum(map(count, value)) if isinstance(value, list) else 0

    encoded = json.dumps(value).encode() + b" " * 200
    marks = count(value)
    assert marks == 0 or has_more_values(encoded, marks - 1)
    assert not has_more_values(encoded, marks)


def test_a_list_that_is_too_long_is_one_problem() -> None:
    with pytest.raises(ToolError, match=r"at most 100 items\.$"):
        parse_arguments(LIST, '{"items":[' + ",".join(["1"] * 200) + "]}")


def test_a_call_that_is_too_long_to_be_read_is_never_run_unasked() -> None:
    risky = FunctionTool(ToolSpec("shell", "", '{"type":"object"}', risk=Risk.HIGH), nothing)
    with pytest.raises(ToolError, match="too long for a person"):
        find_question(risky, ToolCall("c1", "shell", '{"command":"' + "a" * 70_000 + '"}'))


PASSAGES: dict[str, Callable[[int], tuple[bytes, bytes]]] = {
    "one letter": lambda size: (b"a" * size, b"a" * (size // 4)),
    "one letter too many": lambda size: (b"a" * size, b"a" * (size // 8) + b"b" + b"a" * (size // 8)),
    "a period": lambda size: (b"ab" * (size // 2), b"ab" * (size // 8) + b"a"),
    "almost": lambda size: ((b"a" * 1000 + b"b") * (size // 1001), b"a" * 1000 + b"c"),
    "returns": lambda size: (b"a\r\n" * (size // 3), b"\n" * (size // 8) + b"a"),
    "line ends": lambda size: (b"\n" * size, b"\n" * (size // 4)),
}


@pytest.mark.parametrize("make", PASSAGES.values(), ids=PASSAGES)
def test_finding_a_passage_is_linear(make: Callable[[int], tuple[bytes, bytes]]) -> None:
    def work(given: tuple[bytes, bytes]) -> None:
        with refused("occurs more than 10 times|is not in the file"):
            find_passage(*given, b"new")

    assert_linear(make, work)


TEXTS: dict[str, Callable[[int], str]] = {
    "letters": repeated("a"),
    "line ends": repeated("\n"),
    "wide": repeated("\U0001f600\n"),
    "half pairs": repeated("\ud800"),
}


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_results_are_cut_in_linear_time(make: Callable[[int], str]) -> None:
    def work(text: str) -> None:
        Spill(Redactor(), 10_000, None, "x").whole(text)

    # Mostly copying: the memory of the larger copies is fresh each time, which costs as much again.
    assert_linear(make, work)


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_files_are_read_and_searched_in_linear_time(make: Callable[[int], str]) -> None:
    def work(data: bytes) -> None:
        for line in (1, len(data) // 2, len(data)):
            with refused("It has only"):
                read_page(io.BufferedReader(io.BytesIO(data)), Position(line), 2000, 16_000)
        find_plain(b"\n", data, 200)
        find_plain(b"zz", data, 200)

    assert_linear(lambda size: make(size).encode(errors="replace"), work)


@pytest.mark.parametrize("unit", [b"\xff", b"\xff\xe0\x00\x02", b"\xff\xfe\xff\xff"])
def test_a_picture_is_recognised_in_linear_time(unit: bytes) -> None:
    assert_linear(lambda size: b"\xff\xd8\xff" + unit * (size // len(unit)), look_at)


@given(st.text("ab\n\r\u00e9", max_size=60).map(str.encode), st.text("ab\u00e9", min_size=1, max_size=3))
def test_a_plain_text_is_found_as_its_pattern_is(data: bytes, needle: str) -> None:
    found = find_plain(needle.encode(), data, 5)
    assert found == find_hits(re.compile(re.escape(needle)), data, 5)
