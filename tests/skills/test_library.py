"""Which skills count: what the operator accepted, as it was accepted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skills.skill_makers import add_skill, make_skill
from talaria.core.problems import Problem, Severity
from talaria.core.settings import Examination
from talaria.skills.front_matter import SkillError
from talaria.skills.library import SkillLibrary, SkillState
from talaria.skills.part import SKILLS
from talaria.skills.pins import PINS, SkillPin, SkillsInUse, readable_folders
from talaria.skills.skill_folder import (
    MAX_FILES,
    count_hidden,
    find_skills,
    read_head,
    read_skill,
    show_changes,
)
from talaria.skills.tool import MAX_LISTED_BYTES, list_skills
from talaria.tools.settings import ToolSettings


@pytest.fixture
def library(tmp_path: Path) -> SkillLibrary:
    return SkillLibrary(tmp_path / "skills")


async def findings(home: Path) -> list[Problem]:
    assert SKILLS.findings is not None
    return [each async for each in SKILLS.findings(Examination(home, ToolSettings(), {}))]


def states(library: SkillLibrary) -> dict[str, SkillState]:
    return {each.name: each.state for each in library.survey()}


def counting(library: SkillLibrary) -> list[str]:
    return list(SkillsInUse(library.root).get())


def test_a_skill_that_is_added_counts(tmp_path: Path, library: SkillLibrary) -> None:
    add_skill(tmp_path)
    assert states(library) == {"greet": SkillState.IN_USE}
    assert counting(library) == ["greet"]
    copy = SkillsInUse(library.root).copy_of("greet")
    assert read_skill(copy).digest == read_skill(tmp_path / "made" / "greet").digest
    assert (copy / "scripts/hello.sh").stat().st_mode & 0o777 == 0o555
    assert (library.root / "greet/SKILL.md").stat().st_mode & 0o200
    assert readable_folders(tmp_path) == (copy.parent,)


def test_a_folder_that_was_put_there_counts_only_after_it_was_accepted(library: SkillLibrary) -> None:
    make_skill(library.root)
    assert states(library) == {"greet": SkillState.NEW}
    assert counting(library) == []
    library.accept(library.find("greet"))
    assert counting(library) == ["greet"]


def test_an_edit_does_not_count_until_it_was_accepted(tmp_path: Path, library: SkillLibrary) -> None:
    add_skill(tmp_path)
    in_use = SkillsInUse(library.root)
    told: list[str] = []
    in_use.subscribe(lambda: told.append("changed"))
    accepted = in_use.get()["greet"]
    make_skill(library.root, description="Does other things.", body="Now do this.\n\x1b[2J\u202e")
    assert states(library) == {"greet": SkillState.CHANGED}
    assert in_use.get()["greet"] == accepted
    assert "Say hello." in (in_use.copy_of("greet") / "SKILL.md").read_text()
    standing = library.find("greet")
    assert standing.content is not None
    copy = library.copy_of("greet")
    shown = list(show_changes(read_skill(copy), copy, standing.content, standing.folder))
    assert "-description: Greets people." in shown and "+description: Does other things." in shown
    assert "+\\u{1b}[2J\\u{202e}" in shown
    library.accept(standing)
    assert in_use.get()["greet"].description == "Does other things."
    assert told == ["changed", "changed"]


def test_only_what_was_shown_is_accepted(library: SkillLibrary) -> None:
    folder = make_skill(library.root)
    shown = library.find("greet")
    (folder / "scripts/hello.sh").write_text("rm -rf /")
    with pytest.raises(SkillError, match="has changed since it was shown"):
        library.accept(shown)
    assert counting(library) == []
    assert [path.name for path in library.root.glob(".accepted/*")] == []


def test_a_program_bit_and_a_new_file_are_changes_too(tmp_path: Path, library: SkillLibrary) -> None:
    add_skill(tmp_path)
    (library.root / "greet/scripts/hello.sh").chmod(0o644)
    assert states(library) == {"greet": SkillState.CHANGED}
    (library.root / "greet/scripts/hello.sh").chmod(0o755)
    assert states(library) == {"greet": SkillState.IN_USE}
    (library.root / "greet/more.bin").write_bytes(b"\0\1")
    standing = library.find("greet")
    assert standing.state is SkillState.CHANGED and standing.content is not None
    copy = library.copy_of("greet")
    shown = list(show_changes(read_skill(copy), copy, standing.content, standing.folder))
    assert [line.split(" ")[:2] for line in shown] == [["more.bin:", "nothing"]]


def test_a_removed_skill_and_a_removed_folder_do_not_count(tmp_path: Path, library: SkillLibrary) -> None:
    for name in ("one", "two"):
        add_skill(tmp_path, name)
    in_use = SkillsInUse(library.root)
    assert list(in_use.get()) == ["one", "two"]
    library.remove(library.find("one"))
    (library.root / "two").rename(tmp_path / "elsewhere")
    assert list(in_use.get()) == []
    add_skill(tmp_path, "three")
    assert [path.name for path in library.root.glob(".accepted/*")] == ["three"]


def test_the_name_of_an_accepted_skill_cannot_be_taken(tmp_path: Path, library: SkillLibrary) -> None:
    add_skill(tmp_path)
    make_skill(library.root, "again")
    (library.root / "again/SKILL.md").write_text("---\nname: greet\ndescription: Another.\n---\n")
    found = {each.folder.name: each for each in library.survey()}
    assert found["greet"].state is SkillState.IN_USE
    assert found["again"].state is SkillState.BROKEN
    assert found["again"].problem.text == "Its name greet is taken by greet."
    with pytest.raises(SkillError):
        library.accept(found["again"])


def test_pins_that_cannot_be_read_let_nothing_count(tmp_path: Path, library: SkillLibrary) -> None:
    add_skill(tmp_path)
    (library.root / PINS).write_text("{")
    assert counting(library) == []
    assert states(library) == {"greet": SkillState.NEW}


def _with_link(folder: Path) -> None:
    (folder / "secret").symlink_to("/etc/passwd")


def _with_folder_link(folder: Path) -> None:
    (folder / "etc").symlink_to("/etc")


def _with_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _with_many(folder: Path) -> None:
    for number in range(MAX_FILES):
        (folder / f"{number}.txt").touch()


def _with_odd_name(folder: Path) -> None:
    (folder / "a\u202eb").touch()


def _without_instructions(folder: Path) -> None:
    (folder / "SKILL.md").unlink()


def _with_bytes(folder: Path) -> None:
    (folder / "SKILL.md").write_bytes(b"---\nname: \xff\n---\n")


def _with_large_file(folder: Path) -> None:
    with (folder / "large").open("wb") as file:
        file.truncate(33 << 20)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_with_link, "secret is a link"),
        (_with_folder_link, "etc is a link"),
        (_with_pipe, "pipe is not a plain file"),
        (_with_many, "more than 1000 files"),
        (_with_odd_name, "unsuitable name: 'ab'"),
        (_without_instructions, "has no SKILL.md"),
        (_with_bytes, "not text in UTF-8"),
        (_with_large_file, "more than 32.0 MiB"),
    ],
)
async def test_a_folder_that_is_no_skill_says_why(library: SkillLibrary, change, said: str) -> None:  # type: ignore[no-untyped-def]
    change(make_skill(library.root))
    (standing,) = library.survey()
    assert standing.state is SkillState.BROKEN
    assert said in standing.problem.text and standing.problem.hint
    assert counting(library) == []
    assert [each.severity for each in await findings(library.root.parent)] == [Severity.WARN]


def test_files_of_version_control_are_no_part_of_a_skill(library: SkillLibrary) -> None:
    folder = make_skill(library.root)
    before = read_skill(folder).digest
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("[core]")
    assert read_skill(folder).digest == before


@pytest.mark.parametrize(
    ("text", "name", "description", "notes"),
    [
        ("---\nname: a-b\ndescription: D.\n---\n", "a-b", "D.", 0),
        ("---\nname: My Skill!\ndescription: D.\n---\n", "my-skill", "D.", 1),
        ("---\nname: ../etc\ndescription: D.\n---\n", "etc", "D.", 1),
        ("# Title\n\nDoes a thing.\n", "the-folder", "Does a thing.", 2),
        ("---\nname: a\ndescription: \x1b[31mRed\u202e text\n---\n", "a", "[31mRed text", 0),
    ],
)
def test_the_head_of_a_skill_is_made_suitable(text: str, name: str, description: str, notes: int) -> None:
    head = read_head(text.encode(), "The Folder")
    assert (head.name, head.description, len(head.notes)) == (name, description, notes)


def test_other_fields_are_read() -> None:
    text = (
        "---\nname: a\ndescription: D.\nallowed-tools: Bash(git add:*) Read, Write\nlicense: MIT\n"
        "disable-model-invocation: true\nuser-invocable: false\n---\n"
    )
    head = read_head(text.encode(), "a")
    assert head.allowed_tools == ("Bash(git add:*)", "Read", "Write")
    assert (head.license, head.is_offered, head.is_callable) == ("MIT", False, False)


def test_skills_are_found_below_a_folder_but_not_in_each_other(tmp_path: Path) -> None:
    make_skill(tmp_path / "repo/skills/group")
    make_skill(tmp_path / "repo/skills/group/greet/template")
    make_skill(tmp_path / "elsewhere", "linked")
    (tmp_path / "repo/skills/link").symlink_to(tmp_path / "elsewhere")
    assert [path.name for path in find_skills(tmp_path / "repo")] == ["greet"]


def pin(description: str, *, is_offered: bool = True) -> SkillPin:
    return SkillPin("f", "d", description, 1, 1, is_offered=is_offered)


def test_the_section_of_the_prompt_has_an_order_and_a_limit() -> None:
    few = {"b": pin("B" * 900), "a": pin("A."), "hidden": pin("H.", is_offered=False)}
    section, left = list_skills(few)
    assert section.endswith(f"- a: A.\n- b: {'B' * 900}") and left == ()
    assert list_skills({}) == ("", ())
    # Descriptions are shortened first.
    some = {f"skill-{n:02}": pin("e" * 500) for n in range(12)}
    section, left = list_skills(some)
    assert left == () and section.count("…") == 12
    many = {f"skill-{n:03}": pin("word " * 60) for n in range(300)}
    section, left = list_skills(many)
    assert section == list_skills(dict(reversed(many.items())))[0]
    assert len(section.encode()) <= MAX_LISTED_BYTES < len(section.encode()) + 250
    assert section.endswith(f"{len(left)} more skills are not listed: `tool_search` finds them.")
    assert section.count("\n- ") + len(left) == 300


async def test_doctor_says_what_waits_and_what_was_changed_by_hand(
    tmp_path: Path, library: SkillLibrary
) -> None:
    assert await findings(tmp_path) == []
    add_skill(tmp_path)
    assert [each.text for each in await findings(tmp_path)] == ["1 skill in use."]
    make_skill(library.root, "fresh")
    make_skill(library.root, "greet", "Different.")
    copied = library.copy_of("greet") / "SKILL.md"
    copied.chmod(0o644)
    copied.write_text("other")
    texts = [each.text for each in await findings(tmp_path)]
    assert texts[:3] == [
        "The skill fresh is new and does not count yet.",
        "The skill greet has changed. It counts as it was accepted.",
        "The accepted copy of the skill greet was changed by hand, so it is not shown to agents.",
    ]


def test_hidden_characters_are_counted_but_emoji_are_not() -> None:
    assert count_hidden("\ufeffPlain 👩\u200d💻\r\n".encode()) == 0
    assert count_hidden("a\u202eb\u200bc\U000e0041".encode()) == 3
    assert count_hidden(b"\0\x1b\x1b") == 0
