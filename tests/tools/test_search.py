from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from support.waiting import until
from talaria.core.errors import ToolError
from talaria.core.ids import SessionId
from talaria.tools.matcher import _serve, compile_plain, excerpt, find_hits, is_plain
from talaria.tools.search import _Report, _search_plain, search
from talaria.tools.tool import CallScope
from talaria.tools.workers import ToolWorkers, TurnResources
from talaria.workspace.folder import Folder, FolderPath
from tools.conftest import ToolCaller, context

SHOWN_CHARS = 200


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def filled(caller: ToolCaller) -> ToolCaller:
    for name, text in {
        "a.py": "import os\n\ndef first():\n    return os.name\n",
        "pkg/b.py": "def second(x):\r\n    return x  # os.name\r\n",
        "pkg/notes.txt": "nothing here\n",
        ".git/config": "os.name",
        ".talaria/results/r.txt": "os.name",
    }.items():
        (caller.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (caller.folder / name).write_bytes(text.encode())
    (caller.folder / "binary").write_bytes(b"os.name\0")
    return caller


async def test_a_plain_text_is_found_in_every_text_file(filled: ToolCaller) -> None:
    assert await filled.ok("search_files", pattern="return") == (
        "a.py:4:     return os.name\n"
        "pkg/b.py:2:     return x  # os.name\n"
        "[Not searched: 1 binary, unreadable or larger than 4.0 MiB.]"
    )


async def test_a_regular_expression_matches_line_by_line(filled: ToolCaller) -> None:
    assert (
        await filled.ok("search_files", pattern=r"^def (\w+)\((x?)\):", path="pkg")
        == "pkg/b.py:1: def second(x):"
    )
    assert await filled.ok("search_files", pattern=r"(?i)IMPORT\s+os$", path="a.py") == "a.py:1: import os"
    assert await filled.ok("search_files", pattern=r"os\nimport", path="a.py") == "[No line matches.]"


async def test_the_gateways_own_results_are_searched_when_named(filled: ToolCaller) -> None:
    text = await filled.ok("search_files", pattern="os", path=".talaria/results/r.txt")
    assert text == ".talaria/results/r.txt:1: os.name"


async def test_a_bad_pattern_says_what_is_wrong(filled: ToolCaller) -> None:
    assert "unterminated subpattern" in await filled.error("search_files", pattern="def (")
    assert "1 to 1000 characters" in await filled.error("search_files", pattern="")
    assert "There is no nowhere" in await filled.error("search_files", pattern="x", path="nowhere")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){30}$", "^(([a-z])+.)+[A-Z]$"])
async def test_a_catastrophic_pattern_is_stopped_and_its_process_is_gone(
    tmp_path: Path, pattern: str
) -> None:
    (tmp_path / "bait.txt").write_text("a" * 5000 + "!")
    before = children()
    with pytest.raises(ToolError, match=r"took longer than 0\.2 seconds"):
        await search(context(tmp_path), pattern, ".", deadline_seconds=0.2)
    assert children() == before


async def test_the_loop_goes_on_while_a_pattern_burns(tmp_path: Path) -> None:
    (tmp_path / "bait.txt").write_text("a" * 5000 + "!")
    burning = asyncio.create_task(search(context(tmp_path), "(a+)+$", ".", deadline_seconds=0.3))
    breaths = 0
    while not burning.done():
        await asyncio.sleep(0)
        breaths += 1
    assert breaths > 100
    with pytest.raises(ToolError):
        await burning


async def test_a_cancelled_search_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "bait.txt").write_text("a" * 5000 + "!")
    before = children()
    burning = asyncio.create_task(search(context(tmp_path), "(a+)+$", ".", deadline_seconds=30))
    await until(lambda: children() != before, pause=0)
    burning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await burning
    assert children() == before


async def test_a_pattern_that_cannot_be_compiled_at_all_is_an_error(filled: ToolCaller) -> None:
    await filled.error("search_files", pattern="(" * 400 + ")" * 400 + "{99999999999999999999}")


async def test_hits_are_bounded_and_the_note_says_so(caller: ToolCaller) -> None:
    await caller.ok("write_file", path="many.txt", content="hit\n" * 1000)
    for pattern in ("hit", "h.t"):
        lines = (await caller.ok("search_files", pattern=pattern)).split("\n")
        assert len(lines) == 201
        assert lines[-1].startswith("[Only the first 200")


@pytest.mark.parametrize("at", [0, 50, 500, 999])
def test_a_long_line_is_cut_around_its_match(at: int) -> None:
    line = "." * at + "X" + "." * (999 - at)
    shown = excerpt(line, at)
    assert "X" in shown
    assert len(shown) <= SHOWN_CHARS + 2
    assert (shown[0] == "…", shown[-1] == "…") == (at > 50, at < 850)


def test_hits_carry_the_line_number_and_stop_at_their_limit() -> None:
    assert find_hits(re.compile("b"), b"a\nb\nc\r\nbb\r\nb", 2) == [(2, "b"), (4, "bb")]
    assert find_hits(re.compile("\ufffd"), b"\xff", 9) == [(1, "\ufffd")]


