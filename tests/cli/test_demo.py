"""`talaria demo crash` as anyone runs it: it counts, says what it found, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import DEADLINE, Talaria


def test_every_message_is_answered_over_a_kill(talaria: Talaria, tmp_path: Path) -> None:
    done = talaria("demo", "crash", "--kills", "1", env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "kill -9" in done.stdout
    assert "40 messages, 1 kills" in done.stdout
    assert "40 answered, 0 lost, 0 duplicated." in done.stdout
    assert list(tmp_path.glob("talaria-demo-*")) == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_leaving_early_takes_everything_along(
    environ: dict[str, str], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "talaria", "demo", "crash"],
        env={**environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    gateway = int(process.stdout.readline().split()[-1])
    process.send_signal(number)
    said, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, errors) == (status, ""), said
    with pytest.raises(ProcessLookupError):
        os.kill(gateway, 0)
    assert list(tmp_path.glob("talaria-demo-*")) == []
