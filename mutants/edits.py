"""Edits of the source that name a function and a piece of syntax, so that they survive most other changes.

`find`, `drop`, `never`, `always`, `move` and `after` are Python: an expression, or statements. They are
compared with the syntax tree, without regard to formatting and comments, and must occur exactly once in the
named function, class or constant. `...` in them stands for anything: one expression, or any number of
arguments, elements or statements. In `become` it stands for what was found, in the same order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from mutants.blocks import SOURCE

_IGNORED = ("ctx", "type_comment", "kind", "type_params")
Captures = list[list[Any]]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"place": "in"}):
    """One change in `place`: a file below src/talaria, `file.py:Class.method` or `file.py:CONSTANT`.

    One of these is given:
    - `find` with `become`: replaces an expression, a keyword argument (`name=value`) or statements.
    - `drop`: removes statements, an argument, an element, or an operand of `and` and `or`.
    - `never`, `always`: replaces a condition by False or True.
    - `move` with `after`: moves statements behind others of the same block.
    - `text` with `become`: replaces a fragment of a string.
    """

    place: str
    find: str = ""
    become: str = ""
    drop: str = ""
    never: str = ""
    always: str = ""
    move: str = ""
    after: str = ""
    text: str = ""


class NotFound(Exception):
    """The syntax of an edit is not in the source exactly once."""


class Tree:
    """The syntax trees of src/talaria, parsed when an edit needs them, and changed by it."""

    def __init__(self, source: Path = SOURCE) -> None:
        self._source = source
        self._parsed: dict[Path, ast.Module] = {}
        self._changed: set[Path] = set()
        self.moved: list[str] = []

    def apply(self, edit: Edit) -> None:
        """Apply an edit. Raises `NotFound`. If the function is only in another file, `moved` says so."""
        path, scopes = self._find(edit.place)
        self._changed.add(path)
        count = sum(_apply(edit, scope) for scope in scopes)
        if count != 1:
            places = [name for name, node in _names(_parse(path)) if _apply(edit, deepcopy(node)) == 1]
            hint = f"\nIt is in: {', '.join(places)}" if places else ""
            raise NotFound(f"{edit.place} has it {count} times: {edit}{hint}")

    def changed(self) -> dict[Path, ast.Module]:
        """Return the changed trees, which can be compiled."""
        return {path: ast.fix_missing_locations(self._parsed[path]) for path in sorted(self._changed)}

    def texts(self) -> dict[Path, str]:
        """Return the changed files. Comments and formatting are lost."""
        return {path: f"{ast.unparse(tree)}\n" for path, tree in self.changed().items()}

    def _find(self, place: str) -> tuple[Path, list[ast.AST]]:
        name, _, qualname = place.partition(":")
        path = self._source / name
        if path.exists() and (scopes := self._scopes(path, qualname)):
            return path, scopes
        files = sorted(self._source.rglob("*.py")) if qualname else []
        found = [(other, scopes) for other in files if (scopes := self._scopes(other, qualname))]
        if len(found) != 1:
            places = ", ".join(other.relative_to(self._source).as_posix() for other, _ in found)
            raise NotFound(f"{place} is gone, and its name is in {places or 'no other file'}")
        self.moved.append(f"{place} is in {found[0][0].relative_to(self._source).as_posix()} now")
        return found[0]

    def _scopes(self, path: Path, qualname: str) -> list[ast.AST]:
        if path not in self._parsed:
            self._parsed[path] = _parse(path)
        tree = self._parsed[path]
        return [node for name, node in _names(tree) if name == qualname] if qualname else [tree]


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _names(tree: ast.AST, prefix: str = "", *, is_local: bool = False) -> Iterator[tuple[str, ast.AST]]:
    """Yield functions, classes, and constants of modules and classes, with their qualified names."""
    for child in ast.iter_child_nodes(tree):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield prefix + name, child
                is_function = not isinstance(child, ast.ClassDef)
                yield from _names(child, f"{prefix}{name}.", is_local=is_function)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if not is_local:
                    yield prefix + name, child
            case ast.stmt() | ast.excepthandler() | ast.match_case():
                yield from _names(child, prefix, is_local=is_local)


def _apply(edit: Edit, scope: ast.AST) -> int:
    """Apply an edit inside a node, and return how many places fit. With more than one, the result is void."""
    if edit.text:
        return _replace_text(scope, edit.text, edit.become)
    if edit.move:
        return _move(scope, _parse_pattern(edit.move), _parse_pattern(edit.after))
    if edit.drop:
        return _drop(scope, _parse_pattern(edit.drop))
    condition = edit.never or edit.always
    new = _parse_pattern(("False" if edit.never else "True") if condition else edit.become)
    return _replace(scope, _parse_pattern(condition or edit.find), new)


def _parse_pattern(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _replace_text(scope: ast.AST, old: str, new: str) -> int:
    count = 0
    for node in ast.walk(scope):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            count += node.value.count(old)
            node.value = node.value.replace(old, new)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            count += node.value.count(old.encode())
            node.value = node.value.replace(old.encode(), new.encode())
    return count


def _replace(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt]) -> int:
    """Replace an expression, a keyword argument, or statements."""
    wanted, becomes = _part(old), _part(new)
    count = 0
    if wanted is not None and isinstance(wanted, ast.expr) == isinstance(becomes, ast.expr):
        for parent, field, place, node in list(_children(scope)):
            captures: Captures = []
            if _matches(wanted, node, captures):
                count += 1
                (filled,) = _fill([becomes], captures)
                _set(parent, field, place, filled)
        if isinstance(wanted, ast.expr):
            return count
    for statements, start, end, captures in list(_find_runs(scope, old)):
        count += 1
        statements[start:end] = _fill(new, captures)
    return count


def _part(pattern: list[ast.stmt]) -> ast.expr | ast.keyword | None:
    """Return what a pattern stands for inside of a statement, if anything."""
    match pattern:
        case [ast.Expr(value=value)]:
            return value
        case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
            return ast.keyword(name, value)
    return None


def _children(scope: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield all nodes below a node, each with its parent, and its field and place there."""
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.AST):
                yield parent, field, None, value
            elif isinstance(value, list):
                yield from (
                    (parent, field, at, one) for at, one in enumerate(value) if isinstance(one, ast.AST)
                )


