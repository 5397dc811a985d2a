"""`[store]`: where the log and the ledger live."""

from __future__ import annotations

from typing import Annotated

import msgspec

from talaria.core.schema import Check


def usable_url(url: str) -> str | None:
    """A rule for the address of a database."""
    if not url or (url.startswith("sqlite:///") and url != "sqlite:///"):
        return None
    why = " (this version cannot use PostgreSQL)" if url.startswith(("postgres://", "postgresql://")) else ""
    return f'an empty text for talaria.db in the home, or "sqlite:///PATH"{why}'


class StoreSettings(msgspec.Struct, frozen=True):
    """An empty `url` is `talaria.db` in the home; `sqlite:///path` names another file."""

    url: Annotated[str, Check(usable_url)] = ""
