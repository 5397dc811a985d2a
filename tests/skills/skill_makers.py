"""Small skills for tests."""

from __future__ import annotations

from pathlib import Path

from talaria.skills.library import SkillLibrary
from talaria.skills.skill_folder import read_skill


def make_skill(
    parent: Path, name: str = "greet", description: str = "Greets people.", body: str = "Say hello."
) -> Path:
    """Make a skill's folder with a script in it."""
    folder = parent / name
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n")
    script = folder / "scripts" / "hello.sh"
    script.write_text('#!/bin/sh\necho "hello $1 from $(pwd)"\n')
    script.chmod(0o755)
    return folder


def add_skill(home: Path, name: str = "greet", description: str = "Greets people.") -> None:
    """Add a skill to a home as the operator does."""
    folder = make_skill(home / "made", name, description)
    SkillLibrary(home / "skills").add(folder, read_skill(folder), "a test")
