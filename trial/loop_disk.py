"""A small ext4 file system on a loop device, whose disk a test fills, freezes, slows down or breaks.

Needs root and loop devices. A watchdog process thaws and unmounts the file system if its owner dies: a frozen
file system that is left behind would hold every process that touches it, and no signal ends those.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze", "findmnt", "e2fsck")
_CLEAN_UP = 'cat >/dev/null; fsfreeze -u "$0" 2>/dev/null; umount -l "$0" 2>/dev/null'

# Freezes and thaws until its standard input is closed.
_PULSE = """
import select, subprocess, sys
path, seconds = sys.argv[1], float(sys.argv[2])
ended = []
while not ended:
    subprocess.run(["fsfreeze", "-f", path])
    ended = select.select([sys.stdin], [], [], seconds)[0]
    subprocess.run(["fsfreeze", "-u", path])
    ended = ended or select.select([sys.stdin], [], [], 0.05)[0]
"""


def why_not() -> str:
    """Return why no file system can be mounted here; '' if one can."""
    if os.geteuid() != 0:
        return "only root can mount a loop device"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} is not installed"
    try:
        with LoopDisk(8):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no loop device can be mounted here: {error}"


class LoopDisk:
    """A mounted file system of `megabytes`. Leaving the block thaws, unmounts and deletes it.

    Every process that uses it must have ended by then.
    """

    def __init__(self, megabytes: int) -> None:
        self._megabytes = megabytes
        self._pulse: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="talaria-disk-"))
        self.path = self._folder / "mounted"
        self._image = self._folder / "image"
        self.path.mkdir()
        try:
            with self._image.open("wb") as file:
                file.truncate(self._megabytes << 20)
            _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
            self._watchdog = subprocess.Popen(
                ["sh", "-c", _CLEAN_UP, str(self.path)],
                stdin=subprocess.PIPE, cwd="/", start_new_session=True,
            )  # fmt: skip
            try:
                self._mount()
            except BaseException:
                self._watchdog.communicate()
                raise
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        try:
            _run("umount", str(self.path))
        finally:
            self._watchdog.communicate()
            shutil.rmtree(self._folder)

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))

    # -- faults

    def fill(self) -> None:
        """Take all the room."""
        with suppress(OSError), (self.path / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    def make_room(self) -> None:
        (self.path / "ballast").unlink()

    def freeze(self) -> None:
        """Let every write wait until `thaw`."""
        _run("fsfreeze", "-f", str(self.path))

    def thaw(self) -> None:
        """End a freeze, also one that slows the disk down. A disk that is not frozen is left as it is."""
        if self._pulse is not None:
            self._pulse.communicate()
            self._pulse = None
        with suppress(subprocess.CalledProcessError):
            _run("fsfreeze", "-u", str(self.path))

    def slow_down(self, seconds: float) -> None:
        """Let writes wait up to `seconds`, again and again, until `thaw`."""
        self._pulse = subprocess.Popen(
            [sys.executable, "-c", _PULSE, str(self.path), str(seconds)],
            stdin=subprocess.PIPE, cwd="/", start_new_session=True,
        )  # fmt: skip

    def fail(self) -> None:
        """Let the file system meet an error: from now on it can only be read, until `repair`."""
        device = subprocess.check_output(["findmnt", "-no", "SOURCE", str(self.path)], text=True).strip()
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Check and mount a file system that failed. No process may use it."""
        _run("umount", str(self.path))
        subprocess.run(["e2fsck", "-fy", str(self._image)], capture_output=True, check=False)
        self._mount()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
