"""`talaria ask TEXT` with something on stdin: a pipe, a file, nothing, a closed stream, a silent pipe."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from cli.conftest import DEADLINE, Talaria
from talaria.cli.ask import compose, read_piped


def test_text_and_stdin_are_both_sent(talaria: Talaria) -> None:
    done = talaria("ask", "What is this?", stdin="one\ntwo\n")
    assert done.stdout == "You said: What is this?\n\n<stdin>\none\ntwo\n</stdin>\n"


@pytest.mark.parametrize(
    ("text", "stdin", "content", "message"),
    [
        ("hi", None, "one\n", "hi\n\n<stdin>\none\n</stdin>"),
        ("hi", True, "one", "hi\n\n<stdin>\none\n</stdin>"),
        ("hi", False, "one\n", "hi"),
        ("hi", None, " \n", "hi"),
        ("-", None, "one\n", "one\n"),
        (None, None, "one\n", "one\n"),
    ],
)
def test_the_message_of_text_and_a_file(
    text: str | None,
    stdin: bool | None,
    content: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text(content)
    with (tmp_path / "file").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert compose(text, stdin) == message


def test_a_closed_stdin_is_no_message_and_no_crash(home: Path, environ: dict[str, str]) -> None:
    """A service or a job may be started with the stream closed."""
    command = f"exec {sys.executable} -m talaria ask --home {home} hello <&-"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True, text=True, env=environ, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "You said: hello\n"), done.stderr


def test_a_silent_pipe_is_not_awaited_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream, os.fdopen(writing, "w") as other:
        assert read_piped(stream, 0) == ""
        assert "TEXT is sent alone. (--stdin waits longer" in capsys.readouterr().err
        other.write("late")
        other.close()
        assert read_piped(stream, None) == "late"
    with Path(os.devnull).open() as device:
        assert read_piped(device, None) == ""


def test_a_pipe_that_is_filled_later_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream, os.fdopen(writing, "w") as other:
        monkeypatch.setattr(sys, "stdin", stream)

        def write() -> None:
            other.write("late")
            other.close()

        fill = threading.Timer(0.05, write)
        fill.start()
        assert compose("hi", None) == "hi\n\n<stdin>\nlate\n</stdin>"
        fill.join()


def test_as_much_as_is_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (16 << 20))
    with (tmp_path / "large").open() as large:
        assert len(read_piped(large, None)) == 16 << 20


def test_a_flood_on_stdin_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 34)  # sparse
    with (tmp_path / "large").open() as large, pytest.raises(click.UsageError, match="send that with --file"):
        read_piped(large, None)
