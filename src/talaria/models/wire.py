"""What an endpoint needs from a wire format beyond the `WireFormat` port: bodies and answers."""

from __future__ import annotations

from typing import Protocol

from talaria.core.models import ModelCall
from talaria.core.ports import WireFormat
from talaria.models.answer import Answer
from talaria.models.failures import ProviderErrors


class Wire(WireFormat, Protocol):
    """A wire format as an endpoint uses it."""

    @property
    def path(self) -> str:
        """Where it is spoken, below the provider's base URL."""
        ...

    @property
    def list_path(self) -> str:
        """Where the provider lists its models, below its base URL."""
        ...

    def headers(self, key: str) -> dict[str, str]:
        """What this API wants beside the body; `key` is empty for a provider without one."""
        ...

    def body(self, call: ModelCall) -> list[bytes]:
        """The request body in a few pieces; their concatenation is one JSON object."""
        ...

    def answer(self, model: str, errors: ProviderErrors) -> Answer: ...
