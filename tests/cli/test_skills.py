"""`talaria skills`: what an operator types and reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skills.skill_makers import make_skill
from support.repositories import git, needs_git
from talaria.cli.main import main
from talaria.skills.pins import SkillsInUse

Skills = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Skills:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["skills", "--home", str(home), *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def counting(tmp_path: Path) -> list[str]:
    return list(SkillsInUse(tmp_path / "home/skills").get())


def test_a_folder_is_added_changed_accepted_and_removed(tmp_path: Path, run: Skills) -> None:
    assert "There are no skills." in run("list")[1]
    folder = make_skill(tmp_path)
    status, said, _ = run("add", str(folder))
    assert status == 0 and counting(tmp_path) == ["greet"]
    assert "greet: Greets people." in said and "scripts/hello.sh" in said
    assert "`/greet …` calls it yourself." in said
    assert run("list")[1].splitlines()[1].split()[:4] == ["greet", "in", "use", "2"]

    make_skill(tmp_path, body="Say \u202egoodbye.")
    status, said, err = run("add", str(folder / "SKILL.md"))
    assert status == 2 and "--yes" in err
    assert "-Say hello." in said and "+Say \\u{202e}goodbye." in said
    assert run("add", str(folder), "--yes")[0] == 0

    make_skill(tmp_path / "home/skills", "fresh", "Does \x1b[31mthings.")
    status, said, err = run("list")
    assert "fresh  new" in said and "New ones do not count yet" in err and "\x1b" not in said
    status, said, _ = run("check")
    assert (
        status == 0 and "new: it does not count yet" in said and "SKILL.md has 1 hidden characters." in said
    )
    assert counting(tmp_path) == ["greet"]
    assert "fresh counts now." in run("accept", "--yes")[1]
    assert counting(tmp_path) == ["fresh", "greet"]
    assert "There is nothing to accept" in run("accept")[1]
    assert run("remove", "greet", "--yes")[0] == 0
    assert counting(tmp_path) == ["fresh"]
    status, _, err = run("remove", "greet", "--yes")
    assert status == 1 and "There is no skill 'greet'." in err


@needs_git
def test_of_a_repository_skills_are_chosen(tmp_path: Path, run: Skills) -> None:
    repo = tmp_path / "repo"
    for name in ("one", "two", "help"):
        make_skill(repo / "skills", name)
    (repo / "skills/two/SKILL.md").write_text("---\nname: [\n")
    git(tmp_path, "init", "-q", "repo")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "one")
    url = f"file://{repo}"
    status, said, err = run("add", url)
    assert status == 2 and "There are 3 skills: say --only NAME or --all." in err
    assert "  one: Greets people." in said and "  two: The front matter" in said
    status, _, err = run("add", url, "--only", "three")
    assert status == 1 and "There are: help, one, two." in err
    status, _, err = run("add", url, "--only", "two")
    assert status == 1 and "has no end" in err
    status, said, err = run("add", url, "--all")
    assert status == 0 and counting(tmp_path) == ["help", "one"]
    assert "two is left out" in err and "/help is a command of Talaria" in said
    assert run("remove", "one", "--yes")[0] == 0
    assert run("add", url, "--folder", "skills/one")[0] == 0
    assert counting(tmp_path) == ["help", "one"]


def test_what_is_no_skill_is_named(tmp_path: Path, run: Skills) -> None:
    for words, said in (
        (("add", str(tmp_path / "nothing")), "There is no folder"),
        (("add", "http://host/a"), "Skills are not fetched by http."),
        (("add", str(tmp_path / "home")), "has no SKILL.md"),
        (("accept", "nothing"), "There is no skill 'nothing'."),
    ):
        status, _, err = run(*words)
        assert status == 1 and said in err, err
    broken = make_skill(tmp_path / "home/skills", "broken")
    (broken / "link").symlink_to("/etc/passwd")
    status, said, _ = run("check")
    assert status == 1 and "broken: broken. link is a link." in said
    status, said, _ = run("check", str(make_skill(tmp_path, "fine")))
    assert status == 0 and "fine: Greets people." in said
    assert run("accept", "broken", "--yes")[0] == 1
    assert counting(tmp_path) == []


def test_edits_that_were_not_accepted_are_not_replaced_unasked(tmp_path: Path, run: Skills) -> None:
    folder = make_skill(tmp_path)
    mine = make_skill(tmp_path / "home/skills", body="My own text.")
    status, said, err = run("add", str(folder))
    assert status == 2 and "changes that were not accepted" in said and "--yes" in err
    assert "My own text." in (mine / "SKILL.md").read_text()
    assert run("add", str(folder), "--yes")[0] == 0
    assert run("add", str(folder))[0] == 0, "nothing would be lost"
    (mine / "SKILL.md").write_text((folder / "SKILL.md").read_text() + "An edit.\n")
    assert run("add", str(folder))[0] == 2
    assert "An edit." in (mine / "SKILL.md").read_text()


def test_names_of_folders_are_shown_without_escapes(tmp_path: Path, run: Skills) -> None:
    make_skill(tmp_path / "many", "fine")
    make_skill(tmp_path / "many", "bad\x1b]0;title\x07")
    for file in (tmp_path / "many").glob("bad*/SKILL.md"):
        file.write_text("---\nname: [\n")
    for words in (("add", "--all"), ("add",), ("add", "--only", "none"), ("check",)):
        _, said, err = run(*words, str(tmp_path / "many"))
        assert "bad" in said + err and "\x1b" not in said + err
