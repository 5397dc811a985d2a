"""A chat's folder, and file operations that cannot leave it.

A path is first made lexical (no `..`, no other root), then walked one component at a time: each folder is
opened relative to its parent's descriptor with O_NOFOLLOW. What was checked is what is used, so a link that
is swapped in between the two finds nobody to follow it. Links are refused even when they point inside: a
rule without exceptions is one that a race cannot bend. Files are opened without blocking and must be regular
ones. Writes go to a new file that is renamed over the old one, so nothing is ever written *through* a name.

Everything here blocks; every failure that a model could cause is a `ToolError`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedReader
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey
from talaria.core.units import format_size

PRIVATE = ".talaria"
"""What the gateway keeps inside a chat's folder; also the prefix of unfinished files."""

MAX_READ_BYTES = 64 << 20
MAX_WRITE_BYTES = 16 << 20

_MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # half surrogate pairs too
_RELATIVE_HINT = "Paths are relative to the chat's folder."


def chat_folder(home: Path, key: ChatKey) -> Path:
    """Where the files of a chat live. Distinct keys have distinct folders, also when a name must be cut."""
    name = quote(key, safe="")
    if len(name) > 200 or name.startswith("."):
        name = f"{name.lstrip('.')[:120]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    return home / "files" / name


@dataclass(frozen=True, slots=True)
class Inside:
    """A path inside a folder, already lexical: no part is empty, `.` or `..`."""

    parts: tuple[str, ...]

    @property
    def is_root(self) -> bool:
        return not self.parts

    @property
    def is_private(self) -> bool:
        return bool(self.parts) and self.parts[0] == PRIVATE

    @property
    def parent(self) -> Inside:
        return Inside(self.parts[:-1])

    @property
    def name(self) -> str:
        return self.parts[-1]

    def __truediv__(self, name: str) -> Inside:
        return Inside((*self.parts, name))

    def __str__(self) -> str:
        return printable("/".join(self.parts)) or "."


class Kind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Item:
    """One name in a folder, as it is without following anything."""

    name: str
    kind: Kind
    size: int = 0
    modified_at: float = 0.0


