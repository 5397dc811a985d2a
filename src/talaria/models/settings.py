"""`[model]`, `[aliases]` and `[providers.*]`: which model answers, and where it is reached."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec

from talaria.core.schema import Check, Mark, matching, short_name, variable_name, web_address

ProviderName = Annotated[str, Check(short_name)]
ModelPattern = Annotated[
    str, Check(matching("(?s:[^/]+/.+)", 'a provider and a model, such as "openai/gpt-5" or "mine/*"'))
]
AliasTarget = Annotated[str, Check(matching(r"(?s:.*\S.*)", "some text"))]


class FallbackSettings(msgspec.Struct, frozen=True):
    """A model that answers when those before it cannot."""

    provider: str = ""
    name: str = ""


class ModelSettings(msgspec.Struct, frozen=True):
    """An empty `provider` means the built-in model. `reasoning` is per turn, and so is the
    `fallback`, which is asked in its order."""

    provider: Annotated[str, Mark.LIVE] = ""
    name: Annotated[str, Mark.LIVE] = ""
    reasoning: Literal["none", "low", "medium", "high"] = "none"
    fallback: tuple[FallbackSettings, ...] = ()


class ProviderSettings(msgspec.Struct, frozen=True):
    """`connect_timeout` bounds the wait for a connection, `first_token` that for the first word of an answer,
    `silence` that for more of it, and `timeout` a whole call. `max_retries` come after the first try.

    Without an `api` it is that of the preset of this name, else "openai-chat".
    """

    base_url: Annotated[str, Check(web_address)] = ""
    api: Literal["openai-chat", "openai-responses", "anthropic-messages"] | None = None
    api_key: Annotated[str, Mark.SECRET] = ""
    api_key_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""
    timeout: timedelta = timedelta(seconds=600)
    connect_timeout: timedelta = timedelta(seconds=10)
    first_token: timedelta = timedelta(seconds=120)
    silence: timedelta = timedelta(seconds=120)
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 3
    max_concurrency: Annotated[int, msgspec.Meta(ge=1)] = 256

    def __repr__(self) -> str:
        return f"ProviderSettings(base_url={self.base_url!r}, api={self.api!r})"
