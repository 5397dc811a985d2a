"""The tool `skill`: it reads what was accepted, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skills.skill_makers import add_skill, make_skill
from talaria.core.messages import ToolCall, ToolOutcome
from talaria.skills.library import SkillLibrary
from talaria.skills.pins import SkillsInUse
from talaria.skills.tool import SkillSource
from talaria.tools.toolset import ToolSet
from tools.conftest import bound
from workspace.test_confinement import swapping


async def read(home: Path, **arguments: str) -> tuple[ToolOutcome, str]:
    source = SkillSource(SkillsInUse(home / "skills"))
    call = ToolCall("call_1", "skill", json.dumps(arguments))
    result = await bound(ToolSet(source.tools()), home / "chat").run(call)
    return result.outcome, result.text


async def test_the_instructions_come_with_the_folder_and_its_files(tmp_path: Path) -> None:
    folder = make_skill(tmp_path / "skills", body="Run {baseDir}/scripts/hello.sh or ${CLAUDE_SKILL_DIR}/x.")
    library = SkillLibrary(tmp_path / "skills")
    library.accept(library.find("greet"))
    copy = tmp_path / "skills/.accepted/greet"
    outcome, text = await read(tmp_path, name="greet")
    assert outcome is ToolOutcome.OK
    assert f"Its files are in {copy}," in text
    assert f"Run {copy}/scripts/hello.sh or {copy}/x." in text
    assert text.endswith("- SKILL.md (106 B)\n- scripts/hello.sh (38 B)")
    (folder / "SKILL.md").write_text("Changed.")
    assert await read(tmp_path, name="greet") == (outcome, text)


async def test_files_and_folders_of_a_skill_are_read(tmp_path: Path) -> None:
    add_skill(tmp_path)
    assert "echo" in (await read(tmp_path, name="greet", file="scripts/hello.sh"))[1]
    assert (await read(tmp_path, name="greet", file="scripts"))[1].endswith("- scripts/hello.sh")
    assert "- SKILL.md\n" in (await read(tmp_path, name="greet", file="."))[1]


@pytest.mark.parametrize(
    "file", ["../pins.json", "../../config.toml", "/etc/passwd", "scripts/../../pins.json", "~/x", "nope"]
)
async def test_no_path_leads_out_of_the_skill(tmp_path: Path, file: str) -> None:
    add_skill(tmp_path)
    outcome, text = await read(tmp_path, name="greet", file=file)
    assert outcome is ToolOutcome.ERROR
    assert "digest" not in text and "root:" not in text


@pytest.mark.parametrize("name", ["nope", "../greet", ".", "", "greet/scripts"])
async def test_only_names_of_skills_that_count_are_known(tmp_path: Path, name: str) -> None:
    add_skill(tmp_path)
    make_skill(tmp_path / "skills", "nope")
    outcome, text = await read(tmp_path, name=name)
    assert outcome is ToolOutcome.ERROR
    assert text.startswith(f"Error: There is no skill {name!r}.")


async def test_a_copy_that_is_not_what_was_accepted_is_not_shown(tmp_path: Path) -> None:
    add_skill(tmp_path)
    script = tmp_path / "skills/.accepted/greet/scripts/hello.sh"
    script.chmod(0o755)
    script.write_text("other")
    for file in ("", "SKILL.md", "scripts/hello.sh"):
        outcome, text = await read(tmp_path, name="greet", file=file)
        assert outcome is ToolOutcome.ERROR
        assert "not what the operator accepted" in text and "other" not in text


def test_the_tool_is_offered_only_while_a_skill_counts(tmp_path: Path) -> None:
    source = SkillSource(SkillsInUse(tmp_path / "skills"))
    told: list[str] = []
    source.subscribe(lambda: told.append("changed"))
    assert (source.tools(), source.section(), source.findables(), [*source.commands()]) == ((), "", (), [])
    add_skill(tmp_path)
    assert source.section().endswith("\n- greet: Greets people.")
    assert [tool.spec.name for tool in source.tools()] == ["skill"]
    assert told == ["changed"]
    for number in range(30):
        add_skill(tmp_path, f"skill{number:03}", "words " * 60)
    assert len(source.section().encode()) <= 4096
    assert source.findables()[-1].name == "skill029"
    assert f"{len(source.findables())} more skills" in source.section()


async def test_the_bytes_that_were_compared_are_shown_whatever_happens_to_the_file(tmp_path: Path) -> None:
    folder = make_skill(tmp_path / "skills")
    for number in range(100):  # they are read after SKILL.md
        (folder / f"page{number}").write_text("A page.")
    library = SkillLibrary(tmp_path / "skills")
    library.accept(library.find("greet"))
    copy = tmp_path / "skills/.accepted/greet"
    forged = tmp_path / "forged.md"
    forged.write_text((copy / "SKILL.md").read_text().replace("hello", "FORGED"))
    outcomes = set()
    with swapping(copy / "SKILL.md", forged):
        for _ in range(25):
            outcome, text = await read(tmp_path, name="greet")
            outcomes.add(outcome)
            assert outcome is ToolOutcome.ERROR or "FORGED" not in text
    assert ToolOutcome.OK in outcomes
