"""The commands that a finding offers are those that help here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from talaria.core.findings import close_command, end_command


def test_only_a_process_of_talaria_is_offered_to_be_ended() -> None:
    with (
        subprocess.Popen((sys.executable, "-c", "input()", "talaria"), stdin=subprocess.PIPE) as ours,
        subprocess.Popen(("sleep", "60")) as other,
    ):
        try:
            assert end_command(ours.pid) == f"kill {ours.pid}"
            assert end_command(other.pid) == ""
        finally:
            ours.kill()
            other.kill()
    assert end_command(ours.pid) == ""


def test_a_file_outside_of_the_home_is_not_closed_to_others(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    outside = tmp_path / "shared.env"
    outside.touch()
    link = home / ".env"
    os.symlink(outside, link)
    assert close_command(outside, home) == close_command(link, home) == ""
    assert close_command(home / "config.toml", home) == f"chmod 600 {home / 'config.toml'}"
