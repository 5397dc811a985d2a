"""Runs of pytest on a copy of the source, each in a process with its own temporary folder.

Nothing is written to the work tree, so a run that is killed leaves it as it was.
"""

from __future__ import annotations

import json
import os
import re
import shlex
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

from mutants.blocks import ROOT, SOURCE

_MARK = "MUTANTS_RUN"
_NOT_LINKED = ("src", ".mutants")
_PREFIX = "mut-"
_NAME = re.compile(rf"{_PREFIX}\d+-\w+")
_ROUNDS = 200
_SECONDS_TO_DIE = 0.05
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of one test, or of a file that could not be imported (`node` is its path).

    `result` is `passed`, `failed` or `skipped`. `reason` says why it was skipped or not imported. `entered`
    are the numbers of the entered blocks.
    """

    node: str
    seconds: float
    result: str
    reason: str
    entered: list[int]

    @property
    def passed(self) -> bool:
        return self.result == "passed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    `status` is the exit status of pytest, None if it was stopped at its time limit. `has_begun` says whether
    all files were imported. `is_whole` is false if pytest did not reach its end: it was stopped, or the code
    under test ended the process.
    """

    status: int | None
    has_begun: bool
    is_whole: bool
    tests: list[Ran]
    said: str


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a temporary folder that other users can read: root runs PostgreSQL and some commands as `nobody`.

    Its path is short, because sockets in it must fit into 108 characters. Its name contains the id of this
    process, for `sweep`.
    """
    path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a folder. Some tests leave trees that are deeper than `shutil.rmtree` can recurse."""
    subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def source_copy(changed: Mapping[Path, str]) -> Iterator[Path]:
    """Yield a copy of this clone in which some files of src/talaria have another text.

    A copy and not an import hook: commands, sandboxes and searches run some modules as programs, by path.
    Unchanged files are hard links, everything outside of `src` is a symbolic link.
    """
    with folder() as copy:
        shutil.copytree(SOURCE.parent, copy / "src", copy_function=_link)
        for path in ROOT.iterdir():
            if path.name not in _NOT_LINKED:
                (copy / path.name).symlink_to(path)
        for path, text in changed.items():
            new = copy / path.relative_to(ROOT)
            new.unlink()
            new.write_text(text)
        try:
            yield copy
        finally:
            _kill_all(copy.name)  # programs that were started by path, without variables


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def run_tests(
    files: Sequence[str],
    copy: Path,
    *,
    only: Sequence[str] | None = None,
    recording: Path | None = None,
    blocks: int = 0,
    options: Sequence[str] = (),
    seconds: float,
) -> Outcome:
    """Run test files on a copy of the source, or `only` these tests of them, in that order.

    With `recording`, the compiled modules in that folder note which of `blocks` blocks they enter. Processes
    that tests leave behind are killed.
    """
    with folder() as place:
        out = place / "tests"
        out.touch()
        environ = _environ(place, copy) | {"MUTANTS_OUT": str(out)}
        if only is not None:
            (place / "only").write_text("\n".join(only))
            environ["MUTANTS_ONLY"] = str(place / "only")
        if recording is not None:
            (place / "map").write_bytes(bytes(blocks))
            (place / "map").chmod(0o666)
            environ |= {"MUTANTS_MAP": str(place / "map"), "MUTANTS_CODE": str(recording)}
        imported = shlex.join(map(str, (copy / "src", ROOT / "tests", ROOT)))
        command = [
            sys.executable, "-m", "pytest", "-p", "mutants_plugin", "-p", "no:cacheprovider",
            "-p", "no:xdist", "-o", f"pythonpath={imported}", "--tb=no", "-rfE", "--hypothesis-seed=0",
            *options, *files,
        ]  # fmt: skip
        status, said = _run(command, environ, seconds)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    tests = [Ran(*line) for line in lines if isinstance(line, list)]
    return Outcome(status, "begin" in lines, "end" in lines, tests, said)


def stop_all() -> None:
    """Stop the runs of other threads. Each of them kills the processes of its run."""
    for process in list(_running):
        process.kill()


def _environ(place: Path, copy: Path) -> dict[str, str]:
    temporary = place / "t"
    temporary.mkdir()
    temporary.chmod(0o1777)  # as /tmp: processes of other users write here too
    return os.environ | {
        "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{ROOT / 'mutants' / 'site'}",
        "PYTHONDONTWRITEBYTECODE": "",
        "TMPDIR": str(temporary),
        "PYTEST_DEBUG_TEMPROOT": str(temporary),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(place / "h"),
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
        _kill_all(environ[_MARK])
        process.kill()
        process.wait()
        _running.discard(process)
        assert process.stdout is not None
        process.stdout.close()
    return status, said.decode(errors="replace")


def sweep() -> None:
    """End the processes and delete the folders of runs whose own process was killed."""
    for process in Path("/proc").glob("[0-9]*"):
        if any(map(_is_orphaned, _NAME.findall(_words(process)))):
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        if _is_orphaned(path.name):
            _remove(path)


def _is_orphaned(name: str) -> bool:
    """Return whether the process that made a folder with this name is gone."""
    pid = name.removeprefix(_PREFIX).partition("-")[0]
    return pid.isdigit() and not Path("/proc", pid).exists()


def _kill_all(name: str) -> None:
    """Kill the processes of the folder with this name, and wait until they are gone."""
    for _ in range(_ROUNDS):
        found = [int(one.name) for one in Path("/proc").glob("[0-9]*") if name in _words(one)]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_SECONDS_TO_DIE)


def _words(process: Path) -> str:
    """Return the arguments and variables of a process. A program that drops one of them keeps the other."""
    try:
        return "".join((process / part).read_text(errors="replace") for part in ("cmdline", "environ"))
    except OSError:
        return ""  # it ended, or is another user's
