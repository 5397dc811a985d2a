"""Walking a folder's tree, guided by a glob: `*.py`, `src/**/*.py`, `**`."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from talaria.core.errors import ToolError
from talaria.workspace.folder import PRIVATE, Folder, Inside, Item, Kind, printable

MAX_VISITED = 20_000
_MAX_DEPTH = 64
_NOT_ENTERED = frozenset({".git"})


class Glob:
    """A glob as a small automaton over names, so that a walk enters only folders which can still match.

    A state is the number of pattern parts matched so far. `**` stands for any number of folders. Each part
    is matched by `fnmatch`, whose patterns cannot backtrack.
    """

    def __init__(self, pattern: str) -> None:
        """Raises `ToolError` for a pattern that leaves the folder or has too many parts."""
        pieces = [piece for piece in pattern.split("/") if piece not in ("", ".")]
        if pattern.startswith("/") or ".." in pieces:
            raise ToolError(
                f"The pattern {printable(pattern[:200])!r} leaves the folder.", 'Start it at "path".'
            )
        if not pieces or len(pieces) > _MAX_DEPTH or len(pattern) > 1000:
            raise ToolError('The pattern must have 1 to 64 parts, such as "*" or "**/*.py".')
        self._parts = [None if piece == "**" else re.compile(fnmatch.translate(piece)) for piece in pieces]
        self.start = self._skip_stars({0})

    def step(self, states: frozenset[int], name: str) -> frozenset[int]:
        """The states after one more name of a path."""
        after: set[int] = set()
        for state in states:
            if state == len(self._parts):
                continue
            part = self._parts[state]
            if part is None:
                after.add(state)
            elif part.match(name):
                after.add(state + 1)
        return self._skip_stars(after)

    def is_match(self, states: frozenset[int]) -> bool:
        return len(self._parts) in states

    def can_go_on(self, states: frozenset[int]) -> bool:
        return any(state < len(self._parts) for state in states)

    def _skip_stars(self, states: set[int]) -> frozenset[int]:
        closed = set(states)
        for state in states:
            while state < len(self._parts) and self._parts[state] is None:
                state += 1  # noqa: PLW2901 - `**` may stand for no folder at all
                closed.add(state)
        return frozenset(closed)


@dataclass(frozen=True, slots=True)
class Found:
    path: Inside
    item: Item


@dataclass(frozen=True, slots=True)
class Walk:
    """What matched, in the order of paths. Not complete: the tree was larger than the limits."""

    found: tuple[Found, ...]
    is_complete: bool


def walk(folder: Folder, start: Inside, glob: Glob, max_found: int, max_visited: int = MAX_VISITED) -> Walk:
    """Find what `glob` matches below `start`. Links are not followed; the gateway's own files and what is in
    `.git` stay unseen, unless `start` is there."""
    found: list[Found] = []
    visited = 0
    pending: list[tuple[Found | None, Inside, frozenset[int]]] = [(None, start, glob.start)]
    while pending:
        candidate, path, states = pending.pop()
        if candidate is not None:
            if glob.is_match(states):
                if len(found) == max_found:
                    return Walk(tuple(found), is_complete=False)
                found.append(candidate)
            if not _is_entered(candidate, states, glob):
                continue
        room = max_visited - visited
        items = _scan(folder, path, room + 1, is_start=candidate is None)
        visited += len(items)
        if visited > max_visited:
            return Walk(tuple(found), is_complete=False)
        for item in reversed(items):
            inner = path / item.name
            after = glob.step(states, item.name)
            if after and not item.name.startswith(PRIVATE):
                pending.append((Found(inner, item), inner, after))
    return Walk(tuple(found), is_complete=True)


def _is_entered(candidate: Found, states: frozenset[int], glob: Glob) -> bool:
    return (
        candidate.item.kind is Kind.FOLDER
        and candidate.item.name not in _NOT_ENTERED
        and len(candidate.path.parts) < _MAX_DEPTH
        and glob.can_go_on(states)
    )


def _scan(folder: Folder, path: Inside, limit: int, *, is_start: bool) -> list[Item]:
    try:
        return folder.scan(path, limit)
    except ToolError:
        if is_start:
            raise
        return []  # a folder that was removed, replaced or closed to us while we walked
