"""A home of hermes-agent as it is read: a folder, a profile's folder, or a zip of `hermes backup`.

The source is never opened by SQLite and never written: its database is copied to a temporary folder first,
with its log. A copy counts only if no file has changed meanwhile, so it is the state of one moment.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from talaria.core.errors import BadRequest

DATABASE: Final = "state.db"
_MARKS: Final = (DATABASE, "config.yaml", ".env")
_LOGS: Final = ("", "-wal", "-journal")
_TRIES, _PAUSE_SECONDS = 5, 0.2
_MAX_TEXT: Final = 8 << 20  # bytes of a file that is read as a whole
_MAX_MEMBERS, _MAX_UNPACKED = 200_000, 64 << 30
_NEEDED: Final = (*_MARKS, "SOUL.md", "AGENTS.md")
_NEEDED_FOLDERS: Final = ("memories", "skills", "cron", "pairing", "platforms", "sessions")


class HermesHome(msgspec.Struct, frozen=True):
    """An opened home. `path` is the folder with its files, `database` a copy of state.db, if it has one."""

    source: Path
    path: Path
    database: Path | None

    def text(self, name: str) -> str | None:
        """Return the text of a file below the home; None if it is missing. A link that leaves the home counts
        as missing, and so does a file that is too large. Bytes that are not UTF-8 are replaced."""
        path = self.path / name
        try:
            if not path.resolve().is_relative_to(self.path.resolve()) or not path.is_file():
                return None
            if path.stat().st_size > _MAX_TEXT:
                return None
            return path.read_bytes().decode("utf-8-sig", "replace")
        except OSError:
            return None

    def json(self, name: str) -> Any:
        """Return the value of a JSON file; None if it is missing or broken."""
        return read_json(self.text(name))

    def config(self) -> dict[str, Any]:
        """Return config.yaml. Raises `BadRequest` if it is broken."""
        import yaml  # noqa: PLC0415 - only for an import

        text = self.text("config.yaml")
        try:
            found = yaml.safe_load(text) if text else {}
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise BadRequest(
                f"{self.source}/config.yaml is not valid YAML: {str(error).splitlines()[0]}.",
                "Correct it, or import only the rest: --only session --only job.",
            ) from error
        return found if isinstance(found, dict) else {}

    def environ(self) -> dict[str, str]:
        """Return the variables of .env."""
        found = {}
        for line in (self.text(".env") or "").splitlines():
            name, is_pair, value = line.strip().removeprefix("export ").partition("=")
            if is_pair and not name.startswith("#"):
                found[name.strip()] = _unquoted(value.strip())
        return found

    def is_running(self) -> bool:
        """Return whether the gateway of this home seems to run, by the process that its pid file names."""
        known = self.json("gateway.pid")
        pid = known.get("pid") if isinstance(known, dict) else known
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
    def open_database(self) -> Iterator[sqlite3.Connection | None]:
        """Open the copy of the database for reading, from any thread; None if the home has none. Texts that
        are not UTF-8 are repaired. Raises `BadRequest` if it is not a database."""
        if self.database is None:
            yield None
            return
        with closing(sqlite3.connect(self.database, check_same_thread=False)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            database.row_factory = sqlite3.Row
            try:
                # The copy is ours. Not every release has an index by session.
                database.execute("CREATE INDEX talaria_rows ON messages (session_id, id)")
                database.commit()
            except sqlite3.DatabaseError as error:
                raise BadRequest(
                    f"{self.source}/{DATABASE} cannot be read: {error}.",
                    "Repair it with `sqlite3 state.db .recover`, or import a backup of `hermes backup`.",
                ) from error
            yield database


def read_json(text: str | None) -> Any:
    """Return the value of a JSON text; None if there is none or it is broken."""
    try:
        return None if text is None else msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


def table(value: object) -> Mapping[str, Any]:
    """Return a value of JSON or YAML if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


@contextmanager
def open_home(source: Path) -> Iterator[HermesHome]:
    """Open a home for reading. The copy that is made of it is deleted at the end.

    Raises `BadRequest` for a path that is not a home of hermes-agent, and while its database changes.
    """
    source = source.expanduser().absolute()
    with tempfile.TemporaryDirectory(prefix="talaria-import-") as made:
        copies = Path(made)
        if source.is_dir():
            _check_is_home(source, [name for name in _MARKS if (source / name).exists()])
            yield HermesHome(source, source, _copy_database(source, copies))
        elif source.is_file():
            folder = copies / "home"
            _unpack(source, folder)
            found = folder / DATABASE
            yield HermesHome(source, folder, found if found.is_file() else None)
        else:
            raise BadRequest(f"There is no {source}.", "Name the home, such as ~/.hermes, or a backup.")


def _check_is_home(source: Path, found: list[str]) -> None:
    if not found:
        raise BadRequest(
            f"{source} is not a home of hermes-agent: it has none of {', '.join(_MARKS)}.",
            "Name the home, such as ~/.hermes or ~/.hermes/profiles/NAME, or a backup of `hermes backup`.",
        )


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


# -- copies -----------------------------------------------------------------------------------------------


def _copy_database(source: Path, copies: Path) -> Path | None:
    """Copy the database with its log. A shared-memory file is not copied: SQLite makes it from the log."""
    if not (source / DATABASE).is_file():
        return None
    for _ in range(_TRIES):
        before = _stamps(source)
        for end in _LOGS:
            (copies / f"{DATABASE}{end}").unlink(missing_ok=True)
            if before[end] is not None:
                shutil.copyfile(source / f"{DATABASE}{end}", copies / f"{DATABASE}{end}")
        if _stamps(source) == before:
            return copies / DATABASE
        time.sleep(_PAUSE_SECONDS)
    raise BadRequest(
        f"hermes-agent is writing to {source / DATABASE}, so it cannot be read in one piece.",
        "Stop its gateway (`hermes gateway stop`), or import a backup that `hermes backup` makes.",
    )


def _stamps(source: Path) -> dict[str, tuple[int, int, int] | None]:
    found: dict[str, tuple[int, int, int] | None] = {}
    for end in _LOGS:
        try:
            stat = (source / f"{DATABASE}{end}").stat()
            found[end] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            found[end] = None
    return found


def _unpack(source: Path, folder: Path) -> None:
    """Unpack the files of a backup that an import reads. Links become plain files."""
    try:
        with closing(zipfile.ZipFile(source)) as archive:
            members = archive.infolist()
            _check_is_home(source, [name for name in _MARKS if name in archive.NameToInfo])
            wanted = [member for member in members if _is_needed(member)]
            if len(members) > _MAX_MEMBERS or sum(each.file_size for each in wanted) > _MAX_UNPACKED:
                raise BadRequest(f"{source} is too large to unpack.", "Unpack it, and name the folder.")
            for member in wanted:
                archive.extract(member, folder)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise BadRequest(
            f"{source} cannot be read as a backup of `hermes backup`: {error}.", "Name a folder or a zip."
        ) from error


def _is_needed(member: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(member.filename)
    if member.is_dir() or path.is_absolute() or ".." in path.parts or "\\" in member.filename:
        return False
    is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
    return not is_link and (member.filename in _NEEDED or path.parts[0] in _NEEDED_FOLDERS)
