"""`[model]`, `[providers.*]` and `[local]`: which model answers, where it is, and the known providers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

import msgspec

from talaria.core.redaction import ApiAddress
from talaria.core.settings import Check, Mark, Unset, matching, short_name, variable_name, web_address

ProviderName = Annotated[str, Check(short_name)]
ModelPattern = Annotated[
    str, Check(matching("(?s:[^/]+/.+)", 'a provider and a model, such as "openai/gpt-5" or "mine/*"'))
]
AliasTarget = Annotated[str, Check(matching(r"(?s:.*\S.*)", "some text"))]
SCRIPTED = "scripted"
LOCAL = "local"  # the built-in model, unless the operator has a provider of this name
_IN_NAME = "what model.name has before a /"


class FallbackSettings(msgspec.Struct, frozen=True):
    """A model that answers when those before it cannot."""

    provider: str = ""
    name: str = ""


class ModelSettings(msgspec.Struct, frozen=True):
    """No `provider` and no `name` mean the built-in model. `fallback` is tried in its order, anew in
    each turn."""

    provider: Annotated[str, Mark.LIVE, Unset("the built-in model", LOCAL, "name", _IN_NAME)] = ""
    name: Annotated[str, Mark.LIVE, Unset("the built-in model needs none")] = ""
    reasoning: Literal["none", "low", "medium", "high"] = "none"
    fallback: tuple[FallbackSettings, ...] = ()


class ProviderSettings(msgspec.Struct, frozen=True):
    """`connect_timeout` bounds the wait for a connection, `first_token` the wait for an answer to start,
    `silence` a pause within it, and `timeout` a whole call. `max_retries` does not count the first try; all
    tries together have to begin an answer within `retry_within`, or within a longer `first_token`.

    The default of `api` is that of the preset with this name, else "openai-chat".
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
    retry_within: timedelta = timedelta(minutes=3)
    max_concurrency: Annotated[int, msgspec.Meta(ge=1)] = 256

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "base_url", ApiAddress(self.base_url))

    @property
    def address(self) -> ApiAddress:
        """The address with its credentials; `base_url` shows it without them."""
        return ApiAddress(self.base_url)

    def __repr__(self) -> str:
        return f"ProviderSettings(base_url={self.base_url!r}, api={self.api!r})"


class LocalSettings(msgspec.Struct, frozen=True):
    """`[local]`. `idle_after`: how long after its last answer the built-in model leaves memory.

    `threads` generate text. Two threads that spin on a busy machine are slower than one.
    """

    idle_after: timedelta = timedelta(minutes=10)
    threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


PRESETS: Mapping[str, ProviderSettings] = {
    "openai": ProviderSettings("https://api.openai.com/v1", api_key_env="OPENAI_API_KEY"),
    "anthropic": ProviderSettings(
        "https://api.anthropic.com/v1", "anthropic-messages", api_key_env="ANTHROPIC_API_KEY"
    ),
    "openrouter": ProviderSettings("https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY"),
    "deepseek": ProviderSettings("https://api.deepseek.com/v1", api_key_env="DEEPSEEK_API_KEY"),
    "moonshot": ProviderSettings("https://api.moonshot.ai/v1", api_key_env="MOONSHOT_API_KEY"),
    "groq": ProviderSettings("https://api.groq.com/openai/v1", api_key_env="GROQ_API_KEY"),
    "ollama": ProviderSettings("http://127.0.0.1:11434/v1", first_token=timedelta(minutes=10)),
    "scripted": ProviderSettings("http://127.0.0.1:8766/v1"),
}
