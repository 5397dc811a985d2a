"""A chat's folder, and file operations that cannot leave it.

A path is first made lexical (no `..`, no other root), then walked one component at a time: each folder is
opened relative to its parent's descriptor with O_NOFOLLOW. The descriptor that was checked is the one that is
used, so a link that is swapped in meanwhile is never followed. Where the kernel has openat2, it walks by the
same rules in one call. Links are refused even when they point inside: a rule without exceptions leaves
nothing for a race to bend. A file with a second name (a hard link) is refused too, since that name may be
outside. Files are opened without blocking and must be regular. A write goes to a new file that is renamed
over the old one, so nothing is written *through* a name; it gets the old one's permissions and owner. New
folders and files belong to one user alone (0700, 0600), whatever the umask says: the gateway's, and as root
the owner of the folder in which they are made, who is the user of the chat's commands. In a project's folder
their permissions follow the umask.

Every function here blocks. Every failure that a model could cause is a `ToolError`.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import posixpath
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from io import BufferedReader
from itertools import islice, takewhile
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from talaria.core.errors import ToolError
from talaria.core.files import PRIVATE
from talaria.core.ids import ChatKey, asking_chat
from talaria.core.slots import Pace
from talaria.core.text import NOT_IN_LINES, printable
from talaria.core.units import format_size
from talaria.workspace.quota import FolderQuota
from talaria.workspace.rights import PRIVATE_FOLDER, find_openat2, give, keep_rights, make_folder, new_owner

MAX_READ_BYTES = 64 << 20
MAX_WRITE_BYTES = 16 << 20

_MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 64
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = _ROOT | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o600
_OPEN_FILE_MODE = 0o666
_UNFIT = re.compile(f"[{NOT_IN_LINES}]")
_RELATIVE_HINT = "Paths are relative to the chat's folder."
_NOT_REGULAR_HINT = "Pipes, sockets and devices cannot be used."


@lru_cache(4096)
def chat_name(key: ChatKey) -> str:
    """Return the name of a chat's folders. Distinct keys have distinct names, also when a name is cut. A job
    works on the files of the chat that asked for it."""
    key = asking_chat(key)
    name = quote(key, safe="")
    if len(name) > 200 or name.startswith("."):
        name = f"{name.lstrip('.')[:120]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    return name


def files_folder(base: Path) -> Path:
    """Return the folder of all chats' folders in a home, or in a folder that several gateways share."""
    return base / "files"


def chat_folder(base: Path, key: ChatKey) -> Path:
    """Return the folder of a chat's files."""
    return files_folder(base) / chat_name(key)


def count_chat_folders(home: Path) -> int:
    """Return how many chats have files in this home."""
    try:
        folders = [each for each in files_folder(home).iterdir() if not each.name.startswith(".")]
        return sum(any(folder.iterdir()) for folder in folders if folder.is_dir())
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class FolderPath:
    """A path inside a folder, already lexical: no part is empty, `.` or `..`."""

    parts: tuple[str, ...]

    @property
    def is_root(self) -> bool:
        return not self.parts

    @property
    def is_private(self) -> bool:
        return self.parts[:1] == (PRIVATE,)

    @property
    def parent(self) -> FolderPath:
        return FolderPath(self.parts[:-1])

    @property
    def name(self) -> str:
        return self.parts[-1]

    def __truediv__(self, name: str) -> FolderPath:
        return FolderPath((*self.parts, name))

    def __str__(self) -> str:
        return printable("/".join(self.parts)) or "."


class FileKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FolderItem:
    """An item of a folder. Links are not followed."""

    name: str
    kind: FileKind
    size: int = 0
    modified_at: float = 0.0


