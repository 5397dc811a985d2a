"""`[store]`: where the log and the ledger live."""

from __future__ import annotations

import msgspec


class StoreSettings(msgspec.Struct, frozen=True):
    """An empty `url` is `talaria.db` in the home; `sqlite:///path` names another file."""

    url: str = ""
