"""The token counts that a provider reports: read with suspicion, and bounded by the bytes of the call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from talaria.core.messages import TokenUsage
from talaria.models.failures import DECODE_ERRORS

MAX_HIDDEN = 1 << 18
"""Tokens of reasoning that a provider may charge without showing them; no model thinks for longer."""
INPUT_SLACK = 1 << 10
"""Tokens that a provider adds to a request, such as its own instructions about tools."""
IMAGE_TOKENS = 16 << 10
"""No model counts more for one image. A link to an image is short, so bytes say nothing about it."""

_MAX_BYTES = 16 << 10
_LONGEST_COUNT = 1 << 53
_IMAGE_MARKS = (b'"image_url":', b'"type":"image"')
_decode = msgspec.json.Decoder(dict[str, Any] | None).decode


def read_counts(raw: msgspec.Raw) -> dict[str, Any] | None:
    """Return the members of a usage object; None if it is missing, null or unreadable.

    An answer is not thrown away because of its bookkeeping.
    """
    if not 0 < len(raw) <= _MAX_BYTES:
        return None
    try:
        found: dict[str, Any] | None = _decode(raw)
    except DECODE_ERRORS:
        return None
    return found


def count(counts: object, name: str) -> int:
    """Return the member `name` of a decoded object if it is a whole number from 0 on, and 0 otherwise."""
    value = counts.get(name) if isinstance(counts, dict) else None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or value <= 0:  # a bool is no count
        return 0
    return value if value < _LONGEST_COUNT else _LONGEST_COUNT


def clamp_usage(usage: TokenUsage, body: Iterable[bytes], sent: int, received: int) -> TokenUsage:
    """Return counts that are possible for a call: at most a token for each byte sent and received.

    `sent` is the length of `body`. Images count apart, and so does reasoning that is not shown. A part of a
    sum is not larger than the sum. Usage that is possible is returned unchanged.
    """
    most_input, most_output = sent + INPUT_SLACK, received
    hidden = min(usage.reasoning, usage.output, MAX_HIDDEN)
    if usage.input <= most_input and usage.output <= most_output + hidden:
        shown_input, shown_output = usage.input, usage.output
    else:
        if usage.input > most_input:
            most_input += IMAGE_TOKENS * sum(piece.count(mark) for piece in body for mark in _IMAGE_MARKS)
        shown_input = min(usage.input, most_input)
        shown_output = min(usage.output, most_output + hidden)
    cached = min(usage.cached, shown_input)
    possible = TokenUsage(
        shown_input,
        cached,
        shown_output,
        min(usage.reasoning, shown_output),
        min(usage.stored, shown_input - cached),
    )
    return usage if possible == usage else possible
