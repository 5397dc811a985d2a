"""Where weights are kept: one folder for all homes of a user, each file named by its content's hash too."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from talaria.models.local.manifest import Weights

FOLDER_VARIABLE = "TALARIA_CACHE"
_PIECE = 1 << 20


class Cache(msgspec.Struct, frozen=True):
    """A file that stands under its final name was verified before it got there."""

    folder: Path

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> Cache:
        """TALARIA_CACHE, else `talaria` in the user's cache folder. Touches nothing on the disk."""
        if named := environ.get(FOLDER_VARIABLE):
            return cls(Path(named).expanduser().absolute())
        root = Path(environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '~'}/.cache")
        try:
            return cls(root.expanduser().absolute() / "talaria")
        except RuntimeError:  # nobody's home: a fetch says that it cannot write there, and what to do
            return cls(Path("/nonexistent/talaria"))

    def path(self, weights: Weights) -> Path:
        return self.folder / f"{weights.name}-{weights.sha256[:12]}.gguf"

    def partial(self, weights: Weights) -> Path:
        return self.path(weights).with_suffix(".partial")

    def workshop(self, weights: Weights) -> Path:
        """A folder for what is on its way; whoever has the lock may throw it away."""
        return self.path(weights).with_suffix(".work")

    def has(self, weights: Weights) -> bool:
        return size_of(self.path(weights)) == weights.size

    def free_bytes(self) -> int:
        folder = self.folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def remove(self, weights: Weights) -> int:
        """Also what was fetched in part; answers how many bytes are free now that were not."""
        freed = 0
        for path in (self.path(weights), self.partial(weights)):
            freed += size_of(path)
            path.unlink(missing_ok=True)
        shutil.rmtree(self.workshop(weights), ignore_errors=True)
        return freed

    @contextlib.contextmanager
    def locked(self, weights: Weights) -> Iterator[bool]:
        """Whether we have the lock: false while another process fetches. It is given back when we die."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self.path(weights).with_suffix(".lock")
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)


def size_of(path: Path) -> int:
    """Zero for a file that is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def digest(path: Path, is_over: Callable[[], bool] = lambda: False) -> str:
    """The file's SHA-256; may run in a thread, and stops early when nobody waits any more."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while not is_over() and (piece := file.read(_PIECE)):
            sha.update(piece)
    return sha.hexdigest()
