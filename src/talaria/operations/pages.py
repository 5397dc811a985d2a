"""The query of an operation that lists something in pages."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from talaria.core.ledger import Page


class PageQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number of items to return.")] = 50
    after: Annotated[
        str, Meta(max_length=200, description="Cursor: the `next` value of the previous page.")
    ] = ""

    @property
    def page(self) -> Page:
        return Page(self.limit, self.after or None)
