"""Commands that need an extra which is not installed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from talaria.cli.main import main

COPY = ["store", "copy", "--to", "postgresql://127.0.0.1:1/none"]
WITHOUT = """import sys
sys.modules["psycopg"] = None
from talaria.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_missing_extra_is_no_bug(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "talaria.db").touch()  # a database to copy
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("TALARIA_HOME", str(home))
    assert main(COPY) == 1
    told = capsys.readouterr().err
    assert "A database on PostgreSQL needs the package psycopg, which is not installed." in told
    assert "Install it: " in told
    assert "This is a bug" not in told


@pytest.mark.parametrize(("answer", "goes_on"), [("n", False), ("y", True)])
def test_a_clone_offers_to_install_a_missing_extra_and_goes_on(
    home: Path, environ: dict[str, str], answer: str, goes_on: bool
) -> None:
    (home / "talaria.db").touch()  # a database to copy
    leader, terminal = pty.openpty()
    os.write(leader, f"{answer}\n".encode())
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT, *COPY],
        env={**environ, "TALARIA_HOME": str(home)},
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        told = b""
        with suppress(OSError):  # the other side is closed
            while piece := os.read(leader, 4096):
                told += piece
    os.close(leader)
    assert b"Install it now? [Y/n]" in told
    assert (b"cannot be reached" in told or b"onnect" in told) is goes_on, told.decode()
    assert process.returncode == 1
