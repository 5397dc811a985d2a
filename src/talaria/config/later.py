"""What the configuration will have and this version does not: said aloud instead of failing oddly.

The one table of these; a release that brings one of them deletes its line.
"""

from __future__ import annotations

import re
from typing import Any

from talaria.config.positions import KeyPath
from talaria.config.report import Override, Report, dotted, quoted

# Keys and whole tables that have no effect yet.
KEYS: tuple[KeyPath, ...] = (
    ("tools", "sandbox"),
    ("tools", "approvals"),
    ("budgets", "per_job_usd"),
    ("channels", "discord"),
    ("channels", "slack"),
    ("channels", "matrix"),
    ("channels", "email"),
    ("mcp",),
)
# Members of lists that are left out.
MEMBERS: dict[KeyPath, frozenset[str]] = {
    ("tools", "enabled"): frozenset(
        {"terminal", "web", "browser", "memory", "recall", "delegate", "jobs", "mcp"}
    ),
}
# Values that nothing here can stand in for, and what may be written instead.
VALUES: dict[KeyPath, tuple[str, str]] = {
    ("store", "url"): ("postgres(ql)?://.*", '"" for talaria.db in the home, or "sqlite:///PATH"'),
}


def set_aside(tree: dict[str, Any], report: Report) -> None:
    """Take out of `tree` what is not in this version, and report it."""
    for path in KEYS:
        if (table := _around(tree, path)) is not None:
            del table[path[-1]]
            report.warn(path, f"{dotted(path)} is not in this version yet and has no effect.")
    for path, members in MEMBERS.items():
        if (table := _around(tree, path)) is not None:
            table[path[-1]] = _without(table[path[-1]], members, path, report)
    for path, (later, instead) in VALUES.items():
        if (table := _around(tree, path)) is not None:
            raw = table[path[-1]]
            text = raw.text if isinstance(raw, Override) else raw
            if isinstance(text, str) and re.fullmatch(later, text, re.DOTALL):
                del table[path[-1]]
                shown = quoted(text.partition("://")[0])
                report.problem(path, f"{dotted(path)} {shown} is not in this version yet: use {instead}.")


def _around(tree: Any, path: KeyPath) -> dict[str, Any] | None:
    """The table that has the key at `path`; None where it is not set."""
    for name in path[:-1]:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) and path[-1] in tree else None


def _without(raw: Any, members: frozenset[str], path: KeyPath, report: Report) -> Any:
    """`raw` is a list from the file or a comma-separated text from the environment."""
    if isinstance(raw, Override):
        found: list[Any] = [part.strip() for part in raw.text.split(",")]
    elif isinstance(raw, list):
        found = raw
    else:
        return raw
    gone = [member for member in found if isinstance(member, str) and member in members]
    if not gone:
        return raw
    kept = [member for member in found if member not in gone]
    text = f"{dotted(path)}: {', '.join(gone)} not in this version yet, left out."
    report.warn(path, text, ",".join(map(str, kept)))
    return Override(raw.variable, ",".join(kept)) if isinstance(raw, Override) else kept
