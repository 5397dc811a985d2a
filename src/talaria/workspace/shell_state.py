"""The saved state of a session's shell: where it is, and which variables its commands changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from talaria.core.shells import ShellState
from talaria.core.whole_files import replace_file
from talaria.workspace.places import make_private
from talaria.workspace.sandbox.port import is_settable

MAX_STATE_BYTES = 256 << 10
_PASSING = {"PWD", "OLDPWD", "SHLVL", "_"}  # a shell sets them itself


def parse_dump(content: bytes) -> tuple[str, dict[str, str]] | None:
    """Return the working directory and the variables that a command wrote when it ended, separated by NULs.

    None if there is nothing to be kept: the command ended before all was written, or wrote too much.
    """
    if not content.endswith(b"\0") or len(content) > MAX_STATE_BYTES:
        return None
    cwd, *variables = os.fsdecode(content[:-1]).split("\0")
    pairs = (each.partition("=") for each in variables)
    return cwd, {name: value for name, _, value in pairs if is_settable(name) and name not in _PASSING}


def compare(before: ShellState, given: Mapping[str, str], cwd: str, found: Mapping[str, str]) -> ShellState:
    """Return the state after a command that was given these variables and left those that were `found`.

    Only differences are kept, so that a variable of the gateway's settings changes with the settings.
    """
    kept = {
        name: value
        for name, value in found.items()
        if given.get(name) != value or before.changed.get(name) == value
    }
    removed = {*before.removed, *given} - {*found} - _PASSING
    return ShellState(cwd if cwd.startswith("/") else before.cwd, kept, tuple(sorted(removed)))


def load_state(path: Path) -> ShellState:
    """Return the saved state; an empty one if there is none, or none that can be read. Blocks."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        saved: dict[str, Any] = json.loads(path.read_bytes())
        changed = {str(name): str(value) for name, value in saved["changed"].items()}
        return ShellState(str(saved["cwd"]), changed, tuple(map(str, saved["removed"])))
    return ShellState()


def save_state(path: Path, state: ShellState) -> None:
    """Replace the saved state as a whole. Blocks. Raises `OSError`."""
    make_private(path.parent)
    # As ASCII, since a variable may have bytes that are no text.
    text = json.dumps({"cwd": state.cwd, "changed": dict(state.changed), "removed": state.removed})
    replace_file(path, text.encode("ascii"), is_durable=False)
