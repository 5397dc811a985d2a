"""Issues of the configuration, each with its place: the line of config.toml, or the environment variable.

`TALARIA_POOL__MAX_AGENTS=4` stands for `max_agents` in `[pool]`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from datetime import date, datetime, time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from talaria.core.errors import ConfigError
from talaria.core.problems import Action, Do, Problem, Severity
from talaria.core.settings import KeyPath
from talaria.core.text import cut, list_some, nearest
from talaria.observe.logs import escape

if TYPE_CHECKING:
    from talaria.config.settings import Settings

_LONGEST_SHOWN = 60
_MOST_SHOWN = 8
# Places of credentials in an address, also in one that is mistyped.
_PASSWORD = re.compile(r"^((?:[\w+.-]+:)?//)?.+@", re.DOTALL)
_PORT = re.compile(r"(://[^/?#:@\[]*:)(?!\d*(?:[/?#]|$))[^/?#]+")
_QUERY = re.compile(r"(:/[^?#]*[?#]).+", re.DOTALL)
_PREFIX = "TALARIA_"
_SEPARATOR = "__"
_TOKEN = re.compile(
    r'''
    (?P<string> """(?:\\.|[^\\])*?"{3,5} | \'\'\'.*?\'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*' )
  | (?P<newline> \n )
  | (?P<blank> [ \t\r]+ | \#[^\n]* )
  | (?P<mark> [\[\]{}=,.] )
  | (?P<bare> [^\s\[\]{}=,.\#"']+ )
    ''',
    re.VERBOSE | re.DOTALL,
)


# -- the places of values ---------------------------------------------------------------------------------


class Override(msgspec.Struct, frozen=True):
    """The text of an environment variable, in the place of the file's value."""

    variable: str
    text: str


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each key and table by its whole path, because `tomllib` does not tell.

    `text` must be valid TOML. For a table that is opened several times it is the first line. Keys in arrays
    of tables count as keys of the array.
    """
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    path: KeyPath = ()
    opened: list[tuple[str, KeyPath]] = []  # the open brackets of the current value, each with its key
    is_key, line = True, 1
    for match in _TOKEN.finditer(text.replace("\r\n", "\n")):
        kind, piece = match.lastgroup, match[0]
        if piece in ("]", "}") and opened:
            (_, path), is_key = opened.pop(), False
        elif piece == "\n" and not opened:
            path, is_key = table, True
        elif is_key:
            if kind in ("string", "bare"):
                path = (*path, tomllib.loads(f"key = {piece}")["key"] if kind == "string" else piece)
                found.setdefault(path, line)
            elif piece == "[":  # the head of a table, which ends with the other bracket
                path = ()
            elif piece == "]":
                table = path
            is_key = piece != "="
        elif piece in ("[", "{"):
            opened.append((piece, path))
            is_key = piece == "{"
        elif piece == "," and opened[-1][0] == "{":
            path, is_key = opened[-1][1], True
        line += piece.count("\n")
    return found


def read_overrides(environ: Mapping[str, str], tree: Mapping[str, Any]) -> dict[KeyPath, Override]:
    """Return the variables that name a key, by its path. Names without a double underscore are reserved."""
    found = {}
    for name in sorted(environ):
        head, rest = name[: len(_PREFIX)].upper(), name[len(_PREFIX) :]
        if head == _PREFIX and _SEPARATOR in rest:
            found[_spell(rest.lower().split(_SEPARATOR), tree)] = Override(name, environ[name])
    return found


def apply_overrides(tree: Mapping[str, Any], overrides: Mapping[KeyPath, Override]) -> dict[str, Any]:
    """Return a copy of the tree with each override in its place."""
    applied = deepcopy(dict(tree))
    for path, override in overrides.items():
        table = applied
        for name in path[:-1]:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                break  # a value where a table should be: that is reported, with or without this variable
            table = inner
        else:
            table[path[-1]] = override
    return applied


def _spell(names: list[str], tree: Mapping[str, Any]) -> KeyPath:
    """Return the path as the file spells it: variables have no dashes and usually no lower case."""
    path: list[str] = []
    table: object = tree
    for name in names:
        keys = table if isinstance(table, Mapping) else {}
        same = [key for key in keys if key.lower().replace("-", "_") == name.replace("-", "_")]
        path.append(same[0] if same else name)
        table = keys.get(path[-1])
    return tuple(path)


# -- issues -----------------------------------------------------------------------------------------------


class Issue(Problem, frozen=True):
    """A problem with the key `path`, and its place: the line of the file, or the environment `variable` that
    sets the key. `text` begins with the place, `bare` is the text without it. `action` is for the key."""

    path: KeyPath = ()
    bare: str = ""
    line: int = 0
    variable: str = ""

    @property
    def unset(self) -> str:
        """The environment variable that the value names and that is not set."""
        return self.action.what if self.action is not None and self.action.do is Do.SET_VARIABLE else ""


class BadConfig(ConfigError):
    """Settings that a gateway cannot start with. In `settings` each wrong value has its default instead."""

    def __init__(self, issues: tuple[Issue, ...], hint: str, settings: Settings | None) -> None:
        super().__init__("\n".join(issue.text for issue in issues), hint)
        self.issues = issues
        self.settings = settings


class IssueCollector:
    """Collects problems, which keep a gateway from starting, and warnings. Knows the place of every key."""

    def __init__(self, file: Path, text: str, overrides: Mapping[KeyPath, Override]) -> None:
        self._file = file
        self._text = text
        self._overrides = overrides
        self._problems: list[Issue] = []
        self._warnings: list[Issue] = []

    def wrong_value(
        self, path: KeyPath, raw: object, expected: str, near: str | None = None, *, is_secret: bool = False
    ) -> None:
        """Report a problem: the value at `path` is not what is expected there. `near` was probably meant."""
        found = "has a wrong value (not shown)" if is_secret else f"is {_shown(raw)}"
        meant = f" (did you mean {near}?)" if near else ""
        self.problem(path, f"{dotted(path)} {found}: expected {expected}{meant}.", near or "")

    def missing(self, table: KeyPath, key: str, expected: str, provider: str = "") -> None:
        """Report a problem: the table needs the key. Does nothing if a value of the key was refused.

        `provider` is the one to set up, if that gives the table its key.
        """
        if not any(issue.path == (*table, key) for issue in self._problems):
            action = Action(Do.SET_UP, provider) if provider else Action(Do.SET_KEY, dotted(table))
            text = f"{dotted((*table, key))} is missing: expected {expected}."
            self._problems.append(self._placed(table, text, action))

    def problem(self, path: KeyPath, text: str, instead: str = "") -> None:
        """Report a wrong value. `instead` is the right one, if that is known."""
        self._problems.append(self._placed(path, text, _correct(path, instead)))

    def warn(self, path: KeyPath, text: str, instead: str = "", action: Action | None = None) -> None:
        self._warnings.append(self._placed(path, text, action or _correct(path, instead), Severity.WARN))

    def unset_variable(self, path: KeyPath, variable: str) -> None:
        text = f"{dotted(path)} names {variable}, which is not set."
        self.warn(path, text, action=Action(Do.SET_VARIABLE, variable))

    def unknown(self, path: KeyPath, siblings: Iterable[str], elsewhere: Iterable[KeyPath] = ()) -> None:
        """Warn that nothing reads the key, and name the key that was probably meant: one of the same name in
        another table, else the nearest sibling."""
        text = f"{dotted(path)} is not a known key and has no effect."
        moved = next((dotted(other) for other in elsewhere if other[-1] == path[-1]), None)
        sibling = None if moved else nearest(path[-1], siblings)
        if near := moved or sibling:
            text += f" Did you mean {near}?"
        key = moved or (dotted((*path[:-1], sibling)) if sibling else "")
        action = Action(Do.MOVE_KEY, dotted(path), key) if key else Action(Do.UNSET_KEY, dotted(path))
        self.warn(path, text, action=action)

    def is_misspelt(self, path: KeyPath) -> bool:
        """Return whether an unknown key was probably meant to be this one, or the table of this one."""
        actions = (issue.action for issue in self._warnings)
        meant = {action.value for action in actions if action is not None and action.do is Do.MOVE_KEY}
        return any(dotted(path[:end]) in meant for end in range(1, len(path) + 1))

    @property
    def warnings(self) -> tuple[Issue, ...]:
        return tuple(sorted(self._warnings, key=_by_place))

    def raise_problems(self, settings: Settings | None = None) -> None:
        """Raise one `BadConfig` for all problems, if there are any."""
        if not self._problems:
            return
        in_file = any(issue.line for issue in self._problems)
        in_environment = not all(issue.line for issue in self._problems)
        where = [str(self._file)] * in_file + ["the environment"] * in_environment
        this = "this" if len(self._problems) == 1 else "these"
        issues = tuple(sorted(self._problems, key=_by_place))
        raise BadConfig(issues, f"Correct {this} in {' and '.join(where)}.", settings)

    def _placed(
        self, path: KeyPath, text: str, action: Action, severity: Severity = Severity.PROBLEM
    ) -> Issue:
        if variable := self._variable(path):
            return Issue(f"{variable}: {text}", "", action, severity, "config", path, text, variable=variable)
        line = self._line(path)
        place = f"{self._file.name} line {line}"
        return Issue(f"{place}: {text}", "", action, severity, "config", path, text, line)

    def _variable(self, path: KeyPath) -> str | None:
        """Return the variable that set `path`, or that made the table `path` which the file does not have."""
        if path in self._overrides:
            return self._overrides[path].variable
        if path in self._lines:
            return None
        inside = [other for other in self._overrides if other[: len(path)] == path]
        return self._overrides[inside[0]].variable if inside else None

    @cached_property
    def _lines(self) -> dict[KeyPath, int]:
        """Computed only if there is something to report."""
        return key_lines(self._text)

    def _line(self, path: KeyPath) -> int:
        """Return the line of the key, or of the nearest table around it."""
        return next(
            (self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines), 1
        )


def _correct(path: KeyPath, instead: str) -> Action:
    """Return the action for a wrong value. Nothing works without an address, so that is not removed."""
    is_needed = bool(instead) or path[-1] == "base_url"
    return Action(Do.SET_KEY if is_needed else Do.UNSET_KEY, dotted(path), instead)


def dotted(path: KeyPath) -> str:
    """Return the path as TOML writes it, safe to print."""
    return ".".join(name if re.fullmatch(r"[\w-]+", name, re.ASCII) else quoted(name) for name in path)


def quoted(text: str) -> str:
    return escape(json.dumps(cut(text, _LONGEST_SHOWN), ensure_ascii=False))


def _by_place(issue: Issue) -> tuple[bool, int]:
    """The lines of the file in order, then the environment."""
    return issue.line == 0, issue.line


def _shown(raw: Any) -> str:
    match raw:
        case Override(text=text) | str(text):
            return quoted(_QUERY.sub(r"\1…", _PORT.sub(r"\1…", _PASSWORD.sub(r"\1…@", text))))
        case bool():
            return str(raw).lower()
        case int() | float():
            return str(raw)[:_LONGEST_SHOWN]
        case datetime() | date() | time():
            return "a date or time"
    if isinstance(raw, dict):
        return "a table"
    return f"[{list_some([_shown(item) for item in raw[: _MOST_SHOWN + 1]], _MOST_SHOWN)}]"
