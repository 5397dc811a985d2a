"""The front matter of a SKILL.md: a line `key: value` for each field, whose value is read as YAML.

Each field is read by itself, so one that breaks the rules of YAML does not cost the others. Such a value is
kept as the text that it is, and so are mappings and values with a tag. Only the events of the YAML parser
are used: nothing is constructed, expanded or evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from talaria.core.errors import BadRequest
from talaria.core.units import format_size

Value: TypeAlias = str | tuple[str, ...]

MAX_FRONT_MATTER: Final = 64 << 10  # characters
_KEY: Final = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([A-Za-z_][\w.\- ]*+))[ \t]*+:(?:[ \t]+(.*)|)\Z""")
_FENCES: Final = ("---", "...")
_MOST_FIELDS: Final = 200
_MOST_BRACKETS: Final = 100  # in one value; the parser's time grows with the square of their depth


class SkillError(BadRequest):
    """A folder that is no skill, or one that cannot be used as it is."""


def read_front_matter(text: str) -> tuple[dict[str, Value], str]:
    """Return the fields of the front matter and the text after it. A text without front matter has no
    fields. Raises `SkillError` that names the line."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return {}, "\n".join(lines)
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in _FENCES), None)
    if end is None:
        raise SkillError("The front matter of SKILL.md has no end.", "Put a line with --- behind it.")
    if sum(map(len, lines[:end])) > MAX_FRONT_MATTER:
        text = f"The front matter of SKILL.md has more than {format_size(MAX_FRONT_MATTER)}."
        raise SkillError(text, "Move text below its second ---.")
    fields = _read_fields(lines[1:end])
    return fields, "\n".join(lines[end + 1 :]).strip("\n")


def _read_fields(lines: Sequence[str]) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    at = 0
    while at < len(lines):
        line = lines[at].rstrip()
        at += 1
        if not line or line.lstrip().startswith("#"):
            continue
        found = _KEY.fullmatch(line)
        if found is None:
            raise SkillError(
                f"Line {at + 1} of SKILL.md is not understood: {line[:80]!r}.",
                "The front matter has a line `key: value` for each field.",
            )
        if len(fields) == _MOST_FIELDS:
            text = f"The front matter of SKILL.md has more than {_MOST_FIELDS} fields."
            raise SkillError(text, "Remove some of them.")
        first = at
        while at < len(lines) and _is_inside(lines[at]):
            at += 1
        key = found[1] or found[2] or found[3] or ""
        fields[key.strip()] = _read_value("\n".join((found[4] or "", *lines[first:at])), first + 1)
    return fields


def _is_inside(line: str) -> bool:
    """Return whether a line belongs to the field above it."""
    return not line.strip() or line[0] in " \t#]}" or re.match(r"-(?:[ \t]|\Z)", line) is not None


def _read_value(text: str, line: int) -> Value:
    """Return a text or a list of texts. Raises `SkillError` for an alias, which repeats another value."""
    import yaml  # noqa: PLC0415 - 20 ms and 3 MB, for homes with skills only

    plain = text.strip()
    if text.count("[") + text.count("{") > _MOST_BRACKETS:
        return plain
    try:
        parsed = yaml.parse(f"x: {text}", Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        # The events of the value stand between those of the mapping and its key, and three ends.
        value, *inner = list(parsed)[4:-3]
    except yaml.YAMLError:
        return plain
    events = (value, *inner)
    if any(getattr(event, "anchor", None) for event in events):
        raise SkillError(
            f"Line {line} of SKILL.md has a YAML anchor or alias (& or *).",
            "Write the value itself. Put a text that begins with & or * in quotes.",
        )
    if any(getattr(event, "tag", None) for event in events):
        return plain
    if isinstance(value, yaml.ScalarEvent):
        return str(value.value)
    items = inner[:-1]
    if isinstance(value, yaml.SequenceStartEvent) and all(isinstance(i, yaml.ScalarEvent) for i in items):
        return tuple(str(item.value) for item in items)
    return plain
