"""`[store]`: where the log and the ledger live."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from talaria.core.errors import StoreError
from talaria.core.redaction import hide_passwords
from talaria.core.settings import Check, Unset

UNFINISHED_COPY = "copying"  # the cursor that a database has until `talaria store copy` has compared it
_SCHEME = "sqlite:"
_POSTGRES = ("postgresql://", "postgres://")


def unfinished_copy() -> StoreError:
    """Return the error for a database that has the cursor `UNFINISHED_COPY`."""
    return StoreError(
        "The database is a copy that was not finished.",
        "Set store.url back to the original database (`talaria config unset store.url`), and repeat the "
        "interrupted `store copy` or `restore` in the home where it ran.",
    )


def usable_url(url: str) -> str | None:
    """Return the form that `store.url` must have if this URL cannot be used, None if it can."""
    path = url.removeprefix(_SCHEME)
    names_host = path.startswith("//") and not path.startswith("///")
    if not url or (url.startswith(_SCHEME) and path.strip("/") and not names_host):
        return None
    if url.startswith(_POSTGRES) and _names_database(url):
        return None
    forms = 'an empty text for talaria.db in the home, "sqlite:///PATH", or "postgresql://USER@HOST/DATABASE"'
    return forms + _ESCAPES * url.startswith(_POSTGRES)


def _names_database(url: str) -> bool:
    """Return whether a database is named, and no password is where it would be taken for something else."""
    # `urlsplit` of some Pythons refuses a list of hosts with an IPv6 address, which a server URL may have.
    found = _PARTS.fullmatch(url)
    if found is None:
        return False
    user, host = found["place"].rpartition("@")[::2]
    is_clear = "@" not in user and not _UNCLEAR.search(user) and host.count("[") == host.count("]")
    return is_clear and bool(_DATABASE.fullmatch(found["path"])) and "password=" not in (found["query"] or "")


_PARTS = re.compile(r"\w+://(?P<place>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?", re.DOTALL)
_ESCAPES = "; a password in ~/.pgpass, or as USER:PASSWORD with / ? # @ % as %2F %3F %23 %40 %25"
_UNCLEAR = re.compile("%(?![0-9A-Fa-f]{2})|%00")
_DATABASE = re.compile("/[^/@]+")


def whole_path(path: str) -> str | None:
    """A rule for `store.files`."""
    is_whole = path.startswith("/") and "\0" not in path and path.strip("/")
    return None if not path or is_whole else 'a folder by its whole path, such as "/mnt/talaria"'


class StoreSettings(msgspec.Struct, frozen=True):
    """An empty `url` is `talaria.db` in the home; `sqlite:///path` names another file, `postgresql://` a
    database on a server. `connections` is the most that orders have there at a time. `files` is a folder for
    the files of chats and memory, which several gateways may share."""

    url: Annotated[str, Check(usable_url), Unset("talaria.db in the home")] = ""
    connections: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    files: Annotated[str, Check(whole_path), Unset("files and memory in the home")] = ""

    @property
    def shared(self) -> Path | None:
        """The folder that `files` names."""
        return Path(self.files) if self.files else None


def shown_url(url: str) -> str:
    """Return a usable URL with PASSWORD in place of one."""
    return hide_passwords(url) if is_postgres(url) else url


def is_postgres(url: str) -> bool:
    return url.startswith(_POSTGRES)


def is_file(url: str) -> bool:
    """Return whether `store.url` names a file of SQLite."""
    return not url or url.startswith(_SCHEME)


def find_database(url: str, default: Path) -> Path:
    """Return the file that a usable `store.url` names, `default` for an empty one and for one of a server.

    `sqlite:///srv/a.db` and `sqlite:////srv/a.db` are /srv/a.db, `sqlite:///~/a.db` is in the user's folder,
    and `sqlite:a.db` is beside `default`.
    """
    path = url.removeprefix(_SCHEME)
    if not path or is_postgres(url):
        return default
    if not path.startswith("/"):
        return default.parent / Path(path).expanduser()
    path = path.lstrip("/")
    return Path(path).expanduser() if path.startswith("~") else Path("/" + path)
