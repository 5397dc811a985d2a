"""`Model` and `Models`: the interfaces through which agents call models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.models.wire import Wire


class Model(Protocol):
    """An endpoint at which models are called.

    `complete` streams deltas to `sink` and returns the whole answer. It raises `ModelError`, of the kind
    `EndpointResting` if no call was made. When it is cancelled, it closes its connection before it ends.
    Before any exception leaves it, `sink` gets `CallCut` if a byte of the request may have been sent.
    """

    @property
    def max_retries(self) -> int:
        """The number of further tries for a call that failed for a passing reason."""
        ...

    @property
    def retry_within(self) -> float:
        """The seconds after the first try within which every further try must begin its answer."""
        ...

    @property
    def is_resting(self) -> bool:
        """Whether a call would be refused now without being made, because too many have failed in a row."""
        ...

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion: ...


class Models(Protocol):
    """The models of this process by provider name. Raises `NoModel` for a provider that cannot be used."""

    def wire(self, provider: str) -> Wire:
        """Return the format of the provider's requests, without connecting to it."""
        ...

    @property
    def is_prepared(self) -> bool:
        """Whether `get` may be called on the event loop; if not, call `prepare` first."""
        ...

    async def prepare(self) -> None: ...

    def get(self, provider: str) -> Model: ...

    def credential(self, provider: str) -> str:
        """Return the fingerprint of the provider's current secrets."""
        ...
