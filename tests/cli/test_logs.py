"""Log files: bounded, turned over, shown and followed."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.conftest import DEADLINE, Serve, Talaria
from talaria.cli.logs import AUDIT_LOG, GATEWAY_LOG, RotatingLog, following, older, open_log, readable
from talaria.config.home import Home


def test_a_log_is_bounded_and_the_newest_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "x.log"
    with RotatingLog(path, max_bytes=1000, kept=3) as log:
        for number in range(1000):
            log.write(f"line {number:04}\n")
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["x.log", "x.log.1", "x.log.2", "x.log.3"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert path.read_text().endswith("line 0999\n")
    lines = "".join(file.read_text() for file in reversed(files)).splitlines()
    assert lines == [f"line {number:04}" for number in range(1000 - len(lines), 1000)]


def test_a_file_whose_disk_hangs_does_not_hold_up_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    pipe = tmp_path / "logs" / GATEWAY_LOG
    os.mkfifo(pipe)  # takes 64 KiB, and then holds its writer up
    reader = os.open(pipe, os.O_RDWR)
    said = io.StringIO()
    lines = [f"{number:04} {'x' * 1000}\n" for number in range(200)]
    with open_log(Home(tmp_path), said) as log:
        for line in lines:
            log.write(line)
        assert said.getvalue() == "".join(lines)
        read = b""
        while len(read) < len(said.getvalue()):
            read += os.read(reader, 1 << 16)
    os.close(reader)
    assert read.decode() == said.getvalue()


def test_a_log_goes_on_where_the_last_process_ended(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for number in range(5):
        with RotatingLog(path, max_bytes=20) as log:
            log.write(f"process {number}\n")
    assert path.read_text() == "process 4\n"
    assert older(path, 1).read_text() == "process 2\nprocess 3\n"


class Waits:
    """Stands in for sleeping: does the next thing each time, and stops after the last."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self._actions = list(actions)

    def __call__(self, seconds: float) -> None:
        if not self._actions:
            raise KeyboardInterrupt
        self._actions.pop(0)()


def collect(lines: Iterator[str]) -> list[str]:
    found = []
    with pytest.raises(KeyboardInterrupt):
        while True:
            found.append(next(lines))
    return found


def test_following_goes_over_a_turned_file_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    with RotatingLog(path, max_bytes=30) as log:
        log.write("before\n")
        with path.open() as file:
            file.read()

            def write_many() -> None:
                for number in range(4):
                    log.write(f"many {number}\n")

            waits = Waits(
                lambda: log.write("half "),
                lambda: log.write("a line\n"),
                write_many,
                lambda: log.write("last\n"),
            )
            assert collect(following(path, file, waits)) == [
                "half a line", "many 0", "many 1", "many 2", "many 3", "last",
            ]  # fmt: skip


def test_a_gateway_without_a_terminal_is_read_with_logs(talaria: Talaria, home: Path, serve: Serve) -> None:
    said = talaria("logs").stderr
    assert "There is no log" in said
    assert "No gateway without a terminal has run here" in said
    gateway = serve()
    gateway.terminate()
    gateway.wait(DEADLINE)
    done = talaria("logs")
    assert done.returncode == 0
    assert "talaria.serve: ready at http://127.0.0.1:" in done.stdout
    assert '"logger": "talaria.serve"' in talaria("logs", "--json").stdout
    assert (home / "logs" / "gateway.log").stat().st_mode & 0o777 == 0o600


def test_audit_lines_have_their_own_file(talaria: Talaria, home: Path, serve: Serve) -> None:
    assert "There is no audit log" in talaria("logs", "--audit").stderr
    serve()
    assert talaria("token", "add", "ops", "--role", "read").returncode == 0
    shown = talaria("logs", "--audit")
    assert "talaria.audit: token.add who=home" in shown.stdout
    assert shown.stderr == ""
    written = (home / "logs" / AUDIT_LOG).read_text().splitlines()
    assert [json.loads(line)["logger"] for line in written] == ["talaria.audit"] * len(written)
    assert (home / "logs" / AUDIT_LOG).stat().st_mode & 0o777 == 0o600


def test_logs_says_where_the_running_gateway_logs(
    talaria: Talaria, home: Path, environ: dict[str, str]
) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "talaria", "serve", "--port", "0"],
        env={**environ, "TALARIA_HOME": str(home)}, stdout=subprocess.PIPE, stderr=theirs, text=True,
    ) as gateway:  # fmt: skip
        try:
            assert gateway.stdout is not None
            assert gateway.stdout.readline().startswith(" Talaria")
            where = f"The running gateway (pid {gateway.pid}) logs to its terminal, {os.ttyname(theirs)}."
            done = talaria("logs")
            assert done.returncode == 1
            assert f"There is no log in {home / 'logs'}. {where}" in done.stderr
            (home / "logs").mkdir(exist_ok=True)
            (home / "logs" / "gateway.log").write_text("an old line\n")
            done = talaria("logs")
            assert done.stdout == "an old line\n"
            assert done.stderr == f"{where} These lines are of an earlier one:\n"
        finally:
            gateway.kill()
    os.close(ours)
    os.close(theirs)


def test_logs_are_followed_while_the_gateway_writes(
    home: Path, environ: dict[str, str], serve: Serve, talaria: Talaria
) -> None:
    serve()
    command = [sys.executable, "-m", "talaria", "logs", "-f", "-n", "1", "--home", str(home)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()  # it is at the end of the file now
            with (home / "logs" / "gateway.log").open("a") as log:
                log.write("not json \x1b[2J\n")
            while process.stdout.readline() != "not json \\x1b[2J\n":
                pass
        finally:
            process.terminate()


def test_lines_are_shown_as_in_a_terminal() -> None:
    line = '{"ts": "2026-11-15T12:00:00.000Z", "level": "info", "logger": "a", "message": "b", "turn": "c"}'
    assert readable(line).endswith("info    a: b turn=c")
    assert readable("[1]") == "[1]"


@pytest.mark.parametrize(
    "line",
    [
        '"text"',
        "5",
        "{}",
        '{"ts": "2026-11-15T12:00:00.000Z", "level": "info", "logger": "a"}',
        '{"ts": 5, "level": "info", "logger": "a", "message": "b"}',
        '{"ts": "yesterday", "level": "info", "logger": "a", "message": "b"}',
    ],
)
def test_a_line_of_another_program_is_shown_as_it_is(line: str) -> None:
    assert readable(line) == line
