"""Which model a wish means (nothing, an agent, an alias, a model of a provider), and what is known of it."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from talaria.core.errors import NoModel, NotFound
from talaria.core.spending import FREE, Price
from talaria.models.abilities import NOTHING_KNOWN, Abilities
from talaria.models.known import known_abilities
from talaria.models.naming import find_named
from talaria.models.presets import LOCAL, SCRIPTED
from talaria.models.probes import Probes
from talaria.models.settings import ModelSettings

MAX_NAMES = 1_000


class Choice(msgspec.Struct, frozen=True):
    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def providers_in_use(model: ModelSettings, aliases: Mapping[str, str]) -> tuple[str, ...]:
    """Those that the configuration names a model of."""
    named = [model.name, *aliases.values()] if not model.provider else aliases.values()
    return (
        model.provider,
        *(fallback.provider for fallback in model.fallback),
        *(name.partition("/")[0] for name in named if "/" in name),
    )


def fallback_chain(settings: ModelSettings) -> tuple[Choice, ...]:
    return tuple(Choice(fallback.provider, fallback.name) for fallback in settings.fallback)


class Catalog:
    """Resolves wishes against the configuration; asks no server. What servers said earlier is in `probes`.

    In `provider/model` the first part is a provider only when one of that name is known, because models
    have slashes in their names too. The configured model's own name always means the configured model.
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
        probes: Probes | None = None,
        built_in_models: Sequence[str] = (),
    ) -> None:
        """`abilities` are the operator's, by `provider/model` or a pattern of it. The first of the built-in
        models is the one that answers where nothing is configured."""
        self.change(model, aliases, providers, built_in_models)
        self._agents = tuple(agents)
        self._config_path = config_path
        self._told = abilities or {}
        self._probes = probes

    def change(
        self,
        model: ModelSettings,
        aliases: Mapping[str, str],
        providers: Collection[str],
        built_in_models: Sequence[str],
    ) -> None:
        """Other wishes mean other models from now on. Sessions keep what they are pinned to."""
        self._model = model
        self._aliases = aliases
        self._providers = frozenset(providers)
        self._built_in = tuple(built_in_models)

    def resolve(self, wish: str | None = None) -> Choice:
        """Raises `NotFound` for what nobody knows, and `NoModel` when the default is meant but missing."""
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

    def default(self) -> Choice:
        settings = self._model
        if not settings.provider:
            choice = self._split(settings.name)
            if choice is not None:
                return choice
            if self._built_in and not settings.name:
                return Choice(LOCAL, self._built_in[0])
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
        return Choice(settings.provider, settings.name or SCRIPTED)

    def abilities(self, provider: str, model: str) -> Abilities:
        """What is known of a model: the operator's word, then the endpoint's, then the built-in table's."""
        found = self.told(provider, model)
        if self._probes is not None and (probed := self._probes.find(provider, model)) is not None:
            found = found.or_else(probed)
        return found.or_else(known_abilities(provider, model))

    def told(self, provider: str, model: str) -> Abilities:
        """The operator's word alone."""
        return find_named(self._told, f"{provider}/{model}") or NOTHING_KNOWN

    def price(self, find: Callable[[str, str], Price | None], provider: str, model: str) -> Price | None:
        """The price that `find` knows, with the longest answer that is known here."""
        found = find(provider, model)
        if found is None or found == FREE:
            return found
        longest = self.told(provider, model).output or found.max_output
        longest = longest or self.abilities(provider, model).output or 0
        return msgspec.structs.replace(found, max_output=longest)

    def listed(self) -> list[str]:
        """Models that endpoints have listed, as `provider/model`: so many at most, and beside `names`."""
        if self._probes is None:
            return []
        return list(islice((name for name in self._probes.names() if self._named(name)), MAX_NAMES))

    def names(self) -> list[str]:
        """What may be wished for, by name: agents, the configured model, aliases. All of it resolves."""
        names: list[str] = []
        with suppress(NoModel):
            names = [*self._agents, str(self.default())]
        names += [alias for alias, target in self._aliases.items() if self._named(target) is not None]
        return list(dict.fromkeys(names))

    def _named(self, name: str) -> Choice | None:
        settings = self._model
        if settings.provider and name in (settings.name, settings.provider):
            return self.default()
        return self._split(name)

    def _local(self, name: str) -> Choice:
        """Raises `NoModel` for one that is not built in."""
        if name and name not in self._built_in:
            raise NoModel(
                f"There is no built-in model named {name}.",
                f"The built-in models are: {', '.join(self._built_in)}.",
            )
        return Choice(LOCAL, name or self._built_in[0])

    def _split(self, name: str) -> Choice | None:
        provider, _, model = name.partition("/")
        if provider == LOCAL and self._built_in:
            return self._local(model)
        if provider == SCRIPTED and provider in self._providers:
            return Choice(SCRIPTED, model or SCRIPTED)
        if model and (provider in self._providers or provider == self._model.provider):
            return Choice(provider, model)
        return None

    def _unknown(self, wish: str) -> NotFound:
        known = self.names()
        nearest = difflib.get_close_matches(wish, [*known, *self.listed()], n=1)
        meant = f" Did you mean {nearest[0]}?" if nearest else ""
        listed = ", ".join(known) if known else "none yet"
        provider = self._model.provider
        example = f", such as {provider}/{wish}" if provider else ""
        return NotFound(
            f"There is no model or agent named {wish}.{meant}",
            f"Known: {listed}. Any other model is written provider/model{example}.",
        )


def _scripted_command() -> str:
    """How this installation runs the scripted model: a clone has a verb for it."""
    clone = Path(sys.prefix).parent
    if (clone / "dev").is_file() and (clone / "src" / "talaria").is_dir():
        return "./dev scripted" if Path.cwd() == clone else f"{clone / 'dev'} scripted"
    return f"{sys.executable} -m talaria.testing.model_server"
