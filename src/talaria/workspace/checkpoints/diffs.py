"""The differences that a turn made, as lines. Computing time is bounded: a content that is long, or very
different, is described in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from talaria.core.files import ChangeKind, FileDiff
from talaria.core.text import printable
from talaria.core.units import format_size
from talaria.workspace.checkpoints.tree import FileChange, ItemKind, ItemState
from talaria.workspace.reading import SNIFFED_BYTES, is_binary

_MOST_FILES = 200
_MOST_BYTES = 1 << 20  # of one side of a file
_MOST_LINES = 20_000
_MOST_EDITS = 300  # lines added and removed, beyond which lines are not matched
_CONTEXT = 3

Get = Callable[[bytes], bytes | None]


def describe_changes(changes: dict[str, FileChange], get: Get) -> tuple[FileDiff, ...]:
    """Describe changed paths. `get` returns a content by its digest. Folders count only where nothing in them
    tells of them."""
    told = [
        path
        for path, change in sorted(changes.items())
        if not (_is_made_or_gone_folder(change) and any(other.startswith(f"{path}/") for other in changes))
    ]
    return tuple(_describe(path, changes[path], get) for path in told[:_MOST_FILES])


def _is_made_or_gone_folder(change: FileChange) -> bool:
    states = [state for state in (change.before, change.after) if state is not None]
    return len(states) == 1 and states[0].kind is ItemKind.FOLDER


def _describe(path: str, change: FileChange, get: Get) -> FileDiff:
    before, after = change.before, change.after
    kind = (
        ChangeKind.CREATED if before is None else ChangeKind.DELETED if after is None else ChangeKind.CHANGED
    )
    shown = printable(path)
    notes = []
    if before is not None and after is not None and before.kind is after.kind and before.mode != after.mode:
        notes.append(f"mode {before.mode:o} → {after.mode:o}")
    if any(state is not None and state.kind is not ItemKind.FILE for state in (before, after)):
        notes.append(" → ".join(_name_state(state) for state in (before, after) if state is not None))
        return FileDiff(shown, kind, ", ".join(notes))
    if before is not None and after is not None and before.mark == after.mark:
        return FileDiff(shown, kind, ", ".join(notes))
    old, new = (b"" if state is None else get(state.mark) for state in (before, after))
    if old is None or new is None:
        return FileDiff(shown, kind, ", ".join([*notes, "its copy is gone"]))
    if max(len(old), len(new)) > _MOST_BYTES:
        sizes = f"{format_size(len(old))} → {format_size(len(new))}"
        return FileDiff(shown, kind, ", ".join([*notes, f"too long to compare: {sizes}"]))
    if is_binary(old[:SNIFFED_BYTES]) or is_binary(new[:SNIFFED_BYTES]):
        sizes = f"{format_size(len(old))} → {format_size(len(new))}"
        return FileDiff(shown, kind, ", ".join([*notes, f"binary: {sizes}"]))
    lines, added, removed = compare_lines(_lines(old), _lines(new))
    return FileDiff(shown, kind, ", ".join(notes), tuple(lines), added, removed)


def _name_state(state: ItemState) -> str:
    match state.kind:
        case ItemKind.FILE:
            return "a file"
        case ItemKind.FOLDER:
            return "a folder"
        case ItemKind.LINK:
            return f"a link to {printable(state.mark.decode(errors='replace'))}"
        case ItemKind.OPAQUE:
            return f"a file without a copy, {format_size(state.size)}"


def _lines(data: bytes) -> list[str]:
    text = data.decode(errors="replace")
    lines = [printable_line(line) for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    elif lines:
        lines[-1] += " [no newline at the end]"
    return lines


def printable_line(line: str) -> str:
    """Return a line without characters that a terminal would obey; tabs stay."""
    return "\t".join(printable(piece) for piece in line.removesuffix("\r").split("\t"))


def compare_lines(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], int, int]:
    """Return a unified diff without its head, and how many lines were added and removed."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    edits = _match(middle_old, middle_new)
    script = [
        *((" ", line) for line in old[:start]),
        *edits,
        *((" ", line) for line in old[len(old) - end :]),
    ]
    added = sum(sign == "+" for sign, _ in script)
    removed = sum(sign == "-" for sign, _ in script)
    return list(_hunks(script)), added, removed


def _match(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str]]:
    """Return the lines of both with their signs, by the greedy algorithm of Myers. Beyond `_MOST_EDITS` all
    old lines are removed and all new ones added."""
    replaced = [*(("-", line) for line in old), *(("+", line) for line in new)]
    if not old or not new or len(old) + len(new) > _MOST_LINES:
        return replaced
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(len(old) + len(new), _MOST_EDITS) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            is_down = diagonal == -edits or (
                diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            x = furthest[diagonal + 1] if is_down else furthest[diagonal - 1] + 1
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x += 1
            furthest[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _walk_back(trace, old, new)
    return replaced


def _walk_back(
    trace: Sequence[dict[int, int]], old: Sequence[str], new: Sequence[str]
) -> list[tuple[str, str]]:
    script: list[tuple[str, str]] = []
    x, y = len(old), len(new)
    for edits in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[edits], x - y
        is_down = diagonal == -edits or (
            diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
        )
        earlier = diagonal + 1 if is_down else diagonal - 1
        from_x = furthest[earlier]
        from_y = from_x - earlier
        while x > max(from_x, 0) and y > max(from_y, 0):
            x, y = x - 1, y - 1
            script.append((" ", old[x]))
        if edits:
            script.append(("+", new[from_y]) if is_down else ("-", old[from_x]))
        x, y = from_x, from_y
    return script[::-1]


def _hunks(script: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the changed lines with `_CONTEXT` lines around them, each group behind its head."""
    groups: list[list[int]] = []  # first and last changed line of each
    for number, (sign, _) in enumerate(script):
        if sign == " ":
            continue
        if groups and number - groups[-1][1] <= 2 * _CONTEXT:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    position, old_line, new_line = 0, 1, 1
    for first, last in groups:
        begin, end = max(0, first - _CONTEXT), min(len(script), last + _CONTEXT + 1)
        old_line += begin - position  # unchanged lines
        new_line += begin - position
        group, position = script[begin:end], end
        olds, news = sum(sign != "+" for sign, _ in group), sum(sign != "-" for sign, _ in group)
        yield f"@@ -{old_line - (not olds)},{olds} +{new_line - (not news)},{news} @@"
        yield from (sign + line for sign, line in group)
        old_line += olds
        new_line += news
