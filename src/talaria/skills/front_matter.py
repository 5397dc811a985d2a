"""The front matter of a SKILL.md: the small part of YAML that skills are written in.

Keys stand at the beginning of a line. A value is a plain text, a quoted one, a block (`|` or `>`), or a list.
Anything deeper, such as the `metadata` of other programs, is kept as the text that it is. Nothing is
evaluated: there are no anchors, tags or types. Reading takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from talaria.core.errors import BadRequest

Value: TypeAlias = str | tuple[str, ...]

_KEY: Final = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([A-Za-z_][\w.\- ]*+))[ \t]*+:(?:[ \t]+(.*)|)\Z""")
_BLOCK: Final = re.compile(r"([|>])(?:([+-])?([1-9])?|([1-9])([+-]))[ \t]*(?:#.*)?\Z")
_ITEM: Final = re.compile(r"-(?:[ \t]+(.*)|)\Z")
_COMMENT: Final = re.compile(r"(?:\A|(?<=[ \t]))#.*\Z")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "", "a": "", "b": "", "e": "", "f": "", "v": ""}
_FENCES: Final = ("---", "...")
_DEEPEST: Final = 8  # lists in lists; each level reads the lines below it again
_LAST_CODE_POINT: Final = 0x10FFFF


class SkillError(BadRequest):
    """A folder that is no skill, or one that cannot be used as it is."""


def read_front_matter(text: str) -> tuple[dict[str, Value], str]:
    """Return the fields of the front matter and the text behind it. A text without front matter has no
    fields. Raises `SkillError` that names the line."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return {}, "\n".join(lines)
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in _FENCES), None)
    if end is None:
        raise SkillError("The front matter of SKILL.md has no end.", "Put a line with --- behind it.")
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
        first = at
        while at < len(lines) and _is_inside(lines[at]):
            at += 1
        key = found[1] or found[2] or found[3] or ""
        fields[key.strip()] = _read_value((found[4] or "").strip(), lines[first:at])
    return fields


def _is_inside(line: str) -> bool:
    """Return whether a line belongs to the field above it."""
    return not line.strip() or line[0] in " \t#]}" or _ITEM.match(line) is not None


def _read_value(value: str, below: Sequence[str], depth: int = 0) -> Value:
    """Read the value of a field, which stands in so many lists. Raises `SkillError` for too many."""
    if block := _BLOCK.fullmatch(value):
        style, keeps = block[1], block[2] or block[5] or ""
        return _read_block(below, style, keeps, int(block[3] or block[4] or 0))
    if value.startswith(("'", '"')):
        return _unquote(_folded([value[1:], *below]), value[0])
    if value.startswith(("[", "{")):
        whole = "\n".join([value, *below])
        return _read_flow_list(whole) if value[0] == "[" else whole.strip()
    plain = [_COMMENT.sub("", line) for line in (value, *below)]
    if plain[0]:
        return _folded(plain)
    return _read_nested([line for line in below if _COMMENT.sub("", line).strip()], depth)


def _read_nested(lines: Sequence[str], depth: int) -> Value:
    """Read a list, or a text that begins in the line below its key. A mapping stays a text."""
    if depth > _DEEPEST:
        text = f"The front matter of SKILL.md has lists in lists, more than {_DEEPEST} deep."
        raise SkillError(text, "Write each field as a text.")
    if not lines or not _ITEM.match(lines[0].strip()):
        if lines and lines[0].strip()[0] in "\"'[":
            return _read_value(lines[0].strip(), lines[1:], depth + 1)
        return "\n".join(lines).strip()
    indent = _indent_of(lines[0])
    items: list[list[str]] = []
    for line in lines:
        if _indent_of(line) <= indent and (item := _ITEM.match(line.strip())):
            items.append([item[1] or ""])
        elif items:
            items[-1].append(line)
    values = (_read_value(item[0].strip(), item[1:], depth + 1) for item in items)
    return tuple(value if isinstance(value, str) else ", ".join(value) for value in values)


def _read_block(lines: Sequence[str], style: str, keeps: str, indent: int) -> str:
    """Read a literal (`|`) or folded (`>`) text. `keeps` is the mark for its last line breaks."""
    first = next((line for line in lines if line.strip()), "")
    indent = indent or _indent_of(first)
    rows = [line[indent:].rstrip("\r") if line.strip() else "" for line in lines]
    while rows and not rows[-1]:
        rows.pop()
    text = "\n".join(rows) if style == "|" else _fold_rows(rows)
    return text if keeps == "-" or not text else f"{text}\n"


def _fold_rows(rows: Sequence[str]) -> str:
    """Join lines by spaces. Empty lines and indented ones keep their line breaks."""
    text, before = "", ""
    for at, row in enumerate(rows):
        if at == 0:
            text = row
        elif not row:
            text += "\n"
        elif row[0] in " \t" or before[:1] in (" ", "\t"):
            text += f"\n{row}"
        else:
            text += row if text.endswith("\n") else f" {row}"
        before = row
    return text


def _folded(lines: Sequence[str]) -> str:
    """Join the lines of a plain or quoted text by spaces; an empty line is a line break."""
    parts: list[str] = [lines[0].rstrip() if len(lines) > 1 else lines[0]]
    for line in lines[1:]:
        stripped = line.strip()
        if not stripped:
            parts.append("\n")
        elif parts[-1].endswith("\\") and not parts[-1].endswith("\\\\"):
            parts[-1] = parts[-1][:-1] + stripped
        else:
            parts.append(stripped if parts[-1] == "\n" else f" {stripped}")
    return "".join(parts).strip()


def _unquote(text: str, quote: str) -> str:
    """Return the text up to its closing quote. `text` begins behind the opening one."""
    if quote == "'":
        end = re.match(r"(?:[^']|'')*+", text)
        inner = text if end is None else text[: end.end()]
        return inner.replace("''", "'")
    end = re.match(r'(?:[^"\\]|\\.)*+', text, re.DOTALL)
    return _ESCAPE.sub(_unescape, text if end is None else text[: end.end()])


def _unescape(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return _ESCAPED.get(found[4], found[4])
    code = int(digits, 16)
    return chr(code) if code <= _LAST_CODE_POINT and not 0xD800 <= code <= 0xDFFF else "\ufffd"


def _read_flow_list(text: str) -> Value:
    """Read `[a, "b", c]`. A list with lists or mappings in it stays a text."""
    inner, closed, rest = text[1:].partition("]")
    if not closed or any(mark in inner for mark in "[{") or _COMMENT.sub("", rest).strip():
        return text.strip()
    items: list[str] = []
    for found in re.finditer(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|([^,]*))\s*(?:,|\Z)""", inner):
        double, single, plain = found.groups()
        if double is not None:
            items.append(_unquote(double, '"'))
        elif single is not None:
            items.append(single.replace("''", "'"))
        elif plain and plain.strip():
            items.append(plain.strip())
    return tuple(items)


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
