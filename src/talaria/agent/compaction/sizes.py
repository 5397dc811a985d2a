"""Sizes in tokens: how much of a model's window a request takes, and how much it may take.

Providers report the tokens of each request. In between, bytes are counted and converted at the rate of the
last report. Nothing is tokenised.
"""

from __future__ import annotations

import msgspec

from talaria.agent.settings import ContextSettings
from talaria.agent.warm import WarmAgent
from talaria.models.known import Abilities

TOKENS_PER_BYTE = 1 / 3
"""The rate for text of which no report is known, and for all new text: English has a lower rate."""
_LEAST_RATE, _HIGHEST_RATE = 1 / 12, 1.0  # another rate is no measurement
_LEAST_SEEDED = 1 / 4
_USUAL_ANSWER = 4096
_KEPT_SHARE = 0.3
_ANSWER_SHARE = 8  # an answer takes at most one part of so many of the window


class WindowLimits(msgspec.Struct, frozen=True):
    """Numbers of tokens. A request of more than `at` is compacted, to `target` if that can be done. The last
    turns may keep `kept`. No request is sent with more than `most`. `window` is the model's, or as large as
    the settings allow if it is not known."""

    window: int
    at: int
    target: int
    kept: int
    most: int

    @classmethod
    def of(cls, settings: ContextSettings, known: Abilities, learned: int | None = None) -> WindowLimits:
        """`learned` is a size that an endpoint has refused."""
        largest = round(settings.max_tokens / settings.compact_at)
        sizes = [size for size in (known.context, learned) if size is not None]
        window = min(sizes) if sizes else largest
        used = min(window, largest)
        answer = min(known.output or _USUAL_ANSWER, window // _ANSWER_SHARE)
        return cls(
            window,
            at=min(round(used * settings.compact_at), window - answer),
            target=used // 2,
            kept=round(used * _KEPT_SHARE),
            most=window - answer,
        )


def request_weight(view: WarmAgent) -> int:
    """Return the bytes of a request that count as input."""
    prefix = view.pinned.prefix
    return len(prefix.system) + len(prefix.tools) + view.transcript.weight


def count_tokens(view: WarmAgent) -> int:
    """Return about how many tokens the next request has."""
    weight = request_weight(view)
    if view.measured is None:
        return round(weight * TOKENS_PER_BYTE)
    measured_weight, tokens = view.measured
    return round(tokens + max(0, weight - measured_weight) * max(_rate(view), TOKENS_PER_BYTE))


def rate_of(view: WarmAgent) -> float:
    """Return the tokens of the next request for each of its bytes."""
    return count_tokens(view) / max(1, request_weight(view))


def _rate(view: WarmAgent) -> float:
    if view.measured is None:
        return TOKENS_PER_BYTE
    weight, tokens = view.measured
    return tokens / max(1, weight)


def seed(view: WarmAgent, reported: int) -> None:
    """Let a view without a measurement count with the size of the session's last request. That may have shown
    more or less than the next one, so it can lower the estimate by a quarter at most."""
    weight = request_weight(view)
    rate = max(reported / max(1, weight), _LEAST_SEEDED)
    if rate < TOKENS_PER_BYTE:
        view.measured = (weight, round(weight * rate))


def measure(view: WarmAgent, weight: int, reported: int) -> None:
    """Note that a request of `weight` bytes had so many tokens. A report that cannot be true is ignored."""
    if weight and _LEAST_RATE <= reported / weight <= _HIGHEST_RATE:
        view.measured = (weight, reported)
