"""The folder that `store.files` names: whether a gateway may keep the files of chats there.

Several gateways may use one folder. It has a mark, a file with an id, and each home remembers the id. So a
folder that is empty because its file system is not mounted is noticed, and two gateways find out that they
mean different folders.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from talaria.config.home import Home, find_distrust
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem, ok, problem
from talaria.core.whole_files import replace_file, write_new
from talaria.store.settings import StoreSettings, is_postgres

MARK = ".talaria-files"  # in the shared folder
KNOWN = "shared-files"  # in the home


def check_shared_files(home: Home, shared: Path) -> str:
    """Check the folder, mark it if it is new, and return its id. Raises `ConfigError`."""
    _check_place(home, shared)
    known, marked = _read(home.path / KNOWN), _read(shared / MARK)
    if marked and known != f"{shared} {marked}":
        replace_file(home.path / KNOWN, f"{shared} {marked}\n".encode())
    if marked:
        return marked
    if known.startswith(f"{shared} "):
        raise _refuse(
            f"The folder {shared} is not the one that this gateway used before: its file {MARK} is gone.",
            f"Mount it. To start empty instead, remove {home.path / KNOWN}.",
        )
    try:
        write_new(shared / MARK, f"{secrets.token_hex(12)}\n".encode())
    except FileExistsError:
        pass  # another gateway was quicker
    except OSError as error:
        raise _unwritable(shared, error) from error
    return check_shared_files(home, shared)


def read_mark(shared: Path) -> str:
    """Return the id of a folder that was checked."""
    return _read(shared / MARK)


def examine_shared_files(home: Home, settings: StoreSettings) -> Iterator[Problem]:
    """Yield what `talaria doctor` says of the folder. Nothing is changed."""
    if (shared := settings.shared) is None:
        if is_postgres(settings.url):
            text = f"store.files is not set, so files and memory are in {home.path}, for this gateway alone."
            stays = "A chat that has files here stays with this gateway."
            yield ok("files", f"{text} {stays} Several gateways need a shared folder to pass chats on.")
        return
    try:
        _check_place(home, shared)
    except ConfigError as error:
        yield problem("files", error.user_text, error.hint)
        return
    known, marked = _read(home.path / KNOWN), _read(shared / MARK)
    if known.startswith(f"{shared} ") and known != f"{shared} {marked}":
        text = f"store.files: {shared} is not the folder that this gateway used before."
        yield problem("files", text, "Is its file system mounted?")
    else:
        yield ok("files", f"The files of chats and memory are in {shared}, which gateways may share.")


def _check_place(home: Home, shared: Path) -> None:
    if not shared.is_dir():
        raise _refuse(f"There is no folder {shared}.", "Mount it, or make it (mode 0700).")
    real, real_home = Path(os.path.realpath(shared)), Path(os.path.realpath(home.path))
    if real.is_relative_to(real_home) or real_home.is_relative_to(real):
        raise _refuse(f"{shared} contains the home {home.path}, or lies in it.", "Name a folder of its own.")
    for reason in find_distrust(home, shared):
        if not home.path.is_relative_to(reason.path):
            text = f"Another user controls {reason.path}, who could read and change the files of chats."
            hint = f"Fix it with: {reason.command}" if reason.command else "Use another folder."
            raise _refuse(text, hint)
    probe = shared / f".write-test-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        write_new(probe, b"")
        probe.unlink()
    except OSError as error:
        raise _unwritable(shared, error) from error


def _read(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip()
    return ""


def _unwritable(shared: Path, error: OSError) -> ConfigError:
    return _refuse(
        f"{shared} cannot be written: {error.strerror or error}.", "Make it writable for this user."
    )


def _refuse(text: str, hint: str) -> ConfigError:
    return ConfigError(f"store.files: {text}", hint)
