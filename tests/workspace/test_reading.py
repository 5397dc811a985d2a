from __future__ import annotations

import io
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import ToolError
from talaria.workspace.folder import Folder, FolderPath
from talaria.workspace.reading import Glob, Position, TextPage, Walk, is_binary, read_page, walk

TREE = [
    "a.py",
    "b.txt",
    "src/main.py",
    "src/pkg/deep.py",
    "src/pkg/data.json",
    ".hidden/x.py",
    ".git/config",
    ".talaria/results/r.txt",
    ".talaria-0011223344556677",
]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return Folder(tmp_path)


def names(folder: Folder, pattern: str, start: str = ".", most: int = 100) -> list[str]:
    return [str(found.path) for found in walk(folder, folder.resolve(start), Glob(pattern), most).found]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", [".git", ".hidden", "a.py", "b.txt", "src"]),
        ("*.py", ["a.py"]),
        ("**/*.py", [".hidden/x.py", "a.py", "src/main.py", "src/pkg/deep.py"]),
        ("src/*", ["src/main.py", "src/pkg"]),
        ("src/**", ["src", "src/main.py", "src/pkg", "src/pkg/data.json", "src/pkg/deep.py"]),
        ("src/**/*.json", ["src/pkg/data.json"]),
        ("**/pkg/**/deep.py", ["src/pkg/deep.py"]),
        ("?.txt", ["b.txt"]),
        ("[ab].*", ["a.py", "b.txt"]),
        ("./a.py", ["a.py"]),
        ("nothing*", []),
    ],
)
def test_a_glob_finds_what_it_says(folder: Folder, pattern: str, found: list[str]) -> None:
    assert names(folder, pattern) == found


def test_the_gateways_own_files_are_seen_only_when_named(folder: Folder) -> None:
    assert not any(".talaria" in name for name in names(folder, "**"))
    assert names(folder, "*", ".talaria/results") == [".talaria/results/r.txt"]
    assert names(folder, "*", ".git") == [".git/config"]


@pytest.mark.parametrize("pattern", ["", "/", "/etc/*", "../*", "src/../../*", ".", "a/" * 65, "x" * 1001])
def test_a_glob_that_leaves_or_is_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(ToolError):
        Glob(pattern)


def test_a_walk_stops_at_its_limits_and_says_so(folder: Folder) -> None:
    whole = walk(folder, FolderPath(()), Glob("**"), max_found=100)
    exact = walk(folder, FolderPath(()), Glob("**"), max_found=len(whole.found))
    short = walk(folder, FolderPath(()), Glob("**"), max_found=3)
    tired = walk(folder, FolderPath(()), Glob("**"), max_found=100, max_visited=4)
    assert [whole.is_complete, exact.is_complete, short.is_complete, tired.is_complete] == [
        True,
        True,
        False,
        False,
    ]
    assert len(short.found) == 3


def test_a_walk_that_is_cancelled_ends_and_is_not_complete(folder: Folder) -> None:
    ended = walk(folder, FolderPath(()), Glob("**"), max_found=100, is_cancelled=lambda: True)
    assert ended == Walk((), is_complete=False)


def test_a_missing_start_is_an_error(folder: Folder) -> None:
    with pytest.raises(ToolError, match="There is no nowhere"):
        names(folder, "*", "nowhere")


def test_a_glob_made_to_backtrack_is_answered_at_once(tmp_path: Path) -> None:
    (tmp_path / ("a" * 200)).touch()
    assert names(Folder(tmp_path), "*a" * 60 + "b") == []


part = st.sampled_from(["a", "b", "ab", "*", "a*", "?", "**"])
name = st.sampled_from(["a", "b", "ab", "ba", "aab"])


