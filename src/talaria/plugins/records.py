"""The records of plug-ins between starts, in `plugins.json` in the home: checks that went well, so that an
unchanged plug-in is not checked again, and the quarantine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from talaria.core.whole_files import JsonFile

FILE: Final = "plugins.json"


class KeptCheck(msgspec.Struct, frozen=True):
    """A check that went well. `key` is a hash of the code, the settings and the versions."""

    key: str
    brings: tuple[str, ...]


class Quarantined(msgspec.Struct, frozen=True):
    """Why a plug-in is kept out. It counts for the code with this `digest`, so an edit releases it."""

    digest: str
    why: str
    at: float


class PluginRecords(msgspec.Struct):
    """The content of the file, by the names of plug-ins."""

    checks: dict[str, KeptCheck] = {}
    quarantine: dict[str, Quarantined] = {}

    def quarantined(self, name: str, digest: str) -> Quarantined | None:
        found = self.quarantine.get(name)
        return found if found is not None and found.digest == digest else None


def _file(home: Path) -> JsonFile[PluginRecords]:
    return JsonFile(home / FILE, PluginRecords, lambda path, error: PluginRecords())


def read_records(home: Path) -> PluginRecords:
    """Return what is kept. A file that is missing or damaged counts as empty: plug-ins are checked again."""
    return _file(home).read()


def keep_checks(home: Path, checks: dict[str, KeptCheck]) -> None:
    """Keep these checks in place of all others. Raises `OSError`."""
    with _file(home).changing() as records:
        records.checks = checks


def quarantine(home: Path, name: str, entry: Quarantined) -> None:
    """Keep the plug-in out from the next start on. Raises `OSError`."""
    with _file(home).changing() as records:
        records.quarantine[name] = entry


def release(home: Path, name: str) -> bool:
    """Take a plug-in out of the quarantine. Return whether it was there. Raises `OSError`."""
    with _file(home).changing() as records:
        return records.quarantine.pop(name, None) is not None
