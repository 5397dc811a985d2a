from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove
from talaria.workspace.sandbox.command import ProcessLimits, Sandbox, SandboxCommand, hand_over, shell
from talaria.workspace.sandbox.landlock import LandlockSandbox, NoSandbox

PYTHON = os.path.realpath(sys.executable)
PREFIX = Path(os.path.realpath(sys.base_prefix))
PATIENT = ProcessLimits(seconds=100)
CONFINING: tuple[Sandbox, ...] = (BubblewrapSandbox(), LandlockSandbox())
ALL: tuple[Sandbox, ...] = (*CONFINING, NoSandbox())


@dataclass(frozen=True)
class Places:
    """The folders of one chat."""

    folder: Path
    home: Path
    tmp: Path

    def command(self, *argv: str, limits: ProcessLimits = PATIENT, **options: object) -> SandboxCommand:
        words = shell(argv[0]) if len(argv) == 1 else argv
        return SandboxCommand(words, self.folder, self.home, self.tmp, limits=limits, **options)  # type: ignore[arg-type]

    def python(self, text: str, limits: ProcessLimits = PATIENT) -> SandboxCommand:
        return self.command(PYTHON, "-I", "-S", "-c", text, readable=(PREFIX,), limits=limits)


@dataclass(frozen=True)
class Holders:
    """Tells whether a process that has opened this FIFO to write still lives, in any namespace."""

    path: Path
    fd: int

    def alive(self) -> bool:
        try:
            while os.read(self.fd, 1024):
                pass
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(*(tmp_path / name for name in ("chat", "home", "tmp")))
    for path in (found.folder, found.home, found.tmp):
        path.mkdir()
    hand_over((found.folder, found.home, found.tmp))
    return found


@pytest.fixture
def holders(places: Places) -> Iterator[Holders]:
    path = places.folder / "held"
    os.mkfifo(path)
    path.chmod(0o666)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield Holders(path, fd)
    assert not Holders(path, fd).alive()
    os.close(fd)


@pytest.fixture(params=CONFINING, ids=lambda sandbox: sandbox.name)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each backend that confines."""
    return _present(request.param)


@pytest.fixture(params=ALL, ids=lambda sandbox: sandbox.name)
def any_sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each backend, the one that confines nothing included."""
    return _present(request.param)


def _present(sandbox: Sandbox) -> Sandbox:
    if sys.platform != "linux":
        pytest.skip("sandboxes are for Linux")
    if not isinstance(sandbox, NoSandbox) and (reason := _checked(sandbox)):
        pytest.skip(f"{sandbox.name}: {reason}")
    return sandbox


_REASONS: dict[str, str] = {}


def _checked(sandbox: Sandbox) -> str:
    """Return why this machine cannot run the backend at all; empty if it can. What the backend holds is for
    the tests to say."""

    def attempt() -> None:  # in a thread, because a test's loop may run in this one
        _REASONS[sandbox.name] = asyncio.run(prove(sandbox, Path("/nowhere"))).why_not

    if sandbox.name not in _REASONS:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    return _REASONS[sandbox.name]
