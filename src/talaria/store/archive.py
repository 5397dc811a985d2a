"""A home as one file: a compressed tar with a manifest that tells what must be in it.

It holds the database as a SQLite file, whatever engine it was saved from, `config.toml` without `store.url`,
the secrets of chat platforms, and the folders of chats, memory, skills and plug-ins. The HTTP token, the
variables of the service, logs and everything about the running process stay out; links and special files that
tools left in chats' folders are not followed and not kept. The manifest comes last, when everything has been
read once.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import secrets
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from talaria.core.errors import BadRequest, StoreError

DATABASE, CONFIG, MANIFEST = "talaria.db", "config.toml", "manifest.json"
FOLDERS = ("files", "memory", "skills", "plugins", "plugin-data")
SHARED = ("files", "memory")  # below `store.files`, if that is set
_READ_BY_COMMANDS = "skills/"  # what is below keeps its permissions
_FORMAT = 1
_SNAPSHOT = ".snapshot-"
_IN_MEMORY = 8 << 20
_LARGEST_MANIFEST = 256 << 20
_CHUNK = 1 << 20
_MAX_DEPTH = 100  # folders in folders; each of them needs a descriptor
_MAX_PARTS = 500  # of a name that is unpacked; earlier releases saved deeper folders
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Progress = Callable[[int, str], None]


class ArchiveMember(msgspec.Struct, frozen=True):
    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """`left_out` are links, special files, files that cannot be read, and folders that are nested too deeply.
    They are not in the archive. `place` is the id of the home, as chats name it that have files there;
    `elsewhere` are the keys of chats with files in other homes."""

    format: int
    version: str
    schema: int
    made_at: float
    members: tuple[ArchiveMember, ...]
    left_out: tuple[str, ...] = ()
    place: str = ""
    elsewhere: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)


def new_snapshot(home: Path) -> Path:
    """Return a new name for a copy of the database that exists only while a backup is made."""
    return home / f"{_SNAPSHOT}{secrets.token_hex(8)}.db"


def drop_snapshots(home: Path) -> None:
    """Delete copies that a killed backup has left. The caller holds the home's lock."""
    for path in home.glob(f"{_SNAPSHOT}*"):
        path.unlink(missing_ok=True)


# -- writing ----------------------------------------------------------------------------------------------


class Packing(msgspec.Struct, frozen=True):
    """The content of an archive: a `snapshot` of the database, and the other files of the home.

    `singles` are the names of further files, such as those with secrets of chat platforms. `config` is the
    content of config.toml, if it is not that of the home. `shared` is the folder of `store.files`. See
    `Manifest` for the others.
    """

    home: Path
    snapshot: Path
    version: str
    schema: int
    made_at: float
    singles: tuple[str, ...] = ()
    config: bytes | None = None
    shared: Path | None = None
    place: str = ""
    elsewhere: tuple[str, ...] = ()


