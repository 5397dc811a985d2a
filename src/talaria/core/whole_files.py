"""Small files that are written as a whole, so that no reader sees a part of one, and locks between processes.
`JsonFile` keeps a value in such a file.

Everything here blocks and raises `OSError`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
Stamp: TypeAlias = tuple[int, int, int] | None
_LARGEST: Final = 256 << 20  # bytes of a JSON file


def replace_file(path: Path, data: bytes, mode: int = 0o600, *, is_durable: bool = True) -> None:
    """Replace the file as a whole, or not at all. A kill can leave a file whose name begins with a dot. With
    `is_durable` the content is on the disk before it gets the name."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        write_new(fresh, data, mode, is_durable=is_durable)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_new(path: Path, data: bytes, mode: int = 0o600, *, is_durable: bool = True) -> None:
    """Write a new file that has `mode` from its first byte on. Raises `FileExistsError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        if is_durable:
            file.flush()
            os.fsync(descriptor)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_file(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Lock a file, which is created if it is missing, against all other threads and processes.

    Blocks while another one has the lock; without `waits` it yields False instead. The kernel releases the
    lock when its process ends.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def stamp_of(path: Path | str) -> Stamp:
    """Return a value that changes when the file is written; None if there is no such file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - for each message, and several times as fast
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class JsonFile(Generic[T]):
    """A value of the type `kind` in a JSON file that several processes change. `kind()` is the value of a
    missing file. For a file that cannot be read, `damaged` raises an error or returns a value.
    """

    def __init__(
        self, path: Path, kind: type[T], damaged: Callable[[Path, Exception], T], lock: str = ".lock"
    ) -> None:
        """`lock` is the name of the lock file in the same folder."""
        self._path = path
        self._kind = kind
        self._damaged = damaged
        self._lock = path.with_name(lock)

    def read(self) -> T:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_LARGEST), type=self._kind)
        except (FileNotFoundError, NotADirectoryError):
            return self._kind()
        except (OSError, ValueError) as error:  # a decoding error is a ValueError
            return self._damaged(self._path, error)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if it is missing, and let one process change the file at a time."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock_file(self._lock):
            yield

    @contextmanager
    def editing(self) -> Iterator[T]:
        """Yield the value and write it if the block has changed it and raises nothing. The caller has the
        lock."""
        value = self.read()
        before = msgspec.json.encode(value, order="deterministic")
        yield value
        after = msgspec.json.encode(value, order="deterministic")
        if after != before:
            replace_file(self._path, msgspec.json.format(after) + b"\n")

    @contextmanager
    def changing(self) -> Iterator[T]:
        """Like `editing`, under the lock."""
        with self.locked(), self.editing() as value:
            yield value