class Folder:
    """The folder at `root`, made (0700) when it is first needed. Where it is, is the operator's choice."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - lexical: links in the root are the operator's

    def resolve(self, path: str) -> Inside:
        """Make a model's path lexical. Raises `ToolError` when it leaves the folder or cannot exist."""
        shown = printable(path[:200])
        if _UNPRINTABLE.search(path):
            raise ToolError(f"{shown!r} has characters that no path should have.", _RELATIVE_HINT)
        if len(path.encode()) > _MAX_PATH_BYTES:
            raise ToolError(f"The path {shown}… is too long.")
        if path.startswith("~"):
            raise ToolError(f"{shown} is outside the chat's folder.", _RELATIVE_HINT)
        parts = self._relative(path, shown)
        if len(parts) > _MAX_DEPTH or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
            raise ToolError(f"The path {shown} has too many parts, or one that is too long.")
        return Inside(parts)

    def _relative(self, path: str, shown: str) -> tuple[str, ...]:
        if not path.startswith("/"):
            normal = posixpath.normpath(path or ".")
            parts = () if normal == "." else tuple(normal.split("/"))
            if parts[:1] == ("..",):
                raise ToolError(f"{shown} is outside the chat's folder.", _RELATIVE_HINT)
            return parts
        normal = posixpath.normpath("/" + path.lstrip("/"))
        for root in (str(self.root), os.path.realpath(self.root)):
            if normal == root:
                return ()
            if normal.startswith(root.rstrip("/") + "/"):
                return tuple(normal[len(root.rstrip("/")) + 1 :].split("/"))
        raise ToolError(f"{shown} is outside the chat's folder.", _RELATIVE_HINT)

    @contextmanager
    def open(self, path: Inside, max_bytes: int = MAX_READ_BYTES) -> Iterator[BufferedReader]:
        """A regular file for reading; refused when it is larger than `max_bytes`."""
        _need_name(path)
        with self._directory(path.parent) as parent, _explained(path):
            descriptor = _open_regular(path, max_bytes, parent)
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def read(self, path: Inside, max_bytes: int = MAX_READ_BYTES) -> bytes:
        with self.open(path, max_bytes) as file, _explained(path):
            return file.read(max_bytes + 1)[:max_bytes]

    def write(self, path: Inside, data: bytes, max_bytes: int = MAX_WRITE_BYTES) -> bool:
        """Replace the file's content whole, or make it with its parent folders. True: it is new.

        Readers see the old content or the new, never a mix. An existing file keeps its permissions.
        """
        _need_name(path)
        if len(data) > max_bytes:
            limit = format_size(max_bytes)
            raise ToolError(f"{format_size(len(data))} is too much for one file.", f"The limit is {limit}.")
        with self._directory(path.parent, make=True) as parent, _explained(path):
            mode = _mode_of(path, parent)
            unfinished = f"{PRIVATE}-{secrets.token_hex(8)}"
            try:
                _create(unfinished, data, mode, parent)
                os.replace(unfinished, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(unfinished, dir_fd=parent)
                raise
        return mode is None

    def remove(self, path: Inside) -> None:
        """Remove a file; no such file is fine."""
        _need_name(path)
        with self._directory(path.parent) as parent, suppress(FileNotFoundError), _explained(path):
            os.unlink(path.name, dir_fd=parent)

    def scan(self, path: Inside, limit: int) -> list[Item]:
        """What the folder holds, sorted by name: at most `limit` items."""
        with self._directory(path) as descriptor, _explained(path), os.scandir(descriptor) as entries:
            return sorted((_item(entry) for entry in islice(entries, limit)), key=lambda item: item.name)

    def is_file(self, path: Inside) -> bool:
        """Whether a regular file is there. Raises `ToolError` when nothing is."""
        if path.is_root:
            return False
        with self._directory(path.parent) as parent, _explained(path):
            return stat.S_ISREG(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode)

    @contextmanager
    def _directory(self, path: Inside, *, make: bool = False) -> Iterator[int]:
        """Walk to a folder inside, one descriptor at a time."""
        with _explained(path):
            descriptor = self._open_root()
        try:
            for depth, name in enumerate(path.parts, start=1):
                with _explained(Inside(path.parts[:depth])):
                    inner = _enter(descriptor, name, make=make)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_root(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return os.open(self.root, flags)
        except FileNotFoundError:
            _make_private(self.root)
            return os.open(self.root, flags)


def printable(text: str) -> str:
    """`text` on one line that any sink can encode: control characters are written as their escapes."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _make_private(folder: Path) -> None:
    for parent in (folder, *folder.parents)[::-1]:
        with suppress(FileExistsError):
            parent.mkdir(mode=0o700)


def _enter(parent: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    except NotADirectoryError:
        # Linux says so for links too.
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _open_regular(path: Inside, max_bytes: int, parent: int) -> int:
    descriptor = os.open(path.name, _READ, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        _need_regular(path, status.st_mode)
        _need_size(path, status.st_size, max_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create(name: str, data: bytes, mode: int | None, parent: int) -> None:
    descriptor = os.open(name, _CREATE, 0o666, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        if mode is not None:
            os.fchmod(descriptor, mode)


def _mode_of(path: Inside, parent: int) -> int | None:
    """The permissions of a regular file that is about to be replaced; None when there is no file yet."""
    try:
        mode = os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    _need_regular(path, mode)
    return stat.S_IMODE(mode) & 0o777


def _item(entry: os.DirEntry[str]) -> Item:
    if entry.is_symlink():
        return Item(entry.name, Kind.LINK)
    if entry.is_dir(follow_symlinks=False):
        return Item(entry.name, Kind.FOLDER)
    if not entry.is_file(follow_symlinks=False):
        return Item(entry.name, Kind.OTHER)
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed since it was listed
        return Item(entry.name, Kind.OTHER)
    return Item(entry.name, Kind.FILE, status.st_size, status.st_mtime)


def _need_name(path: Inside) -> None:
    if path.is_root:
        raise ToolError("The path names the chat's folder itself, not a file in it.")


def _need_regular(path: Inside, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(mode):
        raise ToolError(f"{path} is not a regular file.", "Pipes, sockets and devices cannot be used.")


def _need_size(path: Inside, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ToolError(f"{path} has {format_size(size)}: too large for this tool.")


@contextmanager
def _explained(path: Inside) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explain(path, error) from error


def _explain(path: Inside, error: OSError) -> ToolError:
    match error.errno:
        case errno.ENOENT:
            return ToolError(f"There is no {path}.", "list_files shows what is there.")
        case errno.ELOOP:
            return ToolError(f"{path} is a symbolic link, which is not followed.", "Name the file itself.")
        case errno.ENOTDIR:
            return ToolError(f"{path} is not a folder.")
        case errno.EISDIR:
            return ToolError(f"{path} is a folder, not a file.", "list_files shows what is in it.")
        case errno.ENXIO:
            return ToolError(f"{path} is not a regular file.", "Pipes, sockets and devices cannot be used.")
        case _:
            return ToolError(f"{path}: {os.strerror(error.errno or errno.EIO)}.")
