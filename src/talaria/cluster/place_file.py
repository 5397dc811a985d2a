"""The id of a place: the home folder of a gateway, as the other gateways of a cluster know it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from talaria.core.ids import PlaceId
from talaria.core.whole_files import replace_file

PLACE_FILE = "place"


def find_place(home: Path) -> PlaceId:
    """Return the id of the home, which is made at the first call. The caller holds the home's lock. Raises
    `OSError`.

    The file names the folder by its inode, so that a copy of a home becomes a place of its own.
    """
    path, inode = home / PLACE_FILE, str(os.stat(home).st_ino)  # noqa: PTH116 - follows a link, as it should
    with suppress(OSError, UnicodeDecodeError, ValueError):
        place, of = path.read_text(encoding="utf-8").split()
        if of == inode:
            return PlaceId(place)
    place = f"plc_{secrets.token_hex(12)}"
    replace_file(path, f"{place} {inode}\n".encode())
    return PlaceId(place)
