"""The section of the prompt that names the skills. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from talaria.skills.pins import SkillPin

MAX_LISTED_BYTES: Final = 4 << 10
_HEAD: Final = """\
# Skills

Instructions for special tasks. When a task fits one of them, read it with the tool `skill` before you \
begin. A skill permits nothing that you may not do already."""
_MORE: Final = "{count} more skills are not listed: `tool_search` finds them."
_LENGTHS: Final = (1024, 400, 250, 160)  # characters of a description, longest first
_ROOM_FOR_MORE: Final = len(_MORE.encode()) + 8


def list_skills(skills: Mapping[str, SkillPin]) -> tuple[str, tuple[str, ...]]:
    """Return the section of the prompt, which has at most `MAX_LISTED_BYTES`, and the names of skills that
    had no room in it. Descriptions are shortened before a skill is left out."""
    offered = {name: pin.description for name, pin in sorted(skills.items()) if pin.is_offered}
    if not offered:
        return "", ()
    for length in _LENGTHS:
        lines = [_line(name, description, length) for name, description in offered.items()]
        text = "\n".join((_HEAD, "", *lines))
        if len(text.encode()) <= MAX_LISTED_BYTES:
            return text, ()
    kept, left = [_HEAD, ""], list(offered)
    room = MAX_LISTED_BYTES - len(_HEAD.encode()) - 1 - _ROOM_FOR_MORE
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
        left.pop(0)
    return "\n".join((*kept, _MORE.format(count=len(left)))), tuple(left)


def _line(name: str, description: str, length: int) -> str:
    shown = description if len(description) <= length else description[: length - 1].rstrip() + "…"
    return f"- {name}: {shown}"
