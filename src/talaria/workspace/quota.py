"""The room that the files of one chat may take, and how much of it is used."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from talaria.core.errors import ToolError
from talaria.core.limits import BoundedDict, Limits
from talaria.core.slots import Pace
from talaria.core.units import format_size

_KEPT_FOLDERS = 1024
_MEASURED_AGAIN_SECONDS = 600.0
_REFUSED_AGAIN_SECONDS = 5.0  # files may have been removed since
_CPU_SECONDS = 5.0


class FolderFull(ToolError):
    """The chat's folder has no room for a file."""


@dataclass(slots=True)
class _Use:
    """The use of one folder, measured at `measured_at` and counted since."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    size: int = 0
    files: int = 0
    measured_at: float = -math.inf


class FolderQuota:
    """Accounts for the folders of chats against `limits.chat_files` and `limits.chat_file_count`.

    A folder is measured when it is first written to, and now and then afterwards, because files also come
    and go by other ways. Writes in between are counted. All methods block and may be called in any thread.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._uses: BoundedDict[Path, _Use] = BoundedDict(_KEPT_FOLDERS)
        self._limits.watch("chat_files", lambda: max((use.size for use in self._known()), default=0))
        self._limits.watch("chat_file_count", lambda: max((use.files for use in self._known()), default=0))

    def charge(self, root: Path, size: int, files: int) -> None:
        """Count so many more bytes and files. Raises `FolderFull`, and counts nothing, if there is no room.

        A use that does not grow is never refused.
        """
        use = self._use(root)
        with use.lock:
            if time.monotonic() - use.measured_at > _MEASURED_AGAIN_SECONDS:
                self._measure(root, use)
            full = self._full(use, size, files)
            if full and time.monotonic() - use.measured_at > _REFUSED_AGAIN_SECONDS:
                self._measure(root, use)
                full = self._full(use, size, files)
            if full:
                held = f"{format_size(use.size)} in {use.files} files"
                raise FolderFull(f"The chat's folder is full: it has {held}.", self._limits.refuse(full))
            use.size += size
            use.files += files

    def refund(self, root: Path, size: int, files: int) -> None:
        """Take back a charge whose write failed, or count what was removed."""
        use = self._use(root)
        with use.lock:
            use.size -= size
            use.files -= files

    def _full(self, use: _Use, size: int, files: int) -> str:
        """Return the key of the limit that forbids so much more; empty if there is room."""
        if size > 0 and use.size + size > self._limits.now.chat_files:
            return "chat_files"
        if files > 0 and use.files + files > self._limits.now.chat_file_count:
            return "chat_file_count"
        return ""

    def _use(self, root: Path) -> _Use:
        with self._lock:
            use = self._uses[root] = self._uses.get(root) or _Use()
            return use

    def _known(self) -> list[_Use]:
        with self._lock:
            return list(self._uses.values())

    def _measure(self, root: Path, use: _Use) -> None:
        use.size, use.files = measure(root, self._limits.now.chat_file_count)
        use.measured_at = time.monotonic()


def measure(root: Path, most_files: int) -> tuple[int, int]:
    """Return the bytes of all files below `root`, and the number of files and folders.

    Links are not followed. Counting ends soon after `most_files`.
    """
    size = count = 0
    pace = Pace(_CPU_SECONDS)
    pending = [str(root)]
    while pending and count <= most_files:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                count += 1
                if not pace.may_go_on():
                    return size, count
                with suppress(OSError):  # removed since it was listed
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
    return size, count
