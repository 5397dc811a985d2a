"""The changes between two versions of a skill, as text for a person. Control characters are shown as escapes,
so that a text cannot hide a part of itself. Blocks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from talaria.core.text import CONTROLS, CONTROLS_8_BIT, DIRECTION_MARKS, LINE_SEPARATORS, MISLEADING, cut
from talaria.core.units import format_size
from talaria.skills.skill_folder import SkillContent, SkillFile

MAX_LINES: Final = 400
_MAX_COMPARED: Final = 256 << 10  # bytes of a file; a larger one is only named
_MAX_WIDTH: Final = 400
# The joiner U+200D is not among them: emoji are made with it.
_HIDDEN: Final = re.compile(
    f"[{CONTROLS}{CONTROLS_8_BIT}{LINE_SEPARATORS}{MISLEADING}{DIRECTION_MARKS}"
    "\u200b\u200c\u2060-\u2065\U000e0000-\U000e007f]"
)


def show_changes(
    before: SkillContent, old_folder: Path, after: SkillContent, new_folder: Path
) -> Iterator[str]:
    """Yield the lines of a unified diff over all files, at most `MAX_LINES`."""
    for count, line in enumerate(_changes(before, old_folder, after, new_folder)):
        if count == MAX_LINES:
            yield f"… and more: compare {old_folder} with {new_folder}."
            return
        yield reveal(line)


def reveal(text: str) -> str:
    """Return a line in which characters that nobody would see are written as escapes."""
    return _HIDDEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", cut(text, _MAX_WIDTH))


def count_hidden(data: bytes) -> int:
    """Return how many characters of a text nobody would see. A file that is no text has none."""
    if b"\0" in data:
        return 0
    text = data.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n")
    return len(_HIDDEN.findall(text))


def _changes(before: SkillContent, old_folder: Path, after: SkillContent, new_folder: Path) -> Iterator[str]:
    old = {file.path: file for file in before.files}
    new = {file.path: file for file in after.files}
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was == now:
            continue
        if was is not None and now is not None and was.digest == now.digest:
            yield f"{path}: {'may be run now' if now.is_program else 'is no program any more'}"
            continue
        texts = _text(old_folder, was), _text(new_folder, now)
        if texts[0] is None or texts[1] is None:
            yield f"{path}: {_describe(was)} → {_describe(now)}"
            continue
        yield from difflib.unified_diff(
            texts[0],
            texts[1],
            f"accepted/{path}" if was else "/dev/null",
            f"now/{path}" if now else "/dev/null",
            lineterm="",
        )


def _describe(file: SkillFile | None) -> str:
    return "nothing" if file is None else f"{format_size(file.size)} ({file.digest[:12]})"


def _text(folder: Path, file: SkillFile | None) -> list[str] | None:
    """Return the lines of a file; None for one that is large or no text."""
    if file is None:
        return []
    if file.size > _MAX_COMPARED:
        return None
    data = (folder / file.path).read_bytes()
    return None if b"\0" in data else data.decode(errors="replace").split("\n")
