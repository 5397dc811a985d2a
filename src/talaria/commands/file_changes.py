"""The replies of `/undo` and `/diff` about files. Pure. A reply fits into a message of a chat platform."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from talaria.core.file_changes import ChangeKind, FileDiff, KeptPath, TurnDiff, UndoReport
from talaria.core.text import cut

_NAMED = 10  # paths of one kind that are named
_ALL_CHARS = 3000
_ONE_CHARS = 12_000  # for a single path, which a person asked for
_LINE_CHARS = 300
_FENCE = "```"

NO_COPIES = "Files stay as they are: this gateway keeps no copies of them."
_OTHER_EFFECTS = "Other effects of tools stay as they are."


def describe_undo(report: UndoReport) -> str:
    """Say which files were put back or removed, which were not and why, and what was not covered."""
    if not report.turns:
        return f"No files were changed. {_OTHER_EFFECTS}"
    lines = [_OTHER_EFFECTS]
    back = [path for path in report.restored if path not in set(report.removed)]
    for what, paths in (("Put back", back), ("Removed", report.removed)):
        if paths:
            lines.append(f"{what}: {_named(map(_quoted, paths), len(paths))}.")
    if not report.restored and not report.kept:
        lines.append("No files were changed.")
    if report.kept:
        lines.append(f"Not put back: {_named(map(_explained, report.kept), len(report.kept))}.")
    if report.uncovered:
        lines.append(_describe_uncovered(report.uncovered))
    return "\n".join(lines)


def describe_diff(diff: TurnDiff | None, path: str = "") -> str:
    """Show what a turn did to files; `path` chooses one of them."""
    if diff is None:
        return "No turn of this session has changed files."
    wanted = path.removeprefix("./").rstrip("/")
    files = [file for file in diff.files if not wanted or file.path == wanted]
    if not files:
        names = _named((_quoted(file.path) for file in diff.files), len(diff.files))
        return f"The last turn that changed files did nothing to {_quoted(path)}. It changed {names}."
    head = [_describe_file(file) for file in files[:_NAMED]]
    if len(files) > _NAMED:
        head.append(f"- and {len(files) - _NAMED} more")
    lines = [line for file in files for line in _diff_lines(file, with_head=len(files) > 1)]
    parts = ["\n".join(["The last turn that changed files did this:", *head])]
    if lines:
        parts.append(_fenced(lines, _ONE_CHARS if wanted else _ALL_CHARS))
    if diff.uncovered:
        parts.append(_describe_uncovered(diff.uncovered))
    return "\n\n".join(parts)


def _describe_file(file: FileDiff) -> str:
    counts = f"+{file.added} −{file.removed}" if file.lines else ""
    about = ", ".join(each for each in (file.kind, counts, file.note) if each)
    return f"- {_quoted(file.path)}: {about}"


def _diff_lines(file: FileDiff, *, with_head: bool) -> Iterable[str]:
    if not file.lines:
        return
    if with_head:
        yield f"--- {'/dev/null' if file.kind is ChangeKind.CREATED else file.path}"
        yield f"+++ {'/dev/null' if file.kind is ChangeKind.DELETED else file.path}"
    yield from file.lines


def _fenced(lines: Sequence[str], most_chars: int) -> str:
    """Return a code block with as many lines as fit. A fence in the text does not end the block."""
    shown: list[str] = []
    room = most_chars
    for line in (cut(each, _LINE_CHARS) for each in lines):
        room -= len(line) + 1
        if room < 0:
            break
        shown.append(line)
    fence = _FENCE
    while any(line[1:].lstrip().startswith(fence) for line in shown):
        fence += "`"
    rest = len(lines) - len(shown)
    note = f"\n{rest} more {'line' if rest == 1 else 'lines'}; `/diff PATH` shows more of one file."
    return "\n".join([f"{fence}diff", *shown, fence]) + (note if rest else "")


def _describe_uncovered(uncovered: Sequence[KeptPath]) -> str:
    return f"Not covered: {_named(map(_explained, uncovered), len(uncovered))}."


def _named(texts: Iterable[str], count: int) -> str:
    named = [text for text, _ in zip(texts, range(_NAMED), strict=False)]
    return ", ".join(named) + (f" and {count - len(named)} more" if count > len(named) else "")


def _explained(kept: KeptPath) -> str:
    return f"{_quoted(kept.path)} ({kept.reason})"


def _quoted(path: str) -> str:
    short = path if len(path) <= _LINE_CHARS else f"…{path[-_LINE_CHARS:]}"
    return f"`{short.replace('`', '´')}`"
