"""The leash of a place: until when its commands and background processes may run without news of the cluster.

Others take the chats of a member over when it could not renew its time, and the files and processes of its
place after a longer one. By then its own commands must have ended, even if this process is stopped, held or
dead. So the moments are in a file of the home, which the keepers of commands and processes read by
themselves: two numbers of 8 bytes, in nanoseconds since the boot, the first for commands, the second for
background processes. Without the file there is no cluster, and no limit.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Lock
from typing import Final

from talaria.core.clock import HELD_SHARE

LEASH_FILE: Final = "leash"
_PROCESSES_SHARE: Final = 0.9  # of the time after which a place is gone; the rest is for ending them


class Leash:
    """The file, written by the member of the place. `extend` may be called in any thread."""

    def __init__(self, home: Path, lease_seconds: float, takeover_seconds: float) -> None:
        """Raises `OSError`."""
        self.path = home / LEASH_FILE
        self._commands = lease_seconds * HELD_SHARE
        self._processes = takeover_seconds * _PROCESSES_SHARE
        self._lock = Lock()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def now(self) -> float:
        """Return the time since the boot, to be taken before a renewal is asked for."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def extend(self, began: float) -> None:
        """The member's time was renewed, by a request that began then."""
        self._write(began + self._commands, began + self._commands + self._processes)

    def shorten(self, began: float) -> None:
        """The member leaves, by a request that begins then: the place may be gone earlier by a lease."""
        self._write(began, began + self._processes)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            os.close(self._file)
            self._file = -1

    def _write(self, *moments: float) -> None:
        numbers = b"".join(round(each * 1e9).to_bytes(8, "little") for each in moments)
        with self._lock:
            if self._file >= 0:
                os.pwrite(self._file, numbers, 0)  # once, so that a reader sees both numbers or neither


def remove_leash(home: Path) -> None:
    """Let the processes of a home run without a limit, since its gateway is in no cluster any more."""
    (home / LEASH_FILE).unlink(missing_ok=True)
