"""A home of another program as it is read: a folder, or a zip that the program made of one.

The source is never opened by SQLite and never written: its databases are copied to a temporary folder first,
with their logs. A copy counts only if no file has changed meanwhile, so it is the state of one moment.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from talaria.core.errors import BadRequest
from talaria.core.units import format_size

_COPIES: Final = "talaria-import-"
_LOGS: Final = ("", "-wal", "-journal")
_TRIES, _PAUSE_SECONDS = 5, 0.2
_CLOCK_TICK: Final = 20_000_000  # nanoseconds; file systems date changes no finer than some milliseconds
_MAX_TEXT: Final = 8 << 20  # bytes of a file that is read as a whole
_MAX_ROW: Final = 8 << 20  # bytes of a value of a database; a larger row is left out
_MAX_MEMBERS, _MAX_UNPACKED = 200_000, 64 << 30
_MAX_VALUES, _MAX_DEPTH = 100_000, 100  # of a YAML file, whose aliases stand for any number of values
_JOURNAL_END: Final = bytes.fromhex("d9d505f920a163d7")  # of a journal that names another file
_SPARE_BYTES: Final = 256 << 20  # of the disk that a zip is unpacked to
_MORE_ROOM: Final = "Set TMPDIR to a folder with more room."
_ZIP_FAULTS: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


class SourceFormat(msgspec.Struct, frozen=True):
    """How homes of a program are known: they have one of the `marks`. `needed` are the files and folders that
    an import reads; of a zip only these are unpacked."""

    program: str
    marks: str
    needed: str
    example: str


class SourceHome(msgspec.Struct, frozen=True):
    """An opened home. `path` is the folder with its files, `copies` one for copies of databases, and `names`
    are the files and folders at its top. `troubles` are the files that could not be read, with the reason.
    """

    source: Path
    path: Path
    copies: Path
    names: frozenset[str]
    troubles: dict[str, str]

    def note(self, name: str, reason: str) -> None:
        """Remember that a file cannot be read; it becomes an item of the report."""
        self.troubles.setdefault(name, reason)

    def text(self, name: str) -> str | None:
        """Return the text of a file below the home; None if it is missing. A file that cannot be read, is too
        large, or is a link that leaves the home is noted, and None. Bytes that are not UTF-8 are replaced."""
        path = self.path / name
        try:
            if not path.exists() and not path.is_symlink():
                return None
            if not path.resolve().is_relative_to(self.path.resolve()):
                self.note(name, "It is a link that leaves the home.")
            elif not path.is_file():
                self.note(name, "It is not a file.")
            elif path.stat().st_size > _MAX_TEXT:
                self.note(name, f"It is larger than {format_size(_MAX_TEXT)}.")
            else:
                return path.read_bytes().decode("utf-8-sig", "replace")
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a circle of links
            self.note(name, f"It cannot be read: {getattr(error, 'strerror', None) or error}.")
        return None

    def json(self, name: str) -> Any:
        """Return the value of a JSON file; None if it is missing or broken, which is noted."""
        text = self.text(name)
        if text is not None and (value := read_json(text)) is not None:
            return value
        if text is not None:
            self.note(name, "It is not valid JSON.")
        return None

    def environ(self) -> dict[str, str]:
        """Return the variables of .env."""
        found = {}
        for line in (self.text(".env") or "").splitlines():
            name, is_pair, value = line.strip().removeprefix("export ").partition("=")
            if is_pair and name.strip() and not name.startswith("#"):
                found[name.strip()] = _unquoted(value.strip())
        return found

    @contextmanager
    def open_database(self, name: str, *statements: str) -> Iterator[sqlite3.Connection | None]:
        """Open a copy of a database for reading, from any thread, after these statements; None if the home
        has none. Texts that are not UTF-8 are repaired, and reading a value over 8 MB raises
        `sqlite3.DatabaseError`. Raises `BadRequest` for a file that is not such a database."""
        copy = self.copies / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not _copy_database(self.path / name, copy):
            if (self.path / name).is_symlink() or (self.path / name).exists():
                self.note(name, "It is not a file, or a link to none.")
            yield None
            return
        with closing(sqlite3.connect(copy, check_same_thread=False)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            database.row_factory = sqlite3.Row
            try:
                for statement in statements:
                    database.execute(statement)
                database.commit()
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW)
                yield database
            except sqlite3.Error as error:
                repair = f"Repair it with `sqlite3 {name} .recover`, or import a backup of it."
                is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
                hint = _MORE_ROOM if is_full else repair
                raise BadRequest(f"{self.source / name} cannot be read: {error}.", hint) from error

    def rows(self, database: sqlite3.Connection | None, name: str, wanted: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table with those of the wanted columns that it has: every release adds some.
        Yield nothing without such a table. Rows that are damaged or too large are noted."""
        known = (
            set() if database is None else {row[1] for row in database.execute(f"PRAGMA table_info({name})")}
        )
        columns = ", ".join(column for column in wanted.split() if column in known)
        if database is None or not columns:
            return
        for (key,) in database.execute(f"SELECT rowid FROM {name}").fetchall():  # noqa: S608 - our own names
            try:
                row = database.execute(f"SELECT {columns} FROM {name} WHERE rowid = ?", (key,)).fetchone()  # noqa: S608
                yield dict(row)
            except (sqlite3.DatabaseError, TypeError):  # TypeError: an index has a row that the table has not
                self.note(f"table {name}", "A row is damaged or too large.")