def pack(packing: Packing, target: Path, *, overwrite: bool, on_progress: Progress) -> Manifest:
    """Write the archive (0600), read it back, and return its manifest. A half-written archive never has the
    target's name.

    Raises `StoreError`, and `BadRequest` for a target that is there and must not be replaced.
    """
    if target.exists() and not overwrite:
        raise BadRequest(f"{target} is there already.", "Name another file, or add --force to replace it.")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            manifest = _write(packing, file, on_progress)
            file.flush()
            os.fsync(file.fileno())
        _verify(draft, target, manifest)
        draft.replace(target)
    except OSError as error:
        raise StoreError(
            f"The backup {target} cannot be written: {error.strerror or error}.",
            "Name a file in a folder that you can write, with enough room.",
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def _write(packing: Packing, file: IO[bytes], on_progress: Progress) -> Manifest:
    members: list[ArchiveMember] = []
    left_out: list[str] = []
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=3, filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        if packing.config is not None:
            tar.addfile(_info(CONFIG, len(packing.config)), BytesIO(packing.config))
            members.append(_read(CONFIG, BytesIO(packing.config)))
        for name, descriptor in _sources(packing):
            if descriptor is None:
                left_out.append(name)
            else:
                members.append(member := _add(tar, name, descriptor))
                on_progress(member.size, name)
        manifest = Manifest(
            _FORMAT,
            packing.version,
            packing.schema,
            packing.made_at,
            tuple(members),
            tuple(left_out),
            packing.place,
            packing.elsewhere,
        )
        data = msgspec.json.encode(manifest)
        tar.addfile(_info(MANIFEST, len(data)), BytesIO(data))
    return manifest


def _verify(draft: Path, target: Path, manifest: Manifest) -> None:
    """Compare the written archive with its manifest. Raises `StoreError`."""
    try:
        with tarfile.open(draft, mode="r|gz") as tar:
            files = ((info, tar.extractfile(info)) for info in tar if info.name != MANIFEST)
            found = {info.name: _read(info.name, file) for info, file in files if file is not None}
        _compare(target, found, manifest)
    except (tarfile.TarError, EOFError, BadRequest) as error:
        raise StoreError(
            f"The backup {target} cannot be read back: {error}.",
            "Check the disk, or name a file on another one.",
        ) from error


def _read(name: str, file: IO[bytes], keep: Callable[[bytes], object] = len) -> ArchiveMember:
    """Read a file to its end, and pass each piece to `keep`."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        keep(chunk)
    return ArchiveMember(name, size, digest.hexdigest())


def _sources(packing: Packing) -> Iterator[tuple[str, int | None]]:
    """Yield the name of each file with its descriptor, which the caller closes. The descriptor is None for a
    file or a folder that is left out."""
    yield DATABASE, os.open(packing.snapshot, _OPEN)
    for name in (*[CONFIG] * (packing.config is None), *packing.singles):
        if (packing.home / name).is_file():
            yield name, _open(packing.home / name)
    for name in FOLDERS:
        root = (name in SHARED and packing.shared) or packing.home
        if (root / name).is_dir():
            yield from _below(os.open(root / name, os.O_RDONLY | os.O_CLOEXEC), name)


def _below(folder: int, path: str, depth: int = 1) -> Iterator[tuple[str, int | None]]:
    """Yield what `_sources` yields, for the files below an open folder, and close it.

    A command may replace a folder by a link at any time, and may nest thousands of folders. So each name is
    opened below its folder's descriptor, and only an open file tells what it is.
    """
    try:
        for name in sorted(os.listdir(folder)):
            inner, found = f"{path}/{name}", _open(name, folder)
            mode = 0 if found is None else os.fstat(found).st_mode
            if found is not None and stat.S_ISDIR(mode) and depth < _MAX_DEPTH:
                yield from _below(found, inner, depth + 1)
            elif found is None or stat.S_ISREG(mode):
                yield inner, found
            else:
                os.close(found)
                yield inner, None
    finally:
        os.close(folder)


def _open(path: str | Path, folder: int | None = None) -> int | None:
    """Return a descriptor. None for a link, and for a file that cannot be read or no longer exists."""
    try:
        return os.open(path, _OPEN, dir_fd=folder)
    except OSError:
        return None


def _add(tar: tarfile.TarFile, name: str, descriptor: int) -> ArchiveMember:
    """Add one file, and close it.

    The file is copied first: a chat may change it meanwhile, and the tar header needs its final size.
    """
    with os.fdopen(descriptor, "rb") as source, tempfile.SpooledTemporaryFile(_IN_MEMORY) as held:
        member = _read(name, source, held.write)
        held.seek(0)
        tar.addfile(_info(name, member.size, os.fstat(descriptor).st_mode), held)
    return member


def _info(name: str, size: int, mode: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _mode_of(name, mode)
    return info


def _mode_of(name: str, mode: int) -> int:
    """Return the permissions of a file of the home: private, unless commands read it."""
    return mode & 0o755 | 0o400 if name.startswith(_READ_BY_COMMANDS) else 0o600


# -- reading ----------------------------------------------------------------------------------------------


def unpack(archive: Path, target: Path, on_progress: Progress, singles: Collection[str] = ()) -> Manifest:
    """Unpack into the new folder `target`, and compare it with the manifest.

    `singles` are the names of further files that the archive may have. Raises `BadRequest`, leaving no
    `target`, for an archive that is not a whole backup or has names that lead out of `target`.
    """
    target.mkdir(mode=0o700)
    try:
        with tarfile.open(archive, mode="r|gz") as tar:
            found, manifest = _extract(tar, target, on_progress, singles)
        _compare(archive, found, manifest)
    except (tarfile.TarError, EOFError, OSError, gzip.BadGzipFile, msgspec.MsgspecError) as error:
        shutil.rmtree(target)
        raise _not_whole(archive, str(error)) from error
    except BaseException:
        shutil.rmtree(target)
        raise
    return manifest


def _extract(
    tar: tarfile.TarFile, target: Path, on_progress: Progress, singles: Collection[str]
) -> tuple[dict[str, ArchiveMember], Manifest]:
    found: dict[str, ArchiveMember] = {}
    for info in tar:
        source = tar.extractfile(info) if info.isreg() else None
        if source is None or not _is_expected(info.name, singles) or info.name in found:
            raise BadRequest(
                f"The archive has {info.name!r}, which no backup has.",
                "Use a file that `talaria backup` made.",
            )
        if info.name == MANIFEST:
            if info.size > _LARGEST_MANIFEST:
                raise EOFError("the manifest is too large")
            return found, msgspec.json.decode(source.read(), type=Manifest)
        for folder in reversed(PurePosixPath(info.name).parents[:-1]):
            if not (target / folder).is_dir():  # `parents` would make the upper ones open
                (target / folder).mkdir()
                (target / folder).chmod(0o755 if str(folder).startswith(_READ_BY_COMMANDS) else 0o700)
        found[info.name] = _save(source, target / info.name, info)
        on_progress(info.size, info.name)
    raise EOFError("it ends before its manifest")


def _is_expected(name: str, singles: Collection[str]) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or path.as_posix() != name:
        return False
    if len(path.parts) > _MAX_PARTS:
        return False
    is_single = name in (DATABASE, CONFIG, MANIFEST, *singles)
    return is_single or (len(path.parts) > 1 and path.parts[0] in FOLDERS)


def _save(source: IO[bytes], path: Path, info: tarfile.TarInfo) -> ArchiveMember:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        member = _read(info.name, source, file.write)
        file.flush()
        os.fchmod(descriptor, _mode_of(info.name, info.mode))
        os.fsync(descriptor)
    return member


def _compare(archive: Path, found: dict[str, ArchiveMember], manifest: Manifest) -> None:
    if manifest.format != _FORMAT:
        raise BadRequest(f"{archive} was made by a newer Talaria.", "Upgrade this program.")
    if found != {member.name: member for member in manifest.members}:
        raise _not_whole(archive, "its files are not those of its manifest")
    if DATABASE not in found:
        raise _not_whole(archive, "it has no database")


def _not_whole(archive: Path, why: str) -> BadRequest:
    return BadRequest(
        f"{archive} is not a complete backup: {why}.", "Use another backup; nothing was changed."
    )
