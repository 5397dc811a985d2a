"""Which model a name means (none, an agent, an alias, a model of a provider), and what is known of it.

The name that a caller gives is a *wish*; what it resolves to is a `ModelChoice`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

import msgspec

from talaria.core.errors import NoModel, NotFound
from talaria.core.spending import FREE, Price
from talaria.core.text import cut, did_you_mean
from talaria.models.discovery import ModelLists
from talaria.models.known import NOTHING_KNOWN, Abilities, find_by_pattern, known_abilities
from talaria.models.settings import LOCAL, SCRIPTED, ModelSettings

MAX_NAMES = 1_000
_LONGEST_WISH = 200  # characters that are shown and compared
_MAX_SHOWN = 20  # names in an error


class ModelChoice(msgspec.Struct, frozen=True):
    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def providers_in_use(model: ModelSettings, aliases: Mapping[str, str]) -> tuple[str, ...]:
    """Return the providers of all models that the configuration names."""
    named = [model.name, *aliases.values()] if not model.provider else aliases.values()
    return (
        model.provider,
        *(fallback.provider for fallback in model.fallback),
        *(name.partition("/")[0] for name in named if "/" in name),
    )


def fallback_chain(settings: ModelSettings) -> tuple[ModelChoice, ...]:
    return tuple(ModelChoice(fallback.provider, fallback.name) for fallback in settings.fallback)


class Catalog:
    """Resolves wishes against the configuration. It asks no server; `model_lists` has what servers said.

    In `provider/model` the first part is a provider only if one of that name is known, because the names of
    models have slashes too. The name of the configured model always means the configured model.
    """

    def __init__(
        self,
        model: ModelSettings,
        aliases: Mapping[str, str],
        *,
        providers: Collection[str],
        agents: Collection[str] = ("main",),
        config_path: str = "config.toml",
        abilities: Mapping[str, Abilities] | None = None,
        model_lists: ModelLists | None = None,
        built_in_models: Sequence[str] = (),
        built_in_default: Callable[[], str] | None = None,
    ) -> None:
        """`abilities` are the operator's, by `provider/model` or a pattern of it. `built_in_default` returns
        the built-in model that is meant where none is named; without it that is the first one."""
        self.change(model, aliases, providers, built_in_models)
        self._agents = tuple(agents)
        self._config_path = config_path
        self._abilities = abilities or {}
        self._model_lists = model_lists
        self._built_in_default = built_in_default
        self._merged = lru_cache(maxsize=256)(self._merge)

    def change(
        self,
        model: ModelSettings,
        aliases: Mapping[str, str],
        providers: Collection[str],
        built_in_models: Sequence[str],
    ) -> None:
        """Use another configuration from now on. Sessions keep the model that they are pinned to."""
        self._model = model
        self._aliases = aliases
        self._providers = frozenset(providers)
        self._built_in = tuple(built_in_models)

    def resolve(self, wish: str | None = None) -> ModelChoice:
        """Return the model that a wish means; no wish means the default.

        Raises `NotFound` for an unknown name, and `NoModel` if the default is missing.
        """
        if not wish or wish in self._agents:
            return self.default()
        if (alias := self._aliases.get(wish)) is not None:
            choice = self._named(alias)
            if choice is None:
                raise NoModel(
                    f"The alias {wish} means {alias}, which is no model of a known provider.",
                    f'Write it as "provider/model" in [aliases] in {self._config_path}.',
                )
            return choice
        choice = self._named(wish)
        if choice is None:
            raise self._unknown(wish)
        return choice

    def default(self) -> ModelChoice:
        settings = self._model
        if not settings.provider:
            choice = self._split(settings.name)
            if choice is not None:
                return choice
            if self._built_in and not settings.name:
                return self._local("")
            raise NoModel(
                "No model is configured.",
                f"Set [model] and [providers.NAME] in {self._config_path}, or, to try without a key, run "
                f"`{_scripted_command()}` in another terminal and restart with "
                "TALARIA_MODEL__PROVIDER=scripted.",
            )
        if settings.provider == LOCAL and self._built_in:
            return self._local(settings.name)
        if not settings.name and settings.provider != SCRIPTED:
            raise NoModel(
                f"The provider {settings.provider} is configured, but no model of it.",
                f"Set name in [model] in {self._config_path}.",
            )
        return ModelChoice(settings.provider, settings.name or SCRIPTED)

    def abilities(self, provider: str, model: str) -> Abilities:
        """Return what is known of a model: from the operator, then the endpoint, then the built-in table."""
        lists = self._model_lists
        return self._merged(provider, model, None if lists is None else lists.find(provider, model))

    def _merge(self, provider: str, model: str, listed: Abilities | None) -> Abilities:
        found = self.configured_abilities(provider, model).or_else(listed or NOTHING_KNOWN)
        return found.or_else(known_abilities(provider, model))

    def configured_abilities(self, provider: str, model: str) -> Abilities:
        """Return what the operator says alone."""
        return find_by_pattern(self._abilities, f"{provider}/{model}") or NOTHING_KNOWN

    def price(self, find: Callable[[str, str], Price | None], provider: str, model: str) -> Price | None:
        """Return the price that `find` knows, with the length of the longest answer that is known here."""
        found = find(provider, model)
        if found is None or found == FREE:
            return found
        longest = self.configured_abilities(provider, model).output or found.max_output
        longest = longest or self.abilities(provider, model).output or 0
        return msgspec.structs.replace(found, max_output=longest)

    def listed(self) -> list[str]:
        """Return the models that endpoints have listed, as `provider/model`; at most `MAX_NAMES`."""
        if self._model_lists is None:
            return []
        return list(islice((name for name in self._model_lists.names() if self._named(name)), MAX_NAMES))

    def names(self) -> list[str]:
        """Return the names of agents, the configured model and aliases. All of them resolve."""
        names: list[str] = []
        with suppress(NoModel):
            names = [*self._agents, str(self.default())]
        names += [alias for alias, target in self._aliases.items() if self._named(target) is not None]
        return list(dict.fromkeys(names))

    def _named(self, name: str) -> ModelChoice | None:
        settings = self._model
        if settings.provider and name in (settings.name, settings.provider):
            return self.default()
        return self._split(name)

    def _local(self, name: str) -> ModelChoice:
        if name and name not in self._built_in:
            raise NoModel(
                f"There is no built-in model named {name}.",
                f"The built-in models are: {', '.join(self._built_in)}.",
            )
        if not name:
            name = self._built_in[0] if self._built_in_default is None else self._built_in_default()
        return ModelChoice(LOCAL, name)

    def _split(self, name: str) -> ModelChoice | None:
        provider, _, model = name.partition("/")
        if provider == LOCAL and self._built_in:
            return self._local(model)
        if provider == SCRIPTED and provider in self._providers:
            return ModelChoice(SCRIPTED, model or SCRIPTED)
        if model and (provider in self._providers or provider == self._model.provider):
            return ModelChoice(provider, model)
        return None

    def _unknown(self, wish: str) -> NotFound:
        known = list(dict.fromkeys((*self.names(), *self.listed())))
        wish = cut(wish, _LONGEST_WISH)
        suggestion = did_you_mean(wish, known)
        provider = self._model.provider
        example = f", such as {provider}/{wish}" if provider else ""
        shown = ", ".join(name[:_LONGEST_WISH] for name in known[:_MAX_SHOWN]) or "none yet"
        if len(known) > _MAX_SHOWN:
            shown += f" and {len(known) - _MAX_SHOWN} more (GET /v1/models lists them)"
        return NotFound(
            f"There is no model or agent named {wish}. {suggestion}".rstrip(),
            f"Known: {shown}. Any other model is written provider/model{example}.",
            code="model_not_found",
            param="model",
        )


def _scripted_command() -> str:
    """Return the command that runs the scripted model: a clone has one of its own."""
    clone = Path(sys.prefix).parent
    if (clone / "dev").is_file() and (clone / "src" / "talaria").is_dir():
        return "./dev scripted" if Path.cwd() == clone else f"{clone / 'dev'} scripted"
    return f"{sys.executable} -m talaria.testing.model_server"
