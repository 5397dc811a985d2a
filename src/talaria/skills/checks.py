"""The checks of `talaria doctor` for skills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from talaria.core.errors import TalariaError
from talaria.core.problems import Problem, ok, warn
from talaria.skills.library import SkillLibrary, SkillState
from talaria.skills.listing import list_skills
from talaria.skills.pins import FOLDER, SkillsInUse
from talaria.skills.skill_folder import read_skill


def examine_skills(home: Path, *, is_enabled: bool = True) -> Iterator[Problem]:
    """Yield what is to be said about the skills of a home. Reads every file. Nothing without skills."""
    library, in_use = SkillLibrary(home / FOLDER), SkillsInUse(home / FOLDER)
    standings = library.survey()
    if standings and not is_enabled:
        text = "There are skills, but tools.enabled does not name `skills`: agents are not told of them."
        yield warn("skills", text, "Add it to the list in config.toml.")
    for each in standings:
        match each.state:
            case SkillState.BROKEN:
                yield warn("skills", f"{each.folder.name}: {each.problem.text}", each.problem.hint)
            case SkillState.NEW:
                yield warn(
                    "skills",
                    f"The skill {each.name} is new and does not count yet.",
                    "Look at it and accept it.",
                    f"talaria skills accept {each.name}",
                )
            case SkillState.CHANGED:
                yield warn(
                    "skills",
                    f"The skill {each.name} has changed. It counts as it was accepted.",
                    "See what has changed, and accept it.",
                    f"talaria skills accept {each.name}",
                )
            case SkillState.IN_USE:
                pass
    skills = in_use.get()
    for name, pin in skills.items():
        if _digest(in_use.copy_of(name)) != pin.digest:
            yield warn(
                "skills",
                f"The accepted copy of the skill {name} was changed by hand, so it is not shown to agents.",
                "Accept the skill again.",
                f"talaria skills accept {name}",
            )
    if skills:
        left = list_skills(skills)[1]
        more = f" {len(left)} of them are found by tool_search only." if left else ""
        yield ok("skills", f"{len(skills)} skill{'s' if len(skills) > 1 else ''} in use.{more}")


def _digest(folder: Path) -> str:
    try:
        return read_skill(folder).digest
    except (TalariaError, OSError):
        return ""
