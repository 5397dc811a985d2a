"""`[store]`: where the log and the ledger live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from talaria.core.setting_marks import Check, Unset

_SCHEME = "sqlite:"


def usable_url(url: str) -> str | None:
    """Return the form that `store.url` must have if this URL cannot be used, None if it can."""
    path = url.removeprefix(_SCHEME)
    names_host = path.startswith("//") and not path.startswith("///")
    if not url or (url.startswith(_SCHEME) and path.strip("/") and not names_host):
        return None
    why = " (this version cannot use PostgreSQL)" if url.startswith(("postgres://", "postgresql://")) else ""
    return f'an empty text for talaria.db in the home, or "sqlite:///PATH"{why}'


class StoreSettings(msgspec.Struct, frozen=True):
    """An empty `url` is `talaria.db` in the home; `sqlite:///path` names another file."""

    url: Annotated[str, Check(usable_url), Unset("talaria.db in the home")] = ""


def is_file(url: str) -> bool:
    """Return whether `store.url` names a file of SQLite."""
    return not url or url.startswith(_SCHEME)


def find_database(url: str, default: Path) -> Path:
    """Return the file that a usable `store.url` names, `default` for an empty one.

    `sqlite:///srv/a.db` and `sqlite:////srv/a.db` are /srv/a.db, `sqlite:///~/a.db` is in the user's folder,
    and `sqlite:a.db` is beside `default`.
    """
    path = url.removeprefix(_SCHEME)
    if not path:
        return default
    if not path.startswith("/"):
        return default.parent / Path(path).expanduser()
    path = path.lstrip("/")
    return Path(path).expanduser() if path.startswith("~") else Path("/" + path)
