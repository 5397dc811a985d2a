from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import ToolError
from talaria.workspace.folder import Folder, Inside
from talaria.workspace.walk import Glob, walk

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
    whole = walk(folder, Inside(()), Glob("**"), max_found=100)
    exact = walk(folder, Inside(()), Glob("**"), max_found=len(whole.found))
    short = walk(folder, Inside(()), Glob("**"), max_found=3)
    tired = walk(folder, Inside(()), Glob("**"), max_found=100, max_visited=4)
    assert [whole.is_complete, exact.is_complete, short.is_complete, tired.is_complete] == [
        True,
        True,
        False,
        False,
    ]
    assert len(short.found) == 3


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