class Folder:
    """The folder at `root`, made when it is first needed. Links above it are the operator's choice.

    Writes are counted by `quota`, if there is one. With `by_kernel` paths are walked by openat2 where the
    kernel has it. A project's folder is not `private`: others may read what is new in it, as the umask says.
    """

    def __init__(
        self, root: Path, quota: FolderQuota | None = None, *, by_kernel: bool = True, private: bool = True
    ) -> None:
        self._quota = quota
        self._is_private = private
        self._open_below = find_openat2() if by_kernel else None
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - lexical: links in the root are followed

    def resolve(self, path: str) -> FolderPath:
        """Make a model's path lexical. Raises `ToolError` if it leaves the folder or cannot exist."""
        shown = printable(path[:200])
        if _UNFIT.search(path):
            raise ToolError(f"{shown!r} has characters that no path should have.", _RELATIVE_HINT)
        if len(path.encode()) > _MAX_PATH_BYTES:
            raise ToolError(f"The path {shown}… is too long.")
        parts = self._relative(path)
        if parts is None:
            raise ToolError(f"{shown} is outside the chat's folder.", _RELATIVE_HINT)
        if len(parts) > _MAX_DEPTH or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
            raise ToolError(f"The path {shown} has too many parts, or one that is too long.")
        return FolderPath(parts)

    def _relative(self, path: str) -> tuple[str, ...] | None:
        """Return the parts of the path below the root; None if it leads out of it."""
        if not path.startswith("/"):
            normal = posixpath.normpath(path or ".")
            parts = () if normal == "." else tuple(normal.split("/"))
            return None if path.startswith("~") or parts[:1] == ("..",) else parts
        normal = posixpath.normpath("/" + path.lstrip("/"))
        for root in (str(self.root), os.path.realpath(self.root)):
            if normal == root:
                return ()
            if normal.startswith(root.rstrip("/") + "/"):
                return tuple(normal[len(root.rstrip("/")) + 1 :].split("/"))
        return None

    def open(self, path: FolderPath, max_bytes: int = MAX_READ_BYTES) -> BufferedReader:
        """Open a regular file for reading. The caller closes it. Raises `ToolError` if it is larger than
        `max_bytes`."""
        with self._parent(path) as parent, _explained(path):
            descriptor = os.open(path.name, _READ, dir_fd=parent)
            try:
                status = os.fstat(descriptor)
                _need_regular(path, status, max_bytes)
            except BaseException:
                os.close(descriptor)
                raise
        return os.fdopen(descriptor, "rb")

    def read(self, path: FolderPath, max_bytes: int = MAX_READ_BYTES) -> bytes:
        with self.open(path, max_bytes) as file, _explained(path):
            return file.read(max_bytes + 1)[:max_bytes]

    def write(self, path: FolderPath, data: bytes, max_bytes: int = MAX_WRITE_BYTES) -> bool:
        """Replace the content of a file, or make it with its parent folders. Return True if it is new.

        Readers see the old content or the new one, never a mix. An existing file keeps its permissions.
        Raises `ToolError`; `FolderFull` if the chat's folder has no room.
        """
        if len(data) > max_bytes:
            limit = format_size(max_bytes)
            raise ToolError(f"{format_size(len(data))} is too much for one file.", f"The limit is {limit}.")
        with self._parent(path, make=True) as parent, _explained(path):
            old = _status_of(path, parent)
            mode = _FILE_MODE if self._is_private or path.is_private else _OPEN_FILE_MODE
            with self._charged(len(data) - (old.st_size if old else 0), 0 if old else 1):
                _replace(parent, path.name, data, old or mode)
        return old is None

    def create(self, path: FolderPath) -> BinaryIO:
        """Make a new file to be written piece by piece, in the place of one that is there. The caller closes
        it, and tells `charge` of what it writes. Raises `ToolError`."""
        with self._parent(path, make=True) as parent, _explained(path), self._charged(0, 1):
            if _status_of(path, parent) is not None:
                os.unlink(path.name, dir_fd=parent)
            descriptor = os.open(path.name, _CREATE, _FILE_MODE, dir_fd=parent)
            try:
                give(descriptor, new_owner(os.fstat(parent)))
                return os.fdopen(descriptor, "wb", buffering=0)
            except BaseException:
                os.close(descriptor)
                raise

    def charge(self, size: int) -> None:
        """Count so many more bytes in this folder. Raises `FolderFull`."""
        if self._quota is not None:
            self._quota.charge(self.root, size, 0)

    @contextmanager
    def _charged(self, size: int, files: int) -> Iterator[None]:
        if self._quota is None:
            yield
            return
        self._quota.charge(self.root, size, files)
        try:
            yield
        except BaseException:
            self._quota.refund(self.root, size, files)
            raise

    def remove(self, path: FolderPath) -> None:
        """Remove a file, if it is there."""
        with self._parent(path) as parent, _explained(path), suppress(FileNotFoundError):
            size = os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_size
            os.unlink(path.name, dir_fd=parent)
            if self._quota is not None:
                self._quota.refund(self.root, size, 1)

    def remove_folder(self, path: FolderPath) -> None:
        """Remove a folder, if it is there and empty."""
        with self._parent(path) as parent, suppress(OSError):
            os.rmdir(path.name, dir_fd=parent)
            if self._quota is not None:
                self._quota.refund(self.root, 0, 1)

    def scan(self, path: FolderPath, limit: int, pace: Pace | None = None) -> list[FolderItem]:
        """Return at most `limit` items of a folder, sorted by name; fewer if `pace` ends the work."""
        with self._directory(path) as descriptor, _explained(path), os.scandir(descriptor) as entries:
            wanted: Iterator[os.DirEntry[str]] = islice(entries, limit)
            if pace is not None:
                wanted = takewhile(lambda entry: pace.may_go_on(), wanted)
            return sorted(map(_item, wanted), key=attrgetter("name"))

    def exists(self, path: FolderPath) -> bool:
        """Return whether there is anything under this name, a link included."""
        with self._parent(path) as parent, _explained(path):
            try:
                os.stat(path.name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return False
        return True

    def has(self, path: FolderPath, data: bytes) -> bool:
        """Return whether this is a regular file with exactly this content."""
        try:
            with self.open(path, len(data)) as file:
                return file.read(len(data) + 1) == data
        except ToolError:
            return False

    def is_file(self, path: FolderPath) -> bool:
        """Return whether this is a regular file. Raises `ToolError` if there is nothing."""
        if path.is_root:
            return False
        with self._parent(path) as parent, _explained(path):
            return stat.S_ISREG(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode)

    @contextmanager
    def _parent(self, path: FolderPath, *, make: bool = False) -> Iterator[int]:
        if path.is_root:
            raise ToolError("The path names the chat's folder itself, not a file in it.")
        with self._directory(path.parent, make=make) as descriptor:
            yield descriptor

    @contextmanager
    def _directory(self, path: FolderPath, *, make: bool = False) -> Iterator[int]:
        """Open a folder inside by the kernel's own walk, or one descriptor at a time."""
        with _explained(path):
            descriptor = self._open_root()
        try:
            if (found := self._find_below(descriptor, path)) is not None:
                os.close(descriptor)
                descriptor = found
            else:
                for depth, name in enumerate(path.parts, start=1):
                    with _explained(FolderPath(path.parts[:depth])):
                        mode = PRIVATE_FOLDER if self._is_private or path.is_private else None
                        inner = self._enter(descriptor, name, mode, make=make)
                    os.close(descriptor)
                    descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _find_below(self, root: int, path: FolderPath) -> int | None:
        """Return a descriptor of the folder; None if the walk has to say what is wrong, or to make it."""
        if self._open_below is None or path.is_root:
            return None
        try:
            return self._open_below(root, "/".join(path.parts))
        except OSError:
            return None

    def _enter(self, parent: int, name: str, mode: int | None, *, make: bool) -> int:
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
        with self._charged(0, 1), suppress(FileExistsError):
            make_folder(name, parent, mode)
        return os.open(name, _FOLDER, dir_fd=parent)

    def _open_root(self) -> int:
        with suppress(FileNotFoundError):
            return os.open(self.root, _ROOT)
        for folder in (self.root, *self.root.parents)[::-1]:
            with suppress(FileExistsError):
                make_folder(str(folder))
        return os.open(self.root, _ROOT)


def _replace(parent: int, name: str, data: bytes, like: os.stat_result | int) -> None:
    """Write a new file, with the rights of an old one or a mode, and rename it to `name`. After an error
    nothing is left of it."""
    unfinished = f"{PRIVATE}-{secrets.token_hex(8)}"
    mode = like if isinstance(like, int) else _FILE_MODE
    try:
        descriptor = os.open(unfinished, _CREATE, mode, dir_fd=parent)
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(like, int):
                give(descriptor, new_owner(os.fstat(parent)))
                if mode == _FILE_MODE:
                    os.fchmod(descriptor, mode)
            else:
                keep_rights(descriptor, like)
            file.write(data)
        os.replace(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=parent)
        raise


def _status_of(path: FolderPath, parent: int) -> os.stat_result | None:
    """Return the status of a regular file that is about to be replaced; None if there is no file yet."""
    try:
        status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _need_regular(path, status)
    return status


def _item(entry: os.DirEntry[str]) -> FolderItem:
    if entry.is_symlink():
        return FolderItem(entry.name, FileKind.LINK)
    if entry.is_dir(follow_symlinks=False):
        return FolderItem(entry.name, FileKind.FOLDER)
    if not entry.is_file(follow_symlinks=False):
        return FolderItem(entry.name, FileKind.OTHER)
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed since it was listed
        return FolderItem(entry.name, FileKind.OTHER)
    return FolderItem(entry.name, FileKind.FILE, status.st_size, status.st_mtime)


def _need_regular(path: FolderPath, status: os.stat_result, max_bytes: float = math.inf) -> None:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(mode):
        raise ToolError(f"{path} is not a regular file.", _NOT_REGULAR_HINT)
    if status.st_nlink > 1:
        raise ToolError(
            f"{path} is a hard link: the same file has another name, maybe outside the chat's folder.",
            "Use a file that has one name only.",
        )
    if status.st_size > max_bytes:
        raise ToolError(f"{path} has {format_size(status.st_size)}: too large for this tool.")


@contextmanager
def _explained(path: FolderPath) -> Iterator[None]:
    """Raise an `OSError` as a `ToolError` about `path`."""
    try:
        yield
    except OSError as error:
        raise _explain(path, error) from error


def _explain(path: FolderPath, error: OSError) -> ToolError:
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
            return ToolError(f"{path} is not a regular file.", _NOT_REGULAR_HINT)
        case _:
            return ToolError(f"{path}: {os.strerror(error.errno or errno.EIO)}.")