def read_json(text: str | None) -> Any:
    """Return the value of a JSON text; None if there is none or it is broken."""
    try:
        return None if text is None else msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


def plain(value: object) -> Any:
    """Return a value of YAML as JSON would have it: tables with texts as keys, lists, texts and numbers of 64
    bits. Raises ValueError for one that is too large or too deep, as a circle of aliases is."""
    left = _MAX_VALUES

    def copy(value: object, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MAX_DEPTH:
            raise ValueError("too many values")
        if isinstance(value, dict):
            return {clean_text(str(key)): copy(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple | set):
            return [copy(each, depth + 1) for each in value]
        if value is None or isinstance(value, bool | float):
            return value
        return value if isinstance(value, int) and abs(value) < 1 << 63 else clean_text(str(value))

    return copy(value, 0)


def table(value: object) -> Mapping[str, Any]:
    """Return a value of JSON or YAML if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return a value of JSON or YAML if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Return a value as text; an empty one for a list or a table. Values of SQLite and JSON have any type."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, str | int | float) else ""


def clean_text(value: object) -> str:
    """Return a text without surrogates and zero characters, which PostgreSQL cannot hold."""
    return text_of(value).encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def is_running(pid: object) -> bool:
    """Return whether a process seems to run."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def open_home(source: Path, format: SourceFormat) -> Iterator[SourceHome]:
    """Open a home for reading. The copies that are made of it are deleted at the end.

    Raises `BadRequest` for a path that is not a home of this program.
    """
    source = source.expanduser().absolute()
    _delete_old_copies()
    with tempfile.TemporaryDirectory(prefix=f"{_COPIES}{os.getpid()}-") as made:
        copies = Path(made) / "copies"
        if source.is_dir():
            try:
                names = frozenset(path.name for path in source.iterdir())
            except OSError as error:
                raise BadRequest(
                    f"{source} cannot be read: {error.strerror}.", "Run the import as its owner."
                ) from error
            _check_is_home(source, format, names)
            yield SourceHome(source, source, copies, names, {})
        elif source.is_file():
            folder = Path(made) / "home"
            names, troubles = _unpack(source, folder, format)
            yield SourceHome(source, folder, copies, names, troubles)
        else:
            raise BadRequest(f"There is no {source}.", f"Name the home, such as {format.example}.")


def _delete_old_copies() -> None:
    """Delete the copies of imports that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_COPIES}*-*"):
        number = folder.name.removeprefix(_COPIES).partition("-")[0]
        with suppress(OSError):
            is_ours = folder.stat(follow_symlinks=False).st_uid == os.getuid()
            if is_ours and number.isdecimal() and not is_running(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


def _check_is_home(source: Path, format: SourceFormat, names: frozenset[str]) -> None:
    if not names.intersection(format.marks.split()):
        marks = ", ".join(format.marks.split())
        raise BadRequest(
            f"{source} is not a home of {format.program}: it has none of {marks}.",
            f"Name the home, such as {format.example}.",
        )


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


# -- copies -----------------------------------------------------------------------------------------------


def _copy_database(source: Path, copy: Path) -> bool:
    """Copy a database with its log, and return whether there is one. A shared-memory file is not copied:
    SQLite makes it from the log, which is beside the file that a link leads to. Raises `BadRequest` while it
    changes."""
    source = source.resolve()
    if not source.is_file():
        return False
    for _ in range(_TRIES):
        before = _stamps(source)
        newest = max((stamp[2] for stamp in before.values() if stamp is not None), default=0)
        time.sleep(min(max(0, newest + _CLOCK_TICK - time.time_ns()), _CLOCK_TICK) / 1e9)
        try:
            for end in _LOGS:
                Path(f"{copy}{end}").unlink(missing_ok=True)
                if before[end] is not None:
                    shutil.copyfile(f"{source}{end}", f"{copy}{end}")
            _check_journal(source, Path(f"{copy}-journal"))
        except FileNotFoundError:
            continue  # a log was just removed
        except OSError as error:
            hint = _MORE_ROOM if error.errno in (ENOSPC, EDQUOT) else "Run the import as its owner."
            raise BadRequest(f"{source} cannot be copied: {error.strerror or error}.", hint) from error
        if _stamps(source) == before:
            return True
        time.sleep(_PAUSE_SECONDS)
    raise BadRequest(
        f"Another program is writing to {source}, so it cannot be read in one piece.",
        "Stop its gateway, or import a backup of it.",
    )


def _check_journal(source: Path, journal: Path) -> None:
    """Refuse a journal that names another file: SQLite would delete that file, wherever it is."""
    with suppress(FileNotFoundError), journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - len(_JOURNAL_END)))
        if file.read() == _JOURNAL_END:
            raise BadRequest(
                f"{source} was left in the middle of a change to several databases.",
                "Start its program once and stop it, then import again.",
            )


def _stamps(source: Path) -> dict[str, tuple[int, int, int] | None]:
    found: dict[str, tuple[int, int, int] | None] = {}
    for end in _LOGS:
        try:
            stat = Path(f"{source}{end}").stat()
            found[end] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            found[end] = None
    return found


def _unpack(source: Path, folder: Path, format: SourceFormat) -> tuple[frozenset[str], dict[str, str]]:
    """Unpack the files of a backup that an import reads. Return all names at its top, and the files that were
    left out because their paths are unsafe."""
    try:
        with closing(zipfile.ZipFile(source)) as archive:
            members = archive.infolist()
            safe = [member for member in members if _is_safe(member)]
            names = frozenset(PurePosixPath(member.filename).parts[0] for member in safe)
            _check_is_home(source, format, names)
            needed = tuple(format.needed.split())
            wanted = [each for each in safe if each.filename.startswith(needed) and not each.is_dir()]
            size = sum(each.file_size for each in wanted)
            folder.mkdir()
            room = shutil.disk_usage(folder).free - _SPARE_BYTES
            if len(members) > _MAX_MEMBERS or size > min(_MAX_UNPACKED, room):
                raise BadRequest(
                    f"{source} is too large to unpack: {len(members)} files with {format_size(size)}.",
                    "Unpack it yourself and name the folder, or set TMPDIR to a folder with more room.",
                )
            for member in wanted:
                archive.extract(member, folder)
    except _ZIP_FAULTS as error:
        raise BadRequest(
            f"{source} cannot be read as a backup of {format.program}: {error}.", "Name a folder or a zip."
        ) from error
    unsafe = {each.filename for each in members} - {each.filename for each in safe}
    return names, dict.fromkeys(unsafe, "Its path or type in the zip is not safe.")


def _is_safe(member: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(member.filename)
    is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
    is_inside = not path.is_absolute() and ".." not in path.parts and "\\" not in member.filename
    return bool(path.parts) and is_inside and not is_link
