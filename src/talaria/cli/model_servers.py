"""Model servers for `setup` and `doctor`: addresses as people type them, and a trial call."""

from __future__ import annotations

import re
import time
from urllib.parse import urlsplit

from talaria.core.messages import Text, UserMessage
from talaria.core.models import ModelCall
from talaria.core.setting_marks import web_address
from talaria.core.spending import cost, show_usd
from talaria.models.catalog import ModelChoice
from talaria.models.known import Prices
from talaria.models.loaded_context import is_near_host
from talaria.models.providers import Providers
from talaria.models.settings import PRESETS

TRIAL_QUESTION = "Answer with the word: ready"
TRIAL_TOKENS = 64  # reasoning models need some before they answer


def is_like_address(text: str) -> bool:
    return text == "localhost" or bool(re.search(r"[:/.]", text))


def read_address(text: str) -> str:
    """Return the address with a scheme: http for this machine and private networks, else https.

    Returns an empty string if the text is not an address.
    """
    address = text.strip().rstrip("/")
    try:
        if "://" not in address:
            near = is_near_host(urlsplit(f"//{address}").hostname or "")
            address = f"{'http' if near else 'https'}://{address}"
        return "" if web_address(address) else address
    except ValueError:
        return ""


def name_for(address: str) -> str:
    """Return a provider name such as `local-9999`, `192-168-0-7-8000` or `example`.

    It is never the name of a known provider, which has another address.
    """
    parts = urlsplit(address)
    host, port = parts.hostname or "", f"-{parts.port}" if parts.port else ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return f"local{port or '-server'}"
    whole = re.sub(r"[^a-z0-9]+", "-", host).strip("-") + port
    short = whole if is_near_host(host) or host[-1:].isdigit() else host.split(".")[-2]
    return whole if short in PRESETS else short


async def try_model(providers: Providers, choice: ModelChoice, prices: Prices) -> str:
    """Make one small call. Returns the result as a sentence. Raises `NoModel` and `ModelError`."""
    endpoint = providers.get(choice.provider)
    wire = endpoint.wire
    call = ModelCall(
        model=choice.model,
        prefix=wire.render_prefix("", ()),
        chunks=[wire.encode(UserMessage((Text(TRIAL_QUESTION),)))],
        max_output=TRIAL_TOKENS,
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
