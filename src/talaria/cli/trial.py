"""One tiny call that shows whether a model can be used: `talaria setup` and `talaria doctor --call`."""

from __future__ import annotations

import time

import msgspec

from talaria.core.messages import Text, TokenUsage, UserMessage
from talaria.core.models import ModelCall
from talaria.core.spending import Price, cost, show_usd
from talaria.models.catalog import Choice
from talaria.models.prices import Prices
from talaria.models.providers import Providers

QUESTION = "Answer with the word: ready"
MOST_TOKENS = 64  # models that think want some before they speak


class Trial(msgspec.Struct, frozen=True):
    choice: Choice
    seconds: float
    usage: TokenUsage
    price: Price | None

    def __str__(self) -> str:
        used = f"{self.usage.input} tokens in, {self.usage.output} out"
        if self.price is None:
            paid = "its price is not known"
        else:
            paid = show_usd(cost(self.usage, self.price)) if cost(self.usage, self.price) else "free"
        return f"{self.choice} answered in {self.seconds:.1f} s (one call: {used}, {paid})."


async def try_model(providers: Providers, choice: Choice, prices: Prices) -> Trial:
    """Raises `NoModel` and `ModelError`, each with what to do."""
    endpoint = providers.get(choice.provider)
    wire = endpoint.wire
    call = ModelCall(
        model=choice.model,
        prefix=wire.render_prefix("", ()),
        chunks=[wire.encode(UserMessage((Text(QUESTION),)))],
        max_output=MOST_TOKENS,
    )
    began = time.monotonic()
    completion = await endpoint.complete(call, lambda delta: None)
    price = prices.find(choice.provider, choice.model)
    return Trial(choice, time.monotonic() - began, completion.usage, price)