async def test_many_small_files_are_read_in_few_goes(tmp_path: Path) -> None:
    """So that a search costs what its files take, and a turn may search as often as it likes."""

    goes = 0

    class Counting(TurnResources):
        async def in_thread(self, function: Callable[..., Any], *args: object) -> Any:
            nonlocal goes
            goes += 1
            return await TurnResources.in_thread(self, function, *args)

    for n in range(300):
        (tmp_path / f"{n:03}.txt").write_text(f"hay\nneedle {n}\n" if n % 2 else "hay\n")
    (tmp_path / "010.txt").write_bytes(b"\0needle")
    resources = Counting(ToolWorkers(), SessionId("ses_1"))
    call = dataclasses.replace(context(tmp_path), resources=resources)
    found = await search(call, "ne+dle", ".", 15.0)
    assert found.splitlines()[:2] == ["001.txt:2: needle 1", "003.txt:2: needle 3"]
    assert len(found.splitlines()) == 151
    assert found.endswith("larger than 4.0 MiB.]")
    assert goes <= 10


def frames(*texts: bytes) -> BytesIO:
    return BytesIO(b"".join(len(text).to_bytes(4, "big") + text for text in texts))


def test_the_child_answers_each_text_in_order_and_ends_with_its_input() -> None:
    answers = BytesIO()
    _serve(frames(b"o+", b"one\ntwo\nthree\nfoo", b"", b"no"), answers, 2)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"hits": []},
        {"hits": [[1, "one"], [2, "two"]]},
        {"hits": []},
        {"hits": [[1, "no"]]},
    ]


@pytest.mark.parametrize("pattern", [b"(", b"a{99999999999}"])
def test_the_child_says_what_is_wrong_with_a_pattern_and_ends(pattern: bytes) -> None:
    answers = BytesIO()
    _serve(frames(pattern, b"text"), answers, 2)
    (line,) = answers.getvalue().splitlines()
    assert json.loads(line)["error"]


async def test_files_of_more_than_a_batch_are_all_searched(caller: ToolCaller) -> None:
    caller.folder.mkdir(exist_ok=True)
    for name in ("a", "b", "c"):
        (caller.folder / name).write_text("x" * 700_000 + "\nneedle")
    assert await caller.ok("search_files", pattern="needle$") == "a:2: needle\nb:2: needle\nc:2: needle"


async def test_a_search_that_is_cancelled_halfway_says_that_files_are_missing(filled: ToolCaller) -> None:
    report = _Report(is_complete=True)
    scope = CallScope(lambda: 0.0, 60)
    scope.cancel()
    _search_plain(Folder(filled.folder), [FolderPath(("a.py",))], "os", report, scope)
    assert report.render() == (
        "[No line matches.]\n[There are more files than one search covers. Narrow the path.]"
    )


def test_a_search_ends_when_it_has_read_as_much_as_it_may() -> None:
    report = _Report(is_complete=True)
    data = bytes(64 << 20)
    assert [report.read(data), report.is_full, report.read(data), report.is_full] == [
        True,
        False,
        True,
        False,
    ]
    assert not report.read(b"x")
    assert report.is_full
    assert "more files than one search covers" in report.render()


async def test_the_longest_pattern_is_taken_and_a_longer_one_refused(filled: ToolCaller) -> None:
    assert await filled.ok("search_files", pattern="x" * 1000, path="a.py") == "[No line matches.]"
    assert "1 to 1000 characters" in await filled.error("search_files", pattern="x" * 1001, path="a.py")


PLAIN = [r"\bK\w+\s\d", r"(?i)straSSe|k+", r"[^a-z\s]+$", r"\S\W\D", r"(?i:[a-k]{2})", r"(?a)\w", r".\s."]
OTHERS = [r"(?u)\w", "(?i)\u212a", r"(?i)\u212a", r"\x4b", r"(?L)a", "ü", r"\N{KELVIN SIGN}"]


@pytest.mark.parametrize("pattern", PLAIN)
def test_plain_data_is_searched_faster_and_finds_the_same(pattern: str) -> None:
    plain = compile_plain(pattern)
    assert plain is not None
    every = bytes(set(range(128)) - {*range(0x1C, 0x20)})
    data = b"Kind 1\nkk STRASSE\n\x1b[0m\tend.\na b\rc d\n~~~\nxx_9\n" + every
    assert is_plain(data)
    whole = find_hits(re.compile(pattern), data, 100)
    assert whole
    assert find_hits(plain, data, 100) == whole


@pytest.mark.parametrize("pattern", OTHERS)
def test_a_pattern_that_may_mean_other_letters_is_no_plain_one(pattern: str) -> None:
    assert compile_plain(pattern) is None


def test_data_in_which_classes_differ_is_not_plain() -> None:
    assert re.search(r"\s", "\x1c")
    assert not re.search(r"\s", "\x1c", re.ASCII)
    assert not any(map(is_plain, [b"a\x1cb", b"\x1f", "ü".encode(), b"\xff"]))
