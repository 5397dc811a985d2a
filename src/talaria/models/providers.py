"""The providers of this process by name: addresses, keys, and one endpoint each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast
from urllib.parse import urlsplit

import msgspec

from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import NoModel
from talaria.core.limits import Limits
from talaria.core.specs import fingerprint_secrets
from talaria.core.text import did_you_mean
from talaria.models.answer_budget import AnswerMemory
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.discovery import LoadedModels, ask_loaded, is_near
from talaria.models.limiter import CallLimiter
from talaria.models.local.weights import MANIFEST
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.settings import LOCAL, PRESETS, ModelSettings, ProviderSettings
from talaria.models.wire import Wire
from talaria.observe.metrics import EndpointReading

if TYPE_CHECKING:
    from talaria.models.endpoint import Endpoint
    from talaria.models.local.local_endpoint import LocalEndpoint

_LOADED_SECONDS = 5.0  # for all questions about what a server has loaded
WIRES: Mapping[str, Wire] = {
    wire.name: wire for wire in (OpenAIChat(), OpenAIResponses(), AnthropicMessages())
}


class Providers:
    """The `Models` port over configuration and environment.

    An endpoint is built by the first `get` of its name and lives until `close`, independent of agents and
    sessions. Every preset is a provider; a configured provider overrides the preset of its name key by key.
    """

    def __init__(
        self,
        configured: Mapping[str, ProviderSettings],
        environ: Mapping[str, str],
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
        *,
        local: LocalEndpoint | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`clock` and `draw` (random numbers from 0 to 1) are for the breakers of the endpoints. `local` is
        the built-in model; it is not used if the operator has a provider of that name."""
        self._memory = AnswerMemory(limits)
        self._settings: Mapping[str, ProviderSettings] = {}
        self._environ = environ
        self._clock = clock or SystemClock()
        self._draw = draw
        self._endpoints: dict[str, Endpoint | LocalEndpoint] = {}
        self._local = local
        self._replaced: list[Endpoint | LocalEndpoint] = []
        self._built = 0
        self.is_prepared = False
        self.change(configured)

    @property
    def built(self) -> int:
        """The number of endpoints that were ever built."""
        return self._built

    @property
    def known(self) -> tuple[str, ...]:
        """Every name that `get` knows, the configured ones first."""
        built_in = (LOCAL,) if self._built_in(LOCAL) is not None else ()
        return tuple(dict.fromkeys((*self._configured, *self._settings, *built_in)))

    @property
    def built_in_models(self) -> tuple[str, ...]:
        """The names of the built-in models; empty if the operator has a provider named `local`."""
        return tuple(weights.name for weights in MANIFEST) if self._built_in(LOCAL) is not None else ()

    def readings(self) -> dict[str, EndpointReading]:
        """Return the state of each endpoint that was built."""
        return {name: endpoint.reading() for name, endpoint in self._endpoints.items()}

    def change(self, configured: Mapping[str, ProviderSettings]) -> None:
        """Use other addresses and keys from now on.

        Turns under way keep their endpoints. Replaced endpoints are closed by `close`.
        """
        before = self._settings
        self._settings = {**PRESETS, **{name: _merge(name, given) for name, given in configured.items()}}
        self._configured = tuple(configured)
        for name in [*self._endpoints]:
            if self._settings.get(name) != before.get(name):
                self._replaced.append(self._endpoints.pop(name))

    def follow(self, model: ModelSettings) -> None:
        """Note the default model. A built-in one that is not here yet is fetched."""
        if (local := self._built_in(LOCAL)) is not None:
            local.downloads.follow(model)

    def get(self, provider: str) -> Endpoint | LocalEndpoint:
        endpoint = self._endpoints.get(provider)
        if endpoint is None:
            endpoint = self._built_in(provider) or self._build(provider)
            self._endpoints[provider] = endpoint
            self._built += 1
        return endpoint

    def wire(self, provider: str) -> Wire:
        endpoint = self._endpoints.get(provider)
        if endpoint is not None:
            return endpoint.wire
        if (local := self._built_in(provider)) is not None:
            return local.wire
        return _wire(self._usable(provider))

    async def prepare(self) -> None:
        """Import the HTTP client in a thread, once. The first call of a process does it, and not its start:
        the import reads the system's certificates, and a gateway that waits for messages needs 9 MB less."""
        if not self.is_prepared:
            await asyncio.to_thread(import_module, "talaria.models.endpoint")
            self.is_prepared = True

    def base_url(self, provider: str) -> str:
        """Return the configured address without its credentials. Raises `NoModel`."""
        return str(self._find(provider).base_url)

    def missing_keys(self, names: Iterable[str]) -> dict[str, str]:
        """Return those of these providers that lack their key, with the name of its variable."""
        known = {name: self._settings[name] for name in names if name in self._settings}
        return {
            name: each.api_key_env for name, each in known.items() if each.api_key_env and not self._key(each)
        }

    async def list_models(self, provider: str) -> bytes:
        """Return the provider's own list of its models. Raises `NoModel` and `ModelError`."""
        await self.prepare()
        return await self.get(provider).list_models()

    def has_embeddings(self, provider: str) -> bool:
        """Return whether the provider's API has a call for embeddings."""
        return self._built_in(provider) is None and self.wire(provider).name != AnthropicMessages.name

    async def embed(self, provider: str, model: str, body: bytes) -> bytes:
        """Return the provider's answer to a request for embeddings. Raises `NoModel` and `ModelError`."""
        await self.prepare()
        endpoint = cast("Endpoint", self.get(provider))  # only the built-in model has another kind
        return await endpoint.embed(model, body)

    async def loaded(self, provider: str, model: str = "") -> LoadedModels | None:
        """Return the context sizes that a server on this machine or in a private network has loaded; None for
        other servers, and for one that cannot be asked."""
        try:
            if self._built_in(provider) is not None or not is_near(self.base_url(provider)):
                return None
            await self.prepare()
            endpoint = cast("Endpoint", self.get(provider))  # only the built-in model has another kind
            async with asyncio.timeout(_LOADED_SECONDS):
                return await ask_loaded(endpoint.ask_server, model)
        except (NoModel, TimeoutError):
            return None

    def credential(self, provider: str) -> str:
        return _fingerprint(self._key(self._find(provider)))

    async def close(self) -> None:
        """Close all endpoints. Calls in flight lose their connections."""
        endpoints = [*self._endpoints.values(), *self._replaced]
        self._endpoints, self._replaced = {}, []
        for endpoint in endpoints:
            await endpoint.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _built_in(self, provider: str) -> LocalEndpoint | None:
        return self._local if provider == LOCAL and LOCAL not in self._configured else None

    def _find(self, provider: str) -> ProviderSettings:
        settings = self._settings.get(provider)
        if settings is None and self._built_in(provider) is not None:
            return ProviderSettings("built-in")
        if settings is None:
            provider = provider[:100]
            suggestion = did_you_mean(provider, self._settings)
            raise NoModel(
                f"There is no provider named {provider}. {suggestion}".rstrip(),
                f"Add [providers.{provider}] with a base_url to config.toml, or use one of: "
                f"{', '.join(self.known)}.",
            )
        return settings

    def _key(self, settings: ProviderSettings) -> str:
        name = settings.api_key_env
        return settings.api_key or (self._environ.get(name, "") if name else "")

    def _usable(self, provider: str) -> ProviderSettings:
        settings = self._find(provider)
        if settings.api_key_env and not self._key(settings):
            raise NoModel(
                f"The provider {provider} needs a key, and {settings.api_key_env} is not set.",
                f"Set {settings.api_key_env} in the environment of the gateway and restart it.",
            )
        address = urlsplit(settings.base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise NoModel(
                f"The provider {provider} has no usable address: base_url is {str(settings.base_url)!r}.",
                f'Set base_url = "https://…/v1" in [providers.{provider}] in config.toml.',
            )
        return settings

    def _build(self, provider: str) -> Endpoint:
        from talaria.models.endpoint import Endpoint  # noqa: PLC0415 - see `prepare`

        settings = self._usable(provider)
        limiter = CallLimiter(settings.max_concurrency, self._clock, self._draw)
        keyed = msgspec.structs.replace(settings, api_key=self._key(settings))
        return Endpoint(provider, keyed, _wire(settings), limiter, self._memory)


def _wire(settings: ProviderSettings) -> Wire:
    return WIRES[settings.api or OpenAIChat.name]


@lru_cache(maxsize=64)  # asked at every lease
def _fingerprint(key: str) -> str:
    return fingerprint_secrets([key] if key else [])


def _merge(name: str, given: ProviderSettings) -> ProviderSettings:
    """Fill in what is not given from the preset of that name.

    The preset's key is used only with the preset's address: no key is sent to another place.
    """
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
        first_token=preset.first_token if given.first_token == defaults.first_token else given.first_token,
    )
