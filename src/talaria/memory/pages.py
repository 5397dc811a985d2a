"""The text of a memory page, and its edits. Pure.

A page is Markdown that people may edit by hand. A fact that an agent wrote is a line of a list, with its
origin in a comment; the last line of a page names the latest edits, so that none is carried out twice:

    - Anna likes green tea. <!-- 2026-11-17 ses_01k… -->
    <!-- edits: 3f9a1c2e 77aa10bd -->
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, assert_never

import msgspec

from talaria.core.errors import ToolError
from talaria.core.memory import (
    AddFact,
    EditOrigin,
    ForgetFact,
    MemoryEdit,
    MemoryPage,
    ReplaceFact,
    WritePage,
)

MAX_FACT_CHARS: Final = 1000
_EDITS_KEPT: Final = 16
_SHOWN: Final = 3
_ORIGIN = re.compile(r"[ \t]*<!-- (\d{4}-\d\d-\d\d)(?: [^\s<>]{1,100})? -->[ \t]*$")
_EDITS = re.compile(r"<!-- edits:((?: [0-9a-f]{8})*) -->")
_BULLET = re.compile(r"\A[-*+] +")


class PageFull(ToolError):
    """The page has no room for the edit. `wanted` is its text with the edit, which is longer than allowed;
    `digest` is that of its text without."""

    def __init__(self, page: MemoryPage, text: str, wanted: str) -> None:
        super().__init__(
            f"{page} is full: it would have {len(wanted.encode())} bytes of {page.max_bytes}.",
            "Forget or shorten facts that are no longer needed, then try again.",
        )
        self.wanted = wanted
        self.digest = page_digest(text)


class Edited(msgspec.Struct, frozen=True):
    """The text of a page after an edit, and the lines that it added and removed, as readers see them."""

    text: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    is_repeated: bool = False


def page_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def edit_mark(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:8]


# -- reading ----------------------------------------------------------------------------------------------


def split(text: str) -> tuple[list[str], list[str]]:
    """Return the lines of a page without its last line, and the marks of the latest edits."""
    lines = text.splitlines()
    marks = [match[1].split() for line in lines if (match := _EDITS.fullmatch(line.strip()))]
    return [line for line in lines if not _EDITS.fullmatch(line.strip())], [
        mark for each in marks for mark in each
    ]


def body(text: str) -> str:
    """Return the page as people edit it: with the origins of facts, without the marks of edits."""
    return "\n".join(split(text)[0]).strip()


def shown(text: str) -> str:
    """Return the page as models read it: with the dates of facts, without sessions and marks."""
    return "\n".join(map(_dated, split(text)[0])).strip()


def facts(text: str) -> list[str]:
    """Return the lines of a text that say something, without headings and the signs of a list."""
    lines = (_BULLET.sub("", line.strip(), count=1) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _dated(line: str) -> str:
    return _ORIGIN.sub(lambda match: f" ({match[1]})", line.rstrip())


def words_of(line: str) -> str:
    """Return a line without its origin and its sign, for comparing."""
    return _BULLET.sub("", _ORIGIN.sub("", line).strip(), count=1)


# -- editing ----------------------------------------------------------------------------------------------


def apply_edit(text: str, edit: MemoryEdit, origin: EditOrigin) -> Edited:
    """Return the page after the edit; the same text if the edit was carried out before, or changes nothing.

    Raises `PageFull`, and `ToolError` if the edit fits no fact, or several.
    """
    lines, marks = split(text)
    mark = edit_mark(origin.key)
    if mark in marks:
        return Edited(text, is_repeated=True)
    removed: list[str] = []
    added: list[str] = []
    match edit:
        case AddFact(text=fact):
            fact = _clean(fact)
            if any(words_of(line).casefold() == fact.casefold() for line in lines):
                return Edited(text)
            while lines and not lines[-1].strip():
                lines.pop()
            added = [fact_line(fact, origin)]
            lines += added
        case ReplaceFact(old=old, text=fact):
            at = _find(lines, old, edit.page)
            removed, added = [lines[at]], [fact_line(fact, origin)]
            lines[at : at + 1] = added
        case ForgetFact(old=old):
            at = _find(lines, old, edit.page)
            removed = [lines.pop(at)]
        case WritePage():
            return _written(text, edit, [*marks, mark])
        case _:
            assert_never(edit)
    changed = _join(lines, [*marks, mark])
    # A page that a hand has made too long may always become shorter.
    if len(changed.encode()) > max(edit.page.max_bytes, len(text.encode()) if removed else 0):
        raise PageFull(edit.page, text, changed)
    return Edited(changed, tuple(map(_fact, added)), tuple(map(_fact, removed)))


def _written(text: str, edit: WritePage, marks: list[str]) -> Edited:
    if edit.digest and edit.digest != page_digest(text):
        raise ToolError(f"{edit.page} was changed meanwhile.", "Read it again, and make your change there.")
    lines = split(edit.text)[0]
    changed = _join(lines, marks)
    if len(changed.encode()) > edit.page.max_bytes:
        raise PageFull(edit.page, text, changed)
    before, after = Counter(facts(shown(text))), Counter(facts(shown(changed)))
    return Edited(changed, tuple((after - before).elements()), tuple((before - after).elements()))


def _join(lines: list[str], marks: list[str]) -> str:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    footer = [f"<!-- edits: {' '.join(marks[-_EDITS_KEPT:])} -->"] if marks else []
    return "".join(f"{line.rstrip()}\n" for line in [*lines, *footer])


def _fact(line: str) -> str:
    return _BULLET.sub("", _dated(line).strip(), count=1)


def fact_line(fact: str, origin: EditOrigin, day: str = "") -> str:
    """Return the line of a fact; without a day, it is that of its origin."""
    day = day or datetime.fromtimestamp(origin.at, UTC).strftime("%Y-%m-%d")
    return f"- {_clean(fact)} <!-- {day} {origin.by} -->"


def _clean(fact: str) -> str:
    """Return a fact as one line that cannot be taken for an origin or for marks."""
    fact = " ".join(fact.replace("<!--", "<!-").replace("-->", "->").split())
    fact = _BULLET.sub("", fact, count=1)
    if not fact:
        raise ToolError("There is nothing to remember: the text is empty.")
    if len(fact) > MAX_FACT_CHARS:
        raise ToolError(
            f"A fact has at most {MAX_FACT_CHARS} characters, and this one has {len(fact)}.",
            "Write one fact at a time. Keep long texts in a file and remember where it is.",
        )
    return fact


def _find(lines: list[str], old: str, page: MemoryPage) -> int:
    """Return the index of the one line that is `old`, or has it in its words."""
    # Models repeat what they read, which ends with the date of the fact.
    wanted = re.sub(r" \(\d{4}-\d\d-\d\d\)$", "", words_of(" ".join(old.split()))).casefold()
    if not wanted:
        raise ToolError("Say which fact: its words, or a part that no other fact has.")
    words = [words_of(line).casefold() for line in lines]
    same = [at for at, each in enumerate(words) if each == wanted]
    found = same or [at for at, each in enumerate(words) if wanted in each]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ToolError(f"{page} has no such fact.", "Read the memory to see what is there.")
    listed = "; ".join(words_of(lines[at])[:100] for at in found[:_SHOWN])
    raise ToolError(f"{len(found)} facts of {page} fit: {listed}.", "Use more of the words of one.")


# -- changes ----------------------------------------------------------------------------------------------


class FactChanges(msgspec.Struct, frozen=True):
    """Facts that came and facts that went, in the form in which a model reads them."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def describe(self) -> str:
        return "\n".join([*(f"+ {fact}" for fact in self.added), *(f"- {fact}" for fact in self.removed)])

    @staticmethod
    def read(text: str) -> FactChanges:
        """Return the changes that `describe` wrote into a text. Other lines do not count."""
        lines = text.splitlines()
        return FactChanges(
            tuple(line[2:] for line in lines if line.startswith("+ ")),
            tuple(line[2:] for line in lines if line.startswith("- ")),
        )


def compare(known: Counter[str], current: Iterable[str]) -> FactChanges:
    """Return how the current facts differ from those that a session knows."""
    now = Counter(current)
    return FactChanges(tuple((now - known).elements()), tuple((known - now).elements()))
