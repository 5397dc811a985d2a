"""`[model]`, `[aliases]` and `[providers.*]`: which model answers, and where it is reached."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec


class FallbackSettings(msgspec.Struct, frozen=True):
    """A model that answers when those before it cannot."""

    provider: str = ""
    name: str = ""


class ModelSettings(msgspec.Struct, frozen=True):
    """An empty `provider` means the built-in model. `reasoning` is per turn, and so is the
    `fallback`, which is asked in its order."""

    provider: str = ""
    name: str = ""
    reasoning: Literal["none", "low", "medium", "high"] = "none"
    fallback: tuple[FallbackSettings, ...] = ()


class ProviderSettings(msgspec.Struct, frozen=True):
    """`connect_timeout` bounds the wait for a connection, `first_token` that for the first word of an answer,
    `silence` that for more of it, and `timeout` a whole call. `max_retries` come after the first try.

    Without an `api` it is that of the preset of this name, else "openai-chat".
    """

    base_url: str = ""
    api: Literal["openai-chat", "openai-responses", "anthropic-messages"] | None = None
    api_key: str = ""
    api_key_env: str = ""
    timeout: timedelta = timedelta(seconds=600)
    connect_timeout: timedelta = timedelta(seconds=10)
    first_token: timedelta = timedelta(seconds=120)
    silence: timedelta = timedelta(seconds=120)
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 3
    max_concurrency: Annotated[int, msgspec.Meta(ge=1)] = 256

    def __repr__(self) -> str:
        return f"ProviderSettings(base_url={self.base_url!r}, api={self.api!r})"
