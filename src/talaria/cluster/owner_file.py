"""The owner id of a home's gateway, kept so that the next one knows whose leases are void.

On a database that other gateways may serve, a start cannot void all leases. It may void those of the process
before it in the same home: it has the home's lock, so that process is dead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from talaria.core.ids import OwnerId

OWNER_FILE = "owner"


def exchange_owner(home: Path, owner: OwnerId) -> OwnerId | None:
    """Write down this process's owner id, and return that of the process before it, if it is known."""
    path = home / OWNER_FILE
    before = ""
    with suppress(OSError, UnicodeDecodeError):
        before = path.read_text(encoding="utf-8").strip()
    fresh = path.with_name(f"{OWNER_FILE}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{owner}\n")
    fresh.replace(path)
    return OwnerId(before) if before and before != owner else None
