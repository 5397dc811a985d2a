"""The gateway's side of `workspace.guardian`, which ends commands of shells when a leash ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from talaria.workspace import guardian
from talaria.workspace.sandbox.process import SandboxedProcess
from talaria.workspace.shim import start_time
from talaria.workspace.watched_process import until_readable

_log = logging.getLogger("talaria.tools")


class CommandGuard:
    """Starts the program with the first command, and tells it of each. If the program is gone, the next
    command starts another."""

    def __init__(self, leash: Path) -> None:
        self.leash = leash
        self._program: subprocess.Popen[bytes] | None = None
        self._link = -1

    @contextmanager
    def watching(self, process: SandboxedProcess) -> Iterator[None]:
        """Have the command ended when the leash ends inside the block."""
        pid, start, ends_all = process.pid, start_time(process.pid), process.ends_all
        self._tell(guardian.make_record(b"+", pid, start, ends_all))
        try:
            yield
        finally:
            self._tell(guardian.make_record(b"-", pid, start, ends_all))

    async def close(self) -> None:
        """End the program, and wait for it."""
        program, self._program = self._program, None
        if program is not None:
            os.close(self._link)
            pidfd = os.pidfd_open(program.pid)
            try:
                await until_readable(pidfd)
            finally:
                os.close(pidfd)
            program.wait()

    def _tell(self, record: bytes) -> None:
        try:
            if self._program is None or self._program.poll() is not None:
                self._start()
            os.write(self._link, record)  # whole, since it is short
        except OSError as error:
            _log.warning("a command is not ended if this gateway is cut off: %s", error)

    def _start(self) -> None:
        if self._program is not None:
            os.close(self._link)
        theirs, self._link = os.pipe()
        os.set_blocking(self._link, False)
        folder = str(Path(guardian.__file__).parent)
        words = (sys.executable, "-I", "-S", "-c", guardian.START, folder, str(theirs), str(self.leash))
        try:
            self._program = subprocess.Popen(  # noqa: S603 - what it is for
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except OSError:
            os.close(self._link)
            raise
        finally:
            os.close(theirs)
