"""`[store]`: where the log and the ledger live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from talaria.core.setting_marks import Check


def usable_url(url: str) -> str | None:
    """Return the form that `store.url` must have if this URL cannot be used, None if it can."""
    if not url or (url.startswith("sqlite:///") and url != "sqlite:///"):
        return None
    why = " (this version cannot use PostgreSQL)" if url.startswith(("postgres://", "postgresql://")) else ""
    return f'an empty text for talaria.db in the home, or "sqlite:///PATH"{why}'


class StoreSettings(msgspec.Struct, frozen=True):
    """An empty `url` is `talaria.db` in the home; `sqlite:///path` names another file."""

    url: Annotated[str, Check(usable_url)] = ""


def find_database(url: str, default: Path) -> Path:
    """Return the file that a usable `store.url` names, `default` for an empty one."""
    path = url.removeprefix("sqlite:///")
    if not path:
        return default
    return Path(path).expanduser() if path.startswith("~") else Path("/" + path)
