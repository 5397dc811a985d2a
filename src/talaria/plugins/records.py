"""The records of plug-ins between starts, in `plugins.json` in the home: checks that went well, so that an
unchanged plug-in is not checked again, and the quarantine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from talaria.core.whole_files import lock_file, replace_file

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


class PluginRecords(msgspec.Struct, frozen=True):
    """The content of the file, by the names of plug-ins."""

    checks: dict[str, KeptCheck] = {}
    quarantine: dict[str, Quarantined] = {}

    def quarantined(self, name: str, digest: str) -> Quarantined | None:
        found = self.quarantine.get(name)
        return found if found is not None and found.digest == digest else None


def read_records(home: Path) -> PluginRecords:
    """Return what is kept. A file that is missing or damaged counts as empty: plug-ins are checked again."""
    try:
        return msgspec.json.decode((home / FILE).read_bytes(), type=PluginRecords)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return PluginRecords()


def keep_checks(home: Path, checks: dict[str, KeptCheck]) -> None:
    """Keep these checks in place of all others. Raises `OSError`."""
    with lock_file(home / ".lock"):
        records = read_records(home)
        if records.checks != checks:
            _write(home, msgspec.structs.replace(records, checks=checks))


def quarantine(home: Path, name: str, entry: Quarantined) -> None:
    """Keep the plug-in out from the next start on. Raises `OSError`."""
    with lock_file(home / ".lock"):
        records = read_records(home)
        _write(home, msgspec.structs.replace(records, quarantine={**records.quarantine, name: entry}))


def release(home: Path, name: str) -> bool:
    """Take a plug-in out of the quarantine. Return whether it was there. Raises `OSError`."""
    with lock_file(home / ".lock"):
        records = read_records(home)
        rest = {other: entry for other, entry in records.quarantine.items() if other != name}
        if rest == records.quarantine:
            return False
        _write(home, msgspec.structs.replace(records, quarantine=rest))
        return True


def _write(home: Path, records: PluginRecords) -> None:
    replace_file(home / FILE, msgspec.json.format(msgspec.json.encode(records)) + b"\n")
