"""Runs of pytest with other code for some modules, each in a process with a temporary folder of its own.

Nothing is written to the work tree, so a run that is killed leaves it as it was.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mutants.blocks import ROOT

_MARK = "MUTANTS_RUN"
_PREFIX = "mut-"
_ROUNDS = 200
_SECONDS_TO_DIE = 0.05
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, slots=True)
class Ran:
    """What one test of a run did. `entered` are the numbers of its blocks."""

    node: str
    seconds: float
    passed: bool
    entered: list[int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `status` is the exit status of pytest, or None if it was stopped at its time limit."""

    status: int | None
    tests: list[Ran]
    said: str


@contextmanager
def folder() -> Iterator[Path]:
    """A short path: sockets in it must fit into 108 characters. It names this process for `sweep`."""
    path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run_tests(
    files: Sequence[str],
    code: Path,
    *,
    only: Sequence[str] | None = None,
    blocks: int = 0,
    options: Sequence[str] = (),
    seconds: float,
) -> Outcome:
    """Run test files with the modules in `code`, or `only` these tests of them, in that order.

    With `blocks`, the code notes which of so many blocks it enters. Processes that tests leave behind are
    killed.
    """
    with folder() as place:
        out = place / "tests"
        out.touch()
        environ = _environ(place, code) | {"MUTANTS_OUT": str(out)}
        if only is not None:
            (place / "only").write_text("\n".join(only))
            environ["MUTANTS_ONLY"] = str(place / "only")
        if blocks:
            (place / "map").write_bytes(bytes(blocks))
            environ["MUTANTS_MAP"] = str(place / "map")
        command = [
            sys.executable, "-m", "pytest", "-p", "mutants_plugin", "-p", "no:cacheprovider",
            "-p", "no:xdist", "--tb=no", "-rfE", "--hypothesis-seed=0", *options, *files,
        ]  # fmt: skip
        status, said = _run(command, environ, seconds)
        tests = [Ran(*json.loads(line)) for line in out.read_text().splitlines()]
    return Outcome(status, tests, said)


def stop_all() -> None:
    """Stop the runs of other threads. Each of them kills the processes of its run."""
    for process in list(_running):
        process.kill()


def _environ(place: Path, code: Path) -> dict[str, str]:
    (place / "t").mkdir()
    return os.environ | {
        "PYTHONPATH": str(ROOT / "mutants" / "site"),
        "PYTHONDONTWRITEBYTECODE": "",
        "TMPDIR": str(place / "t"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(place / "h"),
        "MUTANTS_CODE": str(code),
        _MARK: place.name,
    }


def _run(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> tuple[int | None, str]:
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    status: int | None = None
    _running.add(process)
    try:
        said, _ = process.communicate(timeout=seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said = b""
    finally:
        _kill_marked(f"{_MARK}={environ[_MARK]}".encode())
        process.kill()
        process.wait()
        _running.discard(process)
        assert process.stdout is not None
        process.stdout.close()
    return status, said.decode(errors="replace")


def sweep() -> None:
    """End the processes and delete the folders of runs whose own process was killed."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mark = f"{_MARK}={_PREFIX}".encode()
            values = (process / "environ").read_bytes().split(b"\0")
            found = next((value for value in values if value.startswith(mark)), None)
            if found is not None and _is_orphaned(found.decode().partition("=")[2]):
                os.kill(int(process.name), signal.SIGKILL)
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        if _is_orphaned(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _is_orphaned(name: str) -> bool:
    """Return whether the process that made a folder with this name is gone."""
    pid = name.removeprefix(_PREFIX).partition("-")[0]
    return pid.isdigit() and not Path("/proc", pid).exists()


def _kill_marked(mark: bytes) -> None:
    """Kill the processes that have this variable, and wait until they are gone: all that the run started."""
    for _ in range(_ROUNDS):
        marked = [int(process.name) for process in Path("/proc").glob("[0-9]*") if _has(process, mark)]
        if not marked:
            return
        for pid in marked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_SECONDS_TO_DIE)


def _has(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it ended, or is another user's
