"""The version of a source tree, in repositories with and without tags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.repositories import git, needs_git
from talaria.core.program import describe, this_version


def commit(root: Path, times: int = 1) -> str:
    """Make commits and return the name of the last one as a version shows it."""
    for _ in range(times):
        git(root, "commit", "--quiet", "--allow-empty", "--message", "more")
    return "g" + git(root, "rev-parse", "--short=8", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    return tmp_path


@needs_git
def test_a_history_without_tags_leads_to_the_release_after_the_first_version(clone: Path) -> None:
    assert describe(clone) == "0.2.0.dev0+unknown", "no commit yet"
    last = commit(clone, 3)
    assert describe(clone) == f"0.2.0.dev3+{last}"


@needs_git
@pytest.mark.parametrize(
    ("tag", "there", "following"),
    [
        ("v0.2.0", "0.2.0", "0.3.0"),
        ("v0.2.7", "0.2.7", "0.3.0"),
        ("v1.10.0", "1.10.0", "1.11.0"),
        ("v1.0.0rc1", "1.0.0rc1", "1.0.0rc2"),
    ],
)
def test_a_tag_is_the_version_and_commits_after_it_lead_to_the_next(
    clone: Path, tag: str, there: str, following: str
) -> None:
    commit(clone, 2)
    git(clone, "tag", tag)
    assert describe(clone) == there
    assert describe(clone, "--dirty") == there
    last = commit(clone, 2)
    assert describe(clone) == f"{following}.dev2+{last}"


@needs_git
def test_tags_that_name_no_version_count_for_nothing(clone: Path) -> None:
    last = commit(clone)
    for tag in ("nightly", "v2", "v2-beta-1-gabc", "version1.0.0"):
        git(clone, "tag", tag)
        assert describe(clone) == f"0.2.0.dev1+{last}"


@needs_git
def test_changed_files_are_told_where_that_is_asked(clone: Path) -> None:
    (clone / "file").write_text("a")
    git(clone, "add", "file")
    last = commit(clone)
    git(clone, "tag", "v0.2.0")
    (clone / "file").write_text("b")
    assert describe(clone) == "0.2.0"
    assert describe(clone, "--dirty") == f"0.3.0.dev0+{last}.dirty"


@needs_git
def test_another_repository_around_the_tree_or_in_the_environment_does_not_count(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(clone)
    git(clone, "tag", "v7.0.0")
    inner = clone / "unpacked"
    inner.mkdir()
    assert describe(inner) == "0.2.0.dev0+unknown"
    git(inner, "init", "--quiet")
    last = commit(inner)
    monkeypatch.setenv("GIT_DIR", str(clone / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(clone))
    assert describe(inner) == f"0.2.0.dev1+{last}"


def test_without_git_the_version_says_that_it_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(tmp_path) == "0.2.0.dev0+unknown"


def test_the_version_of_this_program_is_one_that_installers_accept() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?(\.dev\d+\+(g[0-9a-f]+|unknown))?", this_version())
