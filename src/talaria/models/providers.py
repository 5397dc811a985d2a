"""The providers of this process by name: their addresses, their keys, and one endpoint each."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from talaria.core.errors import NoModel
from talaria.core.specs import fingerprint_secrets
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.presets import PRESETS
from talaria.models.settings import ProviderSettings
from talaria.models.wire import Wire

if TYPE_CHECKING:
    from talaria.models.endpoint import Endpoint

WIRES: Mapping[str, Wire] = {
    wire.name: wire for wire in (OpenAIChat(), OpenAIResponses(), AnthropicMessages())
}


class Providers:
    """The `Models` port over configuration and environment.

    An endpoint is built at the first `get` of its name and lives until `close`, whatever becomes of agents
    and sessions. Names that are not configured may be presets; a configured one overrides its preset by key.
    """

    def __init__(self, configured: Mapping[str, ProviderSettings], environ: Mapping[str, str]) -> None:
        self._settings = {**PRESETS, **{name: _merge(name, given) for name, given in configured.items()}}
        self._configured = tuple(configured)
        self._environ = environ
        self._endpoints: dict[str, Endpoint] = {}
        self._built = 0

    @property
    def built(self) -> int:
        """How many endpoints were ever built; it never exceeds the number of providers in use."""
        return self._built

    @property
    def known(self) -> tuple[str, ...]:
        """Every name that `get` may be asked for, those of the configuration first."""
        return tuple(dict.fromkeys((*self._configured, *self._settings)))

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """What has been built so far, for status pages."""
        return self._endpoints

    def get(self, provider: str) -> Endpoint:
        endpoint = self._endpoints.get(provider)
        if endpoint is None:
            endpoint = self._build(provider)
            self._endpoints[provider] = endpoint
            self._built += 1
        return endpoint

    def wire(self, provider: str) -> Wire:
        endpoint = self._endpoints.get(provider)
        if endpoint is not None:
            return endpoint.wire
        return _wire(self._usable(provider))

    async def warm(self) -> None:
        """Load the HTTP client ahead of the first call, beside whatever else runs.

        It reads the system's certificates when it is imported, which takes longer than the rest of a start.
        """
        await asyncio.to_thread(import_module, "talaria.models.endpoint")

    def credential(self, provider: str) -> str:
        return _fingerprint(*self._keys(self._find(provider)))

    def secrets(self) -> frozenset[str]:
        """Every key that any provider would use, for the redactor of all sinks."""
        return frozenset(key for settings in self._settings.values() for key in self._keys(settings))

    async def close(self) -> None:
        """Calls in flight lose their connections."""
        endpoints, self._endpoints = self._endpoints, {}
        for endpoint in endpoints.values():
            await endpoint.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _find(self, provider: str) -> ProviderSettings:
        settings = self._settings.get(provider)
        if settings is None:
            nearest = difflib.get_close_matches(provider, self._settings, n=1)
            meant = f" Did you mean {nearest[0]}?" if nearest else ""
            raise NoModel(
                f"There is no provider named {provider}.{meant}",
                f"Add [providers.{provider}] with a base_url to config.toml, or use one of: "
                f"{', '.join(self.known)}.",
            )
        return settings

    def _keys(self, settings: ProviderSettings) -> list[str]:
        key = settings.api_key or self._environ.get(settings.api_key_env, "")
        return [key] if key else []

    def _usable(self, provider: str) -> ProviderSettings:
        settings = self._find(provider)
        if settings.api_key_env and not self._keys(settings):
            raise NoModel(
                f"The provider {provider} needs a key, and {settings.api_key_env} is not set.",
                f"Set {settings.api_key_env} in the environment of the gateway and restart it.",
            )
        address = urlsplit(settings.base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise NoModel(
                f"The provider {provider} has no usable address: base_url is {settings.base_url!r}.",
                f'Set base_url = "https://…/v1" in [providers.{provider}] in config.toml.',
            )
        return settings

    def _build(self, provider: str) -> Endpoint:
        from talaria.models.endpoint import Endpoint, EndpointSettings  # noqa: PLC0415 - see `warm`

        settings = self._usable(provider)
        keys = self._keys(settings)
        return Endpoint(
            EndpointSettings(
                provider,
                settings.base_url,
                keys[0] if keys else "",
                settings.timeout,
                settings.silence,
                settings.max_concurrency,
            ),
            _wire(settings),
        )


def _wire(settings: ProviderSettings) -> Wire:
    return WIRES[settings.api or OpenAIChat.name]


@lru_cache(maxsize=64)
def _fingerprint(*keys: str) -> str:
    """Asked at every lease."""
    return fingerprint_secrets(list(keys))


def _merge(name: str, given: ProviderSettings) -> ProviderSettings:
    """What is not given comes from the preset of that name, but a preset's key only with its address: no key
    is ever sent to another place than it was made for."""
    preset = PRESETS.get(name)
    if preset is None:
        return given
    defaults = ProviderSettings()
    names_key = bool(given.api_key or given.api_key_env)
    takes_key = not given.base_url and not names_key
    return msgspec.structs.replace(
        given,
        base_url=given.base_url or preset.base_url,
        api=given.api or preset.api,
        api_key_env=preset.api_key_env if takes_key else given.api_key_env,
        silence=preset.silence if given.silence == defaults.silence else given.silence,
    )
