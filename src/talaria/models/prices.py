"""`[prices]`: what models cost, by the operator's word and else by what is known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import msgspec

from talaria.core.spending import Price, from_usd
from talaria.models.known import known_price
from talaria.models.naming import find_named

Dollars = Annotated[
    float, msgspec.Meta(ge=0, le=1_000_000, description="a number of dollars, 0 or more, such as 2.5")
]


class PriceSettings(msgspec.Struct, frozen=True):
    """In dollars for a million tokens. What is not given for `cached` and `stored` costs as `input` does."""

    input: Dollars | None = None
    cached: Dollars | None = None
    output: Dollars | None = None
    stored: Dollars | None = None
    max_output: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Prices:
    """Looks prices up: the operator's for exactly this name, then that of the longest pattern that fits, then
    the built-in one."""

    def __init__(self, configured: Mapping[str, PriceSettings] | None = None) -> None:
        self._configured = {name: _price(given) for name, given in (configured or {}).items()}
        self.find = lru_cache(maxsize=256)(self._find)

    def _find(self, provider: str, model: str) -> Price | None:
        known = known_price(provider, model)
        own = find_named(self._configured, f"{provider}/{model}")
        if own is not None and known is not None and not own.max_output:
            return msgspec.structs.replace(own, max_output=known.max_output)
        return own or known


def _price(given: PriceSettings) -> Price:
    dollars = given.input or 0.0
    return Price(
        from_usd(dollars),
        from_usd(dollars if given.cached is None else given.cached),
        from_usd(given.output or 0.0),
        from_usd(dollars if given.stored is None else given.stored),
        given.max_output or 0,
    )
