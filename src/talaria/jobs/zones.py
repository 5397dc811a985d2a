"""Time zones: by name, the machine's own, and the version of their rules."""

from __future__ import annotations

import os
import zoneinfo
from datetime import tzinfo
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

from talaria.core.errors import BadRequest
from talaria.core.suggest import did_you_mean

_LOCALTIME = Path("/etc/localtime")


def find_zone(name: str) -> ZoneInfo:
    """Raise `BadRequest`, with the nearest name, for a zone that does not exist."""
    if is_zone(name):
        return ZoneInfo(name)
    hint = did_you_mean(name, zoneinfo.available_timezones(), 'Name one such as "Europe/Berlin" or "UTC".')
    raise BadRequest(f"There is no time zone {name!r}.", hint)


def is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def agent_zone(name: str) -> tzinfo:
    """Return the zone of `agent.timezone`: the machine's if it is empty."""
    return ZoneInfo(name) if name else machine_zone()


@lru_cache(maxsize=1)
def machine_zone() -> tzinfo:
    """Return the machine's time zone with its rules for the whole year: UTC if it has none."""
    for name in (os.environ.get("TZ", "").lstrip(":"), _name_of(_LOCALTIME)):
        if name and is_zone(name):
            return ZoneInfo(name)
    try:
        with _LOCALTIME.open("rb") as file:
            return ZoneInfo.from_file(file, "local")
    except (OSError, ValueError):
        return ZoneInfo("UTC")


def _name_of(path: Path) -> str:
    """Return the name of the zone that a link leads to, or an empty text."""
    try:
        return str(path.resolve()).partition("zoneinfo/")[2] if path.is_symlink() else ""
    except OSError:
        return ""


def zone_name(zone: tzinfo) -> str:
    return getattr(zone, "key", None) or str(zone)


def rules_version() -> str:
    """Return a text that changes when the machine's rules of time zones do. They are read once by each
    process."""
    for folder in zoneinfo.TZPATH:
        try:
            with Path(folder, "tzdata.zi").open() as file:
                return file.readline().strip()
        except OSError:
            continue
    from importlib import metadata  # noqa: PLC0415 - only where the system has no rules

    try:
        return metadata.version("tzdata")
    except metadata.PackageNotFoundError:
        return "unknown"
