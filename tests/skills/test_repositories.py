"""Skills from git: fetched as data, and nothing of a repository is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from skills.skill_makers import make_skill
from support.repositories import git, needs_git
from talaria.skills.front_matter import SkillError
from talaria.skills.repositories import Repository, fetched, parse_source, spoken_address
from talaria.skills.skill_folder import find_skills, read_skill

GITHUB = "https://github.com/anthropics/skills"


@pytest.mark.parametrize(
    ("text", "repository"),
    [
        (GITHUB, Repository(GITHUB)),
        (f"{GITHUB}/tree/main/skills/pdf", Repository(GITHUB, "main", "skills/pdf")),
        (f"{GITHUB}/tree/main/", Repository(GITHUB, "main")),
        (
            "https://gitlab.com/a/b/c/-/tree/v1/d%20e",
            Repository("https://gitlab.com/a/b/c", "v1", "d e"),
        ),
        ("git@github.com:a/b.git", Repository("git@github.com:a/b.git")),
        ("ssh://git@host/a/b", Repository("ssh://git@host/a/b")),
        ("./folder", None),
        ("C:folder", None),
    ],
)
def test_an_address_is_told_from_a_path(text: str, repository: Repository | None) -> None:
    assert parse_source(text) == repository


@pytest.mark.parametrize(
    "url", ["http://host/a", "https://[host/a", "ext::sh -c 'touch x'://", "git://host/a", "ftp://a/b"]
)
def test_other_ways_of_fetching_are_refused(url: str) -> None:
    with pytest.raises(SkillError):
        parse_source(url)


def test_credentials_are_not_shown() -> None:
    assert spoken_address("https://me:token@host/a/b?x=1") == "https://host/a/b"


@needs_git
def test_a_repository_is_read_without_running_anything_of_it(tmp_path: Path) -> None:
    repo, marker = tmp_path / "repo", tmp_path / "was-run"
    make_skill(repo / "skills", "one")
    make_skill(repo / "skills", "two")
    (repo / "skills/two/link").symlink_to("/etc/passwd")
    (repo / "README.md").write_text("not a skill")
    (repo / ".gitattributes").write_text("* filter=evil\n")
    (repo / ".gitmodules").write_text('[submodule "x"]\n\tpath = skills/one/x\n\turl = ../x\n')
    git(tmp_path, "init", "-q", "repo")
    git(repo, "add", ".")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},skills/one/x")
    git(repo, "commit", "-qm", "one")
    hook = repo / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    with fetched(Repository(f"file://{repo}")) as (top, origin):
        folders = list(find_skills(top))
        assert [folder.name for folder in folders] == ["one", "two"]
        assert read_skill(folders[0]).digest == read_skill(repo / "skills/one").digest
        with pytest.raises(SkillError, match="link is a link"):
            read_skill(folders[1])
        assert not (top / "README.md").exists()
        assert origin == f"file://{repo}@{git(repo, 'rev-parse', 'HEAD')[:12]}"
    assert not top.exists() and not marker.exists()
    with fetched(Repository(f"file://{repo}", folder="skills/one")) as (top, _):
        assert [folder.name for folder in find_skills(top)] == ["one"]
    for wrong, said in (
        (Repository(f"file://{repo}", folder="docs"), "has no SKILL.md"),
        (Repository(f"file://{repo}", folder="../.."), "not a folder of the repository"),
        (Repository(f"file://{repo}", folder="--name-only"), "has no SKILL.md"),
        (Repository(f"file://{repo}", branch="nope"), "cannot be fetched"),
        (Repository(f"file://{tmp_path}/nothing"), "cannot be fetched"),
    ):
        with pytest.raises(SkillError, match=said), fetched(wrong):
            pass