def _set(parent: ast.AST, field: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[place] = node


def _drop(scope: ast.AST, pattern: list[ast.stmt]) -> int:
    """Drop statements, or an expression (with `name=value` also a keyword argument) out of its list."""
    runs = list(_find_runs(scope, pattern))
    wanted = _part(pattern)
    parts = [
        (parent, field, place)
        for parent, field, place, node in _children(scope)
        if place is not None and _matches(wanted, node, [])
    ]
    for statements, start, end, _ in runs[:1]:
        statements[start:end] = [] if len(statements) > end - start else [ast.Pass()]
    for parent, field, place in parts[:1]:
        del getattr(parent, field)[place]
        if isinstance(parent, ast.Dict):
            del parent.values[place]
    _Shortened().visit(scope)
    return len(runs) + len(parts)


class _Shortened(ast.NodeTransformer):
    """Replaces `and` and `or` with one operand by the operand."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        return node.values[0] if len(node.values) == 1 else node


def _move(scope: ast.AST, moved: list[ast.stmt], anchor: list[ast.stmt]) -> int:
    found = [
        (statements, start, end, after)
        for statements, start, end, _ in _find_runs(scope, moved)
        for _, _, after, _ in _runs(statements, anchor)
    ]
    for statements, start, end, after in found:
        statements[:] = [
            *statements[:start], *statements[end:after], *statements[start:end], *statements[after:],
        ]  # fmt: skip
    return len(found)


def _lists(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in list(ast.walk(scope)):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _find_runs(
    scope: ast.AST, pattern: list[ast.stmt]
) -> Iterator[tuple[list[ast.stmt], int, int, Captures]]:
    for statements in _lists(scope):
        yield from _runs(statements, pattern)


def _runs(
    statements: list[ast.stmt], pattern: list[ast.stmt]
) -> Iterator[tuple[list[ast.stmt], int, int, Captures]]:
    """Yield where the statements of a pattern stand in a row."""
    size = len(pattern)
    for start in range(len(statements) - size + 1):
        captures: Captures = []
        if all(_matches(*pair, captures) for pair in zip(pattern, statements[start:], strict=False)):
            yield statements, start, start + size, captures


def _matches(pattern: Any, node: Any, captures: Captures) -> bool:
    """Compare a pattern with a node, and note what its `...` stand for."""
    if _is_anything(pattern) and isinstance(node, ast.expr):
        captures.append([node])
        return True
    if isinstance(pattern, list) and isinstance(node, list):
        return _matches_list(pattern, node, captures)
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and bool(pattern == node)
    return type(pattern) is type(node) and all(
        _matches(value, getattr(node, field, None), captures)
        for field, value in ast.iter_fields(pattern)
        if field not in _IGNORED
    )


def _matches_list(patterns: Sequence[Any], nodes: Sequence[Any], captures: Captures) -> bool:
    if any(map(_is_anything, patterns)):
        at = next(at for at, one in enumerate(patterns) if _is_anything(one))
        rest = len(patterns) - at - 1
        if len(nodes) < at + rest:
            return False
        end = len(nodes) - rest
        if not _matches_list(patterns[:at], nodes[:at], captures):
            return False
        captures.append(list(nodes[at:end]))
        return _matches_list(patterns[at + 1 :], nodes[end:], captures)
    return len(patterns) == len(nodes) and all(
        _matches(*pair, captures) for pair in zip(patterns, nodes, strict=True)
    )


def _is_anything(pattern: Any) -> bool:
    match pattern:
        case ast.Constant(value=value) | ast.Expr(value=ast.Constant(value=value)):
            return value is ...
    return False


def _fill(new: Sequence[Any], captures: Captures) -> list[Any]:
    """Return copies of the nodes with their `...` replaced by what was found, in order."""
    waiting = iter(captures)

    def fill(nodes: Sequence[Any]) -> list[Any]:
        return [
            part
            for node in nodes
            for part in (next(waiting, [node]) if _is_anything(node) else [filled(node)])
        ]

    def filled(node: Any) -> Any:
        if not isinstance(node, ast.AST):
            return node
        copy = type(node)()
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(copy, field, fill(value))
            elif _is_anything(value):
                (one,) = next(waiting, [value])
                setattr(copy, field, one)
            else:
                setattr(copy, field, filled(value))
        return copy

    return fill(new)
