"""The state that a command leaves for the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from talaria.core.shells import ShellState
from talaria.workspace.shell import MAX_STATE_BYTES, compare, load_state, parse_dump, save_state

GIVEN = {"PATH": "/bin", "TOKEN": "from the settings", "A": "old"}


@pytest.mark.parametrize(
    ("before", "found", "after"),
    [
        (ShellState(), GIVEN, ShellState("/w")),
        (ShellState(), {**GIVEN, "B": "new"}, ShellState("/w", {"B": "new"})),
        (ShellState(), {**GIVEN, "A": "changed"}, ShellState("/w", {"A": "changed"})),
        (ShellState(), {"PATH": "/bin", "A": "old"}, ShellState("/w", {}, ("TOKEN",))),
        (ShellState("/x", {"A": "old"}), GIVEN, ShellState("/w", {"A": "old"})),
        (ShellState("/x", {}, ("GONE",)), GIVEN, ShellState("/w", {}, ("GONE",))),
        (ShellState("/x", {}, ("BACK",)), {**GIVEN, "BACK": "1"}, ShellState("/w", {"BACK": "1"})),
    ],
)
def test_only_what_commands_changed_is_kept(
    before: ShellState, found: dict[str, str], after: ShellState
) -> None:
    assert compare(before, GIVEN, "/w", found) == after


@pytest.mark.parametrize(
    ("dump", "found"),
    [
        (b"/w\0A=1\0B=x=y\0", ("/w", {"A": "1", "B": "x=y"})),
        (b"/w\0PWD=/w\0_=x\0SHLVL=2\0IFS= \0BAD NAME=1\0BASH_FUNC_f%%=() {\0", ("/w", {})),
        (b"/w\0A=cut in the mid", None),
        (b"", None),
        (b"/w\0A=" + b"x" * MAX_STATE_BYTES + b"\0", None),
        (b"/w\xff\0A=\xfe\0", ("/w\udcff", {"A": "\udcfe"})),
    ],
)
def test_a_dump_is_read_as_a_whole_or_not(dump: bytes, found: object) -> None:
    assert parse_dump(dump) == found


def test_a_saved_state_comes_back_with_any_bytes(tmp_path: Path) -> None:
    state = ShellState("/w\udcff", {"A": "line\nline", "B": "\udcfe\U0001f600"}, ("C",))
    path = tmp_path / "sessions" / "ses_a" / "shell.json"
    assert load_state(path) == ShellState()
    save_state(path, state)
    assert load_state(path) == state
    assert [each.name for each in path.parent.iterdir()] == ["shell.json"]
    assert path.stat().st_mode & 0o777 == 0o600
