"""`skills add` of a repository whose tree no git program would write: a clear error, and nothing is left."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.repositories import git, needs_git
from talaria.skills.front_matter import SkillError
from talaria.skills.repositories import Repository, fetched

SKILL = b"---\nname: one\ndescription: Does one thing.\n---\nDo it.\n"
Row = tuple[bytes, bytes, bytes]  # mode, name, object


class Crafted:
    """A repository with objects that git itself does not check."""

    def __init__(self, path: Path) -> None:
        self.path = path
        git(path.parent, "init", "-q", "--bare", path.name)
        self.blob = self.write("blob", b"content\n")
        self.skill = (b"100644", b"SKILL.md", self.write("blob", SKILL))

    def write(self, kind: str, content: bytes) -> bytes:
        words = ["git", "hash-object", "-t", kind, "--literally", "-w", "--stdin"]
        done = subprocess.run(words, input=content, cwd=self.path, check=True, capture_output=True)
        return bytes.fromhex(done.stdout.decode().strip())

    def tree(self, *rows: Row) -> bytes:
        return self.write("tree", b"".join(b"%b %b\0%b" % row for row in rows))

    def commit(self, tree: bytes) -> None:
        made = git(self.path, "commit-tree", "-m", "one", tree.hex()).strip()
        branch = git(self.path, "symbolic-ref", "HEAD").strip()
        git(self.path, "update-ref", branch, made)


def duplicate(repo: Crafted) -> bytes:
    return repo.tree(repo.skill, (b"100644", b"a", repo.blob), (b"100644", b"a", repo.blob))


def file_and_folder(repo: Crafted) -> bytes:
    below = repo.tree((b"100644", b"b", repo.blob))
    return repo.tree(repo.skill, (b"100644", b"a", repo.blob), (b"40000", b"a", below))


def link_and_folder(repo: Crafted) -> bytes:
    below = repo.tree((b"100644", b"b", repo.blob))
    return repo.tree(repo.skill, (b"120000", b"a", repo.blob), (b"40000", b"a", below))


def long_name(repo: Crafted) -> bytes:
    return repo.tree(repo.skill, (b"100644", b"n" * 300, repo.blob))


def deep(repo: Crafted) -> bytes:
    tree = repo.tree((b"100644", b"b", repo.blob))
    for _ in range(300):
        tree = repo.tree((b"40000", b"d", tree))
    return repo.tree(repo.skill, (b"40000", b"d", tree))


def same_after_decoding(repo: Crafted) -> bytes:
    return repo.tree(repo.skill, (b"100644", b"a\xfe", repo.blob), (b"100644", b"a\xff", repo.blob))


def folder_as_file(repo: Crafted) -> bytes:
    below = repo.tree((b"100644", b"b", repo.blob))
    return repo.tree(repo.skill, (b"100644", b"a", below))


@needs_git
@pytest.mark.parametrize(
    "make",
    [
        duplicate,
        file_and_folder,
        link_and_folder,
        long_name,
        deep,
        same_after_decoding,
        folder_as_file,
    ],
)
def test_a_crafted_tree_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Crafted], bytes]
) -> None:
    repo = Crafted(tmp_path / "repo.git")
    repo.commit(make(repo))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with pytest.raises(SkillError) as refused, fetched(Repository(f"file://{repo.path}")):
        pass
    assert "repo.git" in refused.value.user_text and refused.value.hint
    assert not list((tmp_path / "tmp").iterdir())
