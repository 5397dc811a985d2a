"""From the values of TOML to the types of the settings, and what the types say about each key.

`SettingsDecoder` reports every problem and stops at none. The functions below it look a key up in a settings
type: its kind, and the marks of `core.setting_marks` on it or on a table around it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from talaria.config.issues import IssueCollector, Override, dotted, quoted
from talaria.core.settings import (
    SECRET_MARKS,
    Check,
    CheckedSettings,
    KeyPath,
    Mark,
    Parts,
    is_secret_key,
    template_variables,
)
from talaria.core.text import did_you_mean
from talaria.core.units import DURATION_FORMS, SIZE_FORMS, Size, parse_duration, parse_size
from talaria.tools.part import ToolPart

S = TypeVar("S", bound=msgspec.Struct)

_MISSING = object()
_PARSERS: dict[Any, Callable[[str], Any]] = {Size: parse_size, timedelta: parse_duration}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SECRETS = frozenset({*SECRET_MARKS, Mark.SECRET_VARIABLE})  # people paste keys into each


class Hint(NamedTuple):
    """The annotation of a field: its type without `| None` (TOML has no null), and the notes on it."""

    kind: Any
    notes: tuple[Any, ...] = ()

    @property
    def marks(self) -> frozenset[Mark]:
        return frozenset(note for note in self.notes if isinstance(note, Mark))

    @property
    def meta(self) -> msgspec.Meta | None:
        return next((note for note in self.notes if isinstance(note, msgspec.Meta)), None)

    @property
    def is_struct(self) -> bool:
        return isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct)

    @property
    def items(self) -> Hint:
        """The hint of the values of a dict or the members of a tuple."""
        return read_hint(get_args(self.kind)[1 if get_origin(self.kind) is dict else 0])

    def objection(self, value: object) -> tuple[str, str | None] | None:
        """Return what the checks on the field expected instead of this value, and the value that was probably
        meant; None if it passes them."""
        for check in self.notes:
            if isinstance(check, Check) and (expected := check.rule(value)):
                return expected, check.suggest(value) if check.suggest else None
        return None


def read_hint(annotation: Any) -> Hint:
    notes: tuple[Any, ...] = ()
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            notes += tuple(more)
        elif get_origin(annotation) in (Union, UnionType):
            (annotation,) = (choice for choice in get_args(annotation) if choice is not NoneType)
        else:
            return Hint(annotation, notes)


@cache
def hints_of(kind: type[msgspec.Struct]) -> dict[str, Hint]:
    return {name: read_hint(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


class _Mismatch(Exception):
    """Carries what was expected."""


class SettingsDecoder:
    """Builds settings of the type `root` out of a tree. In the place of a wrong value its default is used."""

    def __init__(
        self, root: type[msgspec.Struct], issues: IssueCollector, environ: Mapping[str, str], parts: Parts
    ) -> None:
        self._known = known_keys(root)
        self._issues = issues
        self._environ = environ
        self._tool_parts = [part.name for part in parts if isinstance(part, ToolPart) and part.is_builtin]

    def decode(self, kind: type[S], tree: Mapping[str, Any], path: KeyPath = ()) -> S:
        hints = hints_of(kind)
        values = {}
        for key, raw in tree.items():
            here = (*path, key)
            if key not in hints:
                self._issues.unknown(here, hints, self._known)
            elif (value := self._value(hints[key], raw, here)) is not _MISSING:
                values[key] = value
        decoded = kind(**values)
        self._check(decoded, path)
        return decoded

    def _check(self, table: msgspec.Struct, path: KeyPath) -> None:
        """Check the keys of a table against each other, and the variables that it names."""
        if isinstance(table, CheckedSettings):
            for key, text in table.problems():
                self._issues.problem((*path, key), f"{dotted((*path, key))} {text}")
        named, has_other = [], False
        for name, hint in hints_of(type(table)).items():
            value = getattr(table, name)
            if Mark.SECRET_VARIABLE in hint.marks and value and value != getattr(type(table)(), name):
                named.append((name, value))
            elif not hint.marks.isdisjoint({Mark.SECRET, Mark.SECRET_FILE}):
                has_other |= bool(value)
        for name, variable in named:
            if not has_other and not self._environ.get(variable):
                self._issues.unset_variable((*path, name), variable)

    def _value(self, hint: Hint, raw: Any, path: KeyPath) -> Any:
        try:
            value = self._convert(hint, raw, path)
            objection = hint.objection(value)
        except _Mismatch as mismatch:
            objection = str(mismatch), None
        if objection is None:
            return value
        is_secret = not hint.marks.isdisjoint(_SECRETS)
        self._issues.wrong_value(path, raw, *objection, is_secret=is_secret)
        return _MISSING

    def _convert(self, hint: Hint, raw: Any, path: KeyPath) -> Any:
        if hint.is_struct:
            return self.decode(hint.kind, _table(raw, hint), path)
        if get_origin(hint.kind) is dict:
            return self._mapping(hint, raw, path)
        if get_origin(hint.kind) is tuple and hint.items.is_struct:
            return self._tables(hint.items.kind, raw, path)
        value = _scalar(hint, _parse(hint.kind, raw))
        return self._known_tools(value, path) if Mark.TOOL_PARTS in hint.marks else value

    def _mapping(self, hint: Hint, raw: Any, path: KeyPath) -> dict[str, Any]:
        """Decode a table whose keys are names, such as `[providers]`."""
        names, decoded = read_hint(get_args(hint.kind)[0]), {}
        for name, value in _table(raw, hint.items).items():
            here = (*path, name)
            if objection := names.objection(name):
                text = f"{dotted(path)} has the name {quoted(name)}: expected {objection[0]}."
                self._issues.problem(here, text)
            elif (item := self._value(hint.items, value, here)) is not _MISSING:
                decoded[name] = item
                if not hint.items.marks.isdisjoint({Mark.COMMAND_VALUE, Mark.TEMPLATE}):
                    for variable in template_variables(item):
                        if variable not in self._environ:
                            self._issues.unset_variable(here, variable)
        return decoded

    def _tables(self, kind: type[S], raw: Any, path: KeyPath) -> tuple[S, ...]:
        """Decode a list of tables, each with all of its keys."""
        names = list(hints_of(kind))
        example = ", ".join(f'{name} = "…"' for name in names)
        if not isinstance(raw, list) or not all(
            isinstance(item, dict) and all(isinstance(item.get(name), str) and item[name] for name in names)
            for item in raw
        ):
            raise _Mismatch(f"a list of tables, each such as {{ {example} }}")
        return tuple(self.decode(kind, item, path) for item in raw)

    def _known_tools(self, names: tuple[str, ...], path: KeyPath) -> tuple[str, ...]:
        known = self._tool_parts
        kept = tuple(name for name in names if name in known)
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known, f"Known are: {', '.join(known)}.")
                text = f"{dotted(path)} names {quoted(name)}, which is not known, and skips it. {hint}"
                self._issues.warn(path, text, ",".join(kept))
        return kept


def _scalar(hint: Hint, raw: Any) -> Any:
    """Raises `_Mismatch` unless `raw` is exactly of the kind: a bool is no number, a number no text."""
    kind, expected = hint.kind, _describe(hint)
    try:
        if kind not in _PARSERS:
            return msgspec.convert(raw, kind if hint.meta is None else Annotated[kind, hint.meta])
        value = raw if kind is Size and type(raw) is int else _PARSERS[kind](raw)
    except (AttributeError, TypeError, ValueError) as error:  # a validation error is a ValueError
        raise _Mismatch(expected) from error
    if value <= type(value)():
        raise _Mismatch(f"{expected}, above zero")
    return value


def _parse(kind: Any, raw: Any) -> Any:
    """Return the text of a variable as the value that the file would have; a text that does not fit stays."""
    if not isinstance(raw, Override):
        return raw
    text = raw.text.strip()
    if kind is bool:
        return _BOOLEANS.get(text.lower(), text)
    if get_origin(kind) is tuple:
        item = read_hint(get_args(kind)[0]).kind
        members = (member.strip() for member in text.split(","))
        return [_parse(item, Override(raw.variable, member)) for member in members if member]
    if kind in (int, float, Any):  # Any: a key of a plug-in, whose type is not known here
        try:
            return tomllib.loads(f"value = {text}")["value"] if kind is Any else kind(text)
        except ValueError:
            return text
    return raw.text if kind is str else text


def _describe(hint: Hint) -> str:
    kind, meta = hint.kind, hint.meta
    if meta is not None and meta.description:
        return meta.description
    if kind is int and meta is not None and meta.ge is not None:
        low = f"{meta.ge:g}"
        return (
            f"a whole number {f'from {low} to {meta.le:g}' if meta.le is not None else f'of at least {low}'}"
        )
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(quoted(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return 'a list of texts, such as ["one", "two"]'
    return {
        Size: SIZE_FORMS,
        timedelta: DURATION_FORMS,
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: 'a text in quotes, such as "text"',
        Any: "a value",
    }[kind]


def _table(raw: Any, hint: Hint) -> dict[str, Any]:
    if isinstance(raw, dict):
        return raw
    if isinstance(raw, Override) and hint.is_struct:
        some_key = next(iter(hints_of(hint.kind))).upper()
        raise _Mismatch(f"a key of this table after it, such as {raw.variable}__{some_key}")
    raise _Mismatch("a table")


# -- what the types say about each key


class SettingValue(NamedTuple):
    """A key with its value and all marks on it and on the tables around it."""

    path: KeyPath
    value: object
    marks: frozenset[Mark]


def find_hint(root: type[msgspec.Struct], path: KeyPath) -> Hint | None:
    """Return the hint of the key or table at `path`, with the marks of the tables around it; None where
    nothing is known."""
    hint, marks = Hint(root), frozenset[Mark]()
    for name in path:
        marks |= hint.marks
        if get_origin(hint.kind) is dict:
            hint = hint.items
        elif hint.is_struct and name in hints_of(hint.kind):
            hint = hints_of(hint.kind)[name]
        else:
            return None
    return Hint(hint.kind, (*hint.notes, *marks))


def is_marked(root: type[msgspec.Struct], path: KeyPath, *marks: Mark) -> bool:
    """Return whether one of the marks is on the key or on a table around it."""
    hint = find_hint(root, path)
    return hint is not None and not hint.marks.isdisjoint(marks)


def known_keys(root: type[msgspec.Struct], path: KeyPath = ()) -> tuple[KeyPath, ...]:
    """Return every key and table whose name is fixed."""
    found: list[KeyPath] = []
    for name, hint in hints_of(root).items():
        here = (*path, name)
        found += known_keys(hint.kind, here) if hint.is_struct else [here]
    return tuple(found)


def values_of(settings: msgspec.Struct) -> Iterator[SettingValue]:
    """Yield every key, in the order of the settings."""
    return _values(settings, (), Hint(type(settings)), frozenset())


def _values(value: object, path: KeyPath, hint: Hint, marks: frozenset[Mark]) -> Iterator[SettingValue]:
    marks |= hint.marks
    if isinstance(value, msgspec.Struct):
        for name, inner in hints_of(type(value)).items():
            yield from _values(getattr(value, name), (*path, name), inner, marks)
    elif isinstance(value, dict) and get_origin(hint.kind) is dict:
        for name, each in value.items():
            yield from _values(each, (*path, name), hint.items, marks)
    elif isinstance(value, dict) and hint.kind is Any:
        for name, each in value.items():
            yield from _values(each, (*path, name), hint, marks)
    else:
        is_secret = hint.kind is Any and isinstance(value, str) and is_secret_key(path[-1], value)
        yield SettingValue(path, value, marks | {Mark.SECRET} if is_secret else marks)


def read_text(kind: Any, text: str) -> Any:
    """Return what a person wrote for a key of this type, as the file would have it.

    Texts need no quotes; lists may be written with commas, tables as TOML. A text that does not fit is left
    for `SettingsDecoder` to refuse.
    """
    hint = read_hint(kind)
    is_table = hint.is_struct or get_origin(hint.kind) is dict
    is_compound = is_table or get_origin(hint.kind) is tuple
    if text[:1] in ('"', "'") or (is_compound and text[:1] in ("[", "{")):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except ValueError:
            return text
    if is_table:
        return text
    if hint.kind is Size and text.isdecimal():
        return int(text)
    return _parse(hint.kind, Override("", text))
