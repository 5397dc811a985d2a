"""Skills as a part of the gateway: the tool `skill`, and the checks of `talaria doctor`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from talaria.core.errors import TalariaError
from talaria.core.problems import Problem, ok, warn
from talaria.core.settings import Examination
from talaria.tools.part import ToolScope, family
from talaria.tools.settings import ToolSettings

if TYPE_CHECKING:
    from talaria.tools.tool import BuiltinSource


def _make(scope: ToolScope, settings: ToolSettings) -> BuiltinSource:
    from talaria.skills.pins import FOLDER, SkillsInUse  # noqa: PLC0415
    from talaria.skills.tool import SkillSource  # noqa: PLC0415

    return SkillSource(SkillsInUse(scope.home / FOLDER))


async def _examine(examination: Examination[ToolSettings]) -> AsyncIterator[Problem]:
    """Yield what is to be said about the skills of a home. Reads every file. Nothing without skills."""
    from talaria.skills.library import SkillLibrary, SkillState  # noqa: PLC0415
    from talaria.skills.pins import FOLDER, SkillsInUse  # noqa: PLC0415
    from talaria.skills.tool import list_skills  # noqa: PLC0415

    root = examination.home / FOLDER
    library, in_use = SkillLibrary(root), SkillsInUse(root)
    standings = library.survey()
    if standings and "skills" not in examination.settings.enabled:
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
    from talaria.skills.skill_folder import read_skill  # noqa: PLC0415

    try:
        return read_skill(folder).digest
    except (TalariaError, OSError):
        return ""


SKILLS: Final = family("skills", "tools", ToolSettings, _make, _examine)