def matches_slowly(pattern: list[str], path: list[str]) -> bool:
    """The meaning of a glob, written as plainly as possible."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches_slowly(pattern[1:], path[n:]) for n in range(len(path) + 1))
    regex = pattern[0].replace("*", ".*").replace("?", ".")
    return bool(path) and bool(re.fullmatch(regex, path[0])) and matches_slowly(pattern[1:], path[1:])


@settings(deadline=None)
@given(pattern=st.lists(part, min_size=1, max_size=5), path=st.lists(name, min_size=1, max_size=5))
def test_a_glob_means_the_same_as_its_definition(pattern: list[str], path: list[str]) -> None:
    glob = Glob("/".join(pattern))
    states = list(itertools.accumulate(path, glob.step, initial=glob.start))
    assert glob.is_match(states[-1]) == matches_slowly(pattern, path)
    if glob.is_match(states[-1]):
        assert all(glob.can_go_on(state) for state in states[:-1])


# -- pages --------------------------------------------------------------------------------------------------


def opened(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


def page(data: bytes, line: int = 1, column: int = 1, lines: int = 1000, size: int = 1000) -> TextPage:
    return read_page(opened(data), Position(line, column), lines, size)


def test_a_short_file_is_one_page() -> None:
    assert page(b"a\nb\n") == TextPage("a\nb\n", last_line=2, lines=2, next=None)
    assert page(b"a\nb") == TextPage("a\nb", last_line=2, lines=2, next=None)
    assert page(b"") == TextPage("", last_line=0, lines=0, next=None)
    assert page(b"\n") == TextPage("\n", last_line=1, lines=1, next=None)


def test_offset_and_limit_pick_lines() -> None:
    assert page(b"1\n2\n3\n4\n5", line=2, lines=2) == TextPage(
        "2\n3\n", last_line=3, lines=5, next=Position(4)
    )
    assert page(b"1\n2\n3", line=3) == TextPage("3", last_line=3, lines=3, next=None)


def test_a_page_ends_with_a_whole_line_when_the_budget_does() -> None:
    data = b"x" * 49 + b"\n"
    assert page(data * 3, size=120) == TextPage(data.decode() * 2, last_line=2, lines=3, next=Position(3))


def test_a_line_longer_than_the_budget_comes_in_pieces() -> None:
    first = page(b"x" * 100 + b"\nnext\n", size=70)
    assert first == TextPage("x" * 70, last_line=1, lines=2, next=Position(1, 71))
    assert page(b"x" * 100 + b"\nnext\n", column=71, size=70).text == "x" * 30 + "\nnext\n"


def test_a_piece_of_broken_text_fits_as_it_is_shown() -> None:
    """Each broken byte is shown as a character of three bytes."""
    first = page(b"\xff" * 100, size=70)
    assert first == TextPage("\ufffd" * 23, last_line=1, lines=1, next=Position(1, 24))


def test_a_piece_never_ends_inside_a_character() -> None:
    first = page("✓".encode() * 50, size=70)
    assert first == TextPage("✓" * 23, last_line=1, lines=1, next=Position(1, 70))


@pytest.mark.parametrize(
    ("data", "line", "column", "says"),
    [
        (b"a\nb\n", 3, 1, "only 2 lines"),
        (b"a", 2, 1, "only 1 line."),
        (b"", 5, 1, "only 0 lines"),
        (b"abc\nd", 1, 5, "no column 5"),
        (b"abc\nd", 2, 9, "no column 9"),
        (b"text\0more", 1, 1, "binary"),
    ],
)
def test_a_start_behind_the_end_and_a_binary_file_are_refused(
    data: bytes, line: int, column: int, says: str
) -> None:
    with pytest.raises(ToolError, match=says):
        page(data, line, column)


def test_a_nul_byte_makes_a_file_binary() -> None:
    assert is_binary(b"\x7fELF\0")
    assert not is_binary("Übergrößenträger ✓".encode())


letters = st.binary(max_size=200) | st.text("aü✓🦶", min_size=50, max_size=100).map(str.encode)
lines = st.lists(letters.map(lambda line: line.replace(b"\0", b"0").replace(b"\n", b"")), max_size=8)


@settings(deadline=None)
@given(lines=lines, ending=st.booleans(), size=st.integers(64, 300), limit=st.integers(1, 5))
def test_following_the_pages_gives_the_whole_file_and_no_page_is_over_its_budget(
    lines: list[bytes], ending: bool, size: int, limit: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ending and lines else b"")
    at: Position | None = Position()
    texts = []
    while at is not None:
        part = read_page(opened(data), at, limit, size)
        texts.append(part.text)
        assert len(part.text.encode()) <= size
        assert part.lines == data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
        at = part.next
    assert "".join(texts) == data.decode(errors="replace")


def test_a_line_of_broken_bytes_is_cut_between_characters() -> None:
    # Each broken byte is shown as three, so a third of the room is read; a character lies across its end.
    data = b"\xff" * 21 + "ä".encode() * 60
    first = page(data, size=66)
    assert first.text == "\ufffd" * 21
    assert first.next is not None
    assert page(data, first.next.line, first.next.column).text == "ä" * 60


def test_a_column_beyond_all_measure_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    folder = Folder(tmp_path)
    with folder.open(folder.resolve("a.txt")) as file, pytest.raises(ToolError, match="has no column"):
        read_page(file, Position(1, 10**30), 10, 100)
