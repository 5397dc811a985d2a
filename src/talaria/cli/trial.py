"""One tiny call that shows whether a model can be used: `talaria setup` and `talaria doctor --call`."""

from __future__ import annotations

import time

from talaria.core.messages import Text, UserMessage
from talaria.core.models import ModelCall
from talaria.core.spending import cost, show_usd
from talaria.models.catalog import ModelChoice
from talaria.models.known import Prices
from talaria.models.providers import Providers

QUESTION = "Answer with the word: ready"
MOST_TOKENS = 64  # models that think want some before they speak


async def try_model(providers: Providers, choice: ModelChoice, prices: Prices) -> str:
    """What came of it, in a sentence. Raises `NoModel` and `ModelError`, each with what to do."""
    endpoint = providers.get(choice.provider)
    wire = endpoint.wire
    call = ModelCall(
        model=choice.model,
        prefix=wire.render_prefix("", ()),
        chunks=[wire.encode(UserMessage((Text(QUESTION),)))],
        max_output=MOST_TOKENS,
    )
    began = time.monotonic()
    usage = (await endpoint.complete(call, lambda delta: None)).usage
    seconds = time.monotonic() - began
    price = prices.find(choice.provider, choice.model)
    if price is None:
        paid = "its price is not known"
    else:
        paid = show_usd(cost(usage, price)) if cost(usage, price) else "free"
    used = f"{usage.input} tokens in, {usage.output} out"
    return f"{choice} answered in {seconds:.1f} s (one call: {used}, {paid})."
