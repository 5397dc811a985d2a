"""The `encrypted_content` of reasoning items: what a caller without a store sends back to the model."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from talaria.core.messages import AssistantMessage, Reasoning

_SEAL = "talaria1."  # how our `encrypted_content` begins
_encode = msgspec.json.Encoder().encode


class SealedReasoning(msgspec.Struct, frozen=True, array_like=True):
    """The reasoning of an answer, with the model that it must go back to."""

    provider: str
    model: str
    reasoning: tuple[Reasoning, ...]


_decode_sealed = msgspec.json.Decoder(SealedReasoning).decode


def seal_reasoning(message: AssistantMessage) -> str | None:
    """Return the reasoning as an `encrypted_content`, or None if the message has none.

    It is encoded, not encrypted: what must stay secret in it is encrypted by the provider. `open_reasoning`
    reads it.
    """
    if not message.reasoning:
        return None
    sealed = SealedReasoning(message.provider, message.model, message.reasoning)
    return _SEAL + urlsafe_b64encode(_encode(sealed)).decode()


def open_reasoning(text: str | None) -> SealedReasoning | None:
    """Return the content of a seal, or None for a text that is not ours."""
    if text is None or not text.startswith(_SEAL):
        return None
    try:
        return _decode_sealed(urlsafe_b64decode(text[len(_SEAL) :]))
    except (ValueError, msgspec.DecodeError):
        return None
