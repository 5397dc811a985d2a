"""What an endpoint needs from a wire format beyond the `WireFormat` port: bodies and answers."""

from __future__ import annotations

from typing import Protocol

from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.core.ports import WireFormat
from talaria.models.faults import Faults


class Answer(Protocol):
    """Reads one answer as its bytes arrive. Every method raises `ModelError` and nothing else."""

    def feed(self, data: bytes) -> list[ModelDelta]: ...

    @property
    def has_begun(self) -> bool:
        """Whether the model has said anything: text, a thought, a part of a call. A sign of life is not."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether the model has said that it is finished; a connection lost after that costs nothing."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the provider has said that no more bytes will follow."""
        ...

    def end(self) -> list[ModelDelta]:
        """The stream has ended: what it still held back."""
        ...

    def completion(self) -> Completion:
        """The whole, after `end`; raises `ModelUnavailable` when the answer was cut off."""
        ...


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

    def answer(self, model: str, faults: Faults) -> Answer: ...
