"""`[model]`, `[aliases]` and `[providers.*]`: which model answers, and where it is reached."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec


class ModelSettings(msgspec.Struct, frozen=True):
    """An empty `provider` means that no model is configured yet. `reasoning` is per turn."""

    provider: str = ""
    name: str = ""
    reasoning: Literal["none", "low", "medium", "high"] = "none"


class ProviderSettings(msgspec.Struct, frozen=True):
    """`timeout` bounds a whole call, `silence` the wait for its first byte and between two of them.

    Without an `api` it is that of the preset of this name, else "openai-chat".
    """

    base_url: str = ""
    api: Literal["openai-chat", "openai-responses", "anthropic-messages"] | None = None
    api_key: str = ""
    api_key_env: str = ""
    timeout: timedelta = timedelta(seconds=600)
    silence: timedelta = timedelta(seconds=120)
    max_concurrency: Annotated[int, msgspec.Meta(ge=1)] = 256

    def __repr__(self) -> str:
        return f"ProviderSettings(base_url={self.base_url!r}, api={self.api!r})"
