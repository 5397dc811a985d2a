"""From TOML's values to the settings' types: one walk that reports every problem and stops at none."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from talaria.config import rules
from talaria.config.positions import KeyPath
from talaria.config.report import Override, Report, dotted, quoted
from talaria.core.units import DURATION_FORMS, SIZE_FORMS, Size, parse_duration, parse_size

Built = TypeVar("Built", bound=msgspec.Struct)

_MISSING = object()
_MEASURES: dict[Any, Callable[[str], Any]] = {Size: parse_size, timedelta: parse_duration}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class _Mismatch(Exception):
    """Carries what was expected."""


class Shaper:
    """Builds settings out of a tree. A value that does not fit is reported, and its default stands in."""

    def __init__(self, report: Report, root: type[msgspec.Struct]) -> None:
        self._report = report
        self._known = known_keys(root)

    def build(self, kind: type[Built], tree: Mapping[str, Any], path: KeyPath = ()) -> Built:
        hints = _hints(kind)
        values = {}
        for key, raw in tree.items():
            here = (*path, key)
            if key not in hints:
                self._report.unknown(here, hints, self._known)
            elif (value := self._value(hints[key], raw, here)) is not _MISSING:
                values[key] = value
        return kind(**values)

    def _value(self, kind: Any, raw: Any, path: KeyPath) -> Any:
        try:
            value = self._convert(kind, raw, path)
            expected = rules.broken(path, value)
        except _Mismatch as mismatch:
            expected = str(mismatch)
        if expected is None:
            return value
        self._report.wrong(path, raw, expected)
        return _MISSING

    def _convert(self, kind: Any, raw: Any, path: KeyPath) -> Any:
        kind, meta = _plain(kind)
        if _is_struct(kind):
            return self.build(kind, _table(raw, kind), path)
        if get_origin(kind) is dict:
            return self._mapping(kind, raw, path)
        if get_origin(kind) is tuple and _is_struct(get_args(kind)[0]):
            return self._tables(get_args(kind)[0], raw, path)
        return _scalar(kind, _parse(kind, raw), meta)

    def _mapping(self, kind: Any, raw: Any, path: KeyPath) -> dict[str, Any]:
        """A table whose keys are names: providers, aliases."""
        _, inner = get_args(kind)
        built = {}
        for name, value in _table(raw, inner).items():
            here = (*path, name)
            rule = rules.NAMES.get(path)
            if rule and (expected := rule(name)):
                self._report.problem(
                    here, f"{dotted(path)} has the name {quoted(name)}: expected {expected}."
                )
            elif (item := self._value(inner, value, here)) is not _MISSING:
                built[name] = item
        return built

    def _tables(self, kind: type[Built], raw: Any, path: KeyPath) -> tuple[Built, ...]:
        """A list of tables, each with all of its keys."""
        names = list(_hints(kind))
        example = ", ".join(f'{name} = "…"' for name in names)
        if not isinstance(raw, list) or not all(
            isinstance(item, dict) and all(isinstance(item.get(name), str) and item[name] for name in names)
            for item in raw
        ):
            raise _Mismatch(f"a list of tables, each such as {{ {example} }}")
        return tuple(self.build(kind, item, path) for item in raw)


def _scalar(kind: Any, raw: Any, meta: msgspec.Meta | None) -> Any:
    """Raises `_Mismatch` unless `raw` is exactly of the kind: a bool is no number, a number no text."""
    expected = _describe(kind, meta)
    try:
        if kind not in _MEASURES:
            return msgspec.convert(raw, kind if meta is None else Annotated[kind, meta])
        value = raw if kind is Size and type(raw) is int else _MEASURES[kind](raw)
    except (AttributeError, TypeError, ValueError) as error:  # a validation error is a ValueError
        raise _Mismatch(expected) from error
    if value <= type(value)():
        raise _Mismatch(f"{expected}, above zero")
    return value


def _parse(kind: Any, raw: Any) -> Any:
    """A variable's text as the value that the file would have; a text that cannot be stays a text."""
    if not isinstance(raw, Override):
        return raw
    text = raw.text.strip()
    if kind is bool:
        return _BOOLEANS.get(text.lower(), text)
    if get_origin(kind) is tuple:
        item, _ = _plain(get_args(kind)[0])
        parts = (part.strip() for part in text.split(","))
        return [_parse(item, Override(raw.variable, part)) for part in parts if part]
    if kind is int or kind is float:
        try:
            return kind(text)
        except ValueError:
            return text
    return raw.text if kind is str else text


def _describe(kind: Any, meta: msgspec.Meta | None) -> str:
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
    }[kind]


def _table(raw: Any, kind: Any) -> dict[str, Any]:
    if isinstance(raw, dict):
        return raw
    if isinstance(raw, Override) and _is_struct(kind):
        some_key = next(iter(_hints(kind))).upper()
        raise _Mismatch(f"a key of this table after it, such as {raw.variable}__{some_key}")
    raise _Mismatch("a table")


def _plain(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    """The type without `| None` (TOML has no null) and without its annotation, which comes second."""
    meta = None
    while True:
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            meta = next((note for note in notes if isinstance(note, msgspec.Meta)), meta)
        elif get_origin(kind) in (Union, UnionType):
            (kind,) = (choice for choice in get_args(kind) if choice is not NoneType)
        else:
            return kind, meta


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _leaves(kind: type[msgspec.Struct], path: KeyPath) -> Iterator[KeyPath]:
    for name, hint in _hints(kind).items():
        inner, _ = _plain(hint)
        if _is_struct(inner):
            yield from _leaves(inner, (*path, name))
        else:
            yield (*path, name)


# -- single keys ------------------------------------------------------------------------------------------


def kind_at(root: type[msgspec.Struct], path: KeyPath) -> Any:
    """The type of what may stand at `path`; None where nothing may."""
    kind: Any = root
    for name in path:
        kind, _ = _plain(kind)
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif _is_struct(kind) and name in _hints(kind):
            kind = _hints(kind)[name]
        else:
            return None
    return kind


def known_keys(root: type[msgspec.Struct]) -> tuple[KeyPath, ...]:
    """Every key and table whose name is fixed."""
    return tuple(_leaves(root, ()))


def value_of_text(kind: Any, text: str) -> Any:
    """What a person wrote for a key of this type, as the file would have it. Texts need no quotes; lists may
    be written with commas, tables as TOML. What does not fit is left for `Shaper` to refuse."""
    kind, _ = _plain(kind)
    is_compound = _is_struct(kind) or get_origin(kind) in (tuple, dict)
    if text[:1] in ('"', "'") or (is_compound and text[:1] in ("[", "{")):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except ValueError:
            return text
    if _is_struct(kind) or get_origin(kind) is dict:
        return text
    if kind is Size and text.isdecimal():
        return int(text)
    return _parse(kind, Override("", text))
