"""What was found wrong in the settings, each line with the place where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from talaria.config.positions import KeyPath, key_lines
from talaria.core.errors import ConfigError
from talaria.observe.lines import escape

if TYPE_CHECKING:
    from talaria.config.settings import Settings

_LONGEST_SHOWN = 60
_MOST_SHOWN = 8
_NEVER_SHOWN = frozenset(
    {"api_key", "api_key_env", "token", "token_env"}
)  # people paste keys into any of them
_PASSWORD = re.compile(r"//[^/@]*@")
_MEANT = re.compile(r"\(did you mean (\S+)\?\)")


class Override(msgspec.Struct, frozen=True):
    """A value that a variable of the environment puts in the place of the file's."""

    variable: str
    text: str


class Fault(StrEnum):
    """What kind of thing is wrong, for whoever knows a way out of it."""

    WRONG = "wrong"  # what stands there may not, or has no effect
    UNKNOWN = "unknown"  # nothing reads this key
    MISSING = "missing"  # a key of this table is needed
    EMPTY_VARIABLE = "empty variable"  # the variable that is named has no value
    NO_PRICE = "no price"  # `instead` names the model whose price is needed
    OPEN = "open"  # others can read the file


class Remark(msgspec.Struct, frozen=True):
    """One thing that was found. `text` begins with its place; `variable` is set when it came from the
    environment; `instead` is a value, or for an unknown key another key, that was probably meant."""

    line: int
    text: str
    path: KeyPath
    variable: str = ""
    instead: str = ""
    fault: Fault = Fault.WRONG


class BadConfig(ConfigError):
    """Settings that nothing can start with. `remarks` are the problems one by one; `settings` have the
    defaults in their places, for whoever is about to correct them."""

    def __init__(self, remarks: tuple[Remark, ...], hint: str, settings: Settings | None) -> None:
        super().__init__("\n".join(remark.text for remark in remarks), hint)
        self.remarks = remarks
        self.settings = settings


class Report:
    """Collects problems (nothing starts with one) and warnings, and knows every key's place."""

    def __init__(self, file: Path, text: str, overrides: Mapping[KeyPath, Override]) -> None:
        self._file = file
        self._text = text
        self._overrides = overrides
        self._problems: list[Remark] = []
        self._warnings: list[Remark] = []

    def wrong(self, path: KeyPath, raw: object, expected: str) -> None:
        """The value found at `path` is not what may stand there."""
        meant = _MEANT.search(expected)
        self.problem(
            path, f"{dotted(path)} {_found(path, raw)}: expected {expected}.", meant[1] if meant else ""
        )

    def problem(self, path: KeyPath, text: str, instead: str = "", fault: Fault = Fault.WRONG) -> None:
        self._problems.append(self._placed(path, text, instead, fault))

    def missing(self, table: KeyPath, key: str, expected: str, instead: str = "") -> None:
        """The key is needed and not set; not told of one whose value was refused."""
        if any(remark.path == (*table, key) for remark in self._problems):
            return
        text = f"{dotted((*table, key))} is missing: expected {expected}."
        self.problem(table, text, instead, Fault.MISSING)

    def empty(self, path: KeyPath, variable: str) -> None:
        """The variable that is named at `path` has no value."""
        text = f"{dotted(path)} names {variable}, which is not set."
        self.warn(path, text, variable, Fault.EMPTY_VARIABLE)

    def warn(self, path: KeyPath, text: str, instead: str = "", fault: Fault = Fault.WRONG) -> None:
        self._warnings.append(self._placed(path, text, instead, fault))

    def unknown(self, path: KeyPath, known: Iterable[str], elsewhere: Iterable[KeyPath] = ()) -> None:
        """Nothing reads the key at `path`; `known` are its siblings, `elsewhere` keys of other tables."""
        text = f"{dotted(path)} is not a known key and has no effect."
        moved = next((dotted(other) for other in elsewhere if other[-1] == path[-1]), None)
        sibling = None if moved else nearest(path[-1], known)
        if near := moved or sibling:
            text += f" Did you mean {near}?"
        key = moved or (dotted((*path[:-1], sibling)) if sibling else "")
        self.warn(path, text, key, Fault.UNKNOWN)

    @property
    def warnings(self) -> tuple[Remark, ...]:
        return tuple(sorted(self._warnings, key=_by_place))

    def raise_problems(self, settings: Settings | None = None) -> None:
        """One error for all of them."""
        if not self._problems:
            return
        in_file = any(remark.line for remark in self._problems)
        in_environment = not all(remark.line for remark in self._problems)
        where = [str(self._file)] * in_file + ["the environment"] * in_environment
        this = "this" if len(self._problems) == 1 else "these"
        remarks = tuple(sorted(self._problems, key=_by_place))
        raise BadConfig(remarks, f"Correct {this} in {' and '.join(where)}.", settings)

    def _placed(self, path: KeyPath, text: str, instead: str, fault: Fault) -> Remark:
        variable = self._variable(path)
        if variable is not None:
            return Remark(0, f"{variable}: {text}", path, variable, instead, fault)
        line = self._line(path)
        return Remark(line, f"{self._file.name} line {line}: {text}", path, "", instead, fault)

    def _variable(self, path: KeyPath) -> str | None:
        """The variable that set `path`, or that made the table `path` which the file does not have."""
        if path in self._overrides:
            return self._overrides[path].variable
        if path in self._lines:
            return None
        inside = [other for other in self._overrides if other[: len(path)] == path]
        return self._overrides[inside[0]].variable if inside else None

    @cached_property
    def _lines(self) -> dict[KeyPath, int]:
        """Read only when there is something to report."""
        return key_lines(self._text)

    def _line(self, path: KeyPath) -> int:
        """The key's line, or that of the nearest table around it."""
        return next(
            (self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines), 1
        )


def dotted(path: KeyPath) -> str:
    """A path as it is written in TOML, safe to print."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part, re.ASCII) else quoted(part) for part in path)


def quoted(text: str) -> str:
    shown = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    return escape(json.dumps(shown, ensure_ascii=False))


def nearest(word: str, known: Iterable[str]) -> str | None:
    near = get_close_matches(word.lower(), list(known), n=1)
    return near[0] if near else None


def _by_place(remark: Remark) -> tuple[bool, int]:
    """The file's lines in order, then the environment's."""
    return remark.line == 0, remark.line


def _found(path: KeyPath, raw: Any) -> str:
    if path[-1] in _NEVER_SHOWN:
        return "has a wrong value (not shown)"
    return f"is {_shown(raw)}"


def _shown(raw: Any) -> str:
    match raw:
        case Override(text=text) | str(text):
            return quoted(_PASSWORD.sub("//…@", text))
        case bool():
            return str(raw).lower()
        case int() | float():
            return str(raw)[:_LONGEST_SHOWN]
        case datetime() | date() | time():
            return "a date or time"
    if isinstance(raw, dict):
        return "a table"
    return f"[{', '.join(_shown(item) for item in raw[:_MOST_SHOWN])}{', …' if raw[_MOST_SHOWN:] else ''}]"
