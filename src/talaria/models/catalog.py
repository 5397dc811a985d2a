"""Which model a wish means: nothing, an agent, an alias, or a model of a provider."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from talaria.core.errors import NoModel, NotFound
from talaria.models.presets import SCRIPTED
from talaria.models.settings import ModelSettings


class Choice(msgspec.Struct, frozen=True):
    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


class Catalog:
    """Resolves wishes against the configuration; asks no server.

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
    ) -> None:
        self._model = model
        self._aliases = aliases
        self._providers = frozenset(providers)
        self._agents = tuple(agents)
        self._config_path = config_path

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
            raise NoModel(
                "No model is configured.",
                f"Set [model] and [providers.NAME] in {self._config_path}, or, to try without a key, run "
                f"`{_scripted_command()}` in another terminal and restart with "
                "TALARIA_MODEL__PROVIDER=scripted.",
            )
        if not settings.name and settings.provider != SCRIPTED:
            raise NoModel(
                f"The provider {settings.provider} is configured, but no model of it.",
                f"Set name in [model] in {self._config_path}.",
            )
        return Choice(settings.provider, settings.name or SCRIPTED)

    def names(self) -> list[str]:
        """What may be wished for, by name: agents, the configured model, aliases. All of it resolves."""
        names = dict.fromkeys(self._agents if self._is_configured() else ())
        if names:
            names[str(self.default())] = None
        for alias, target in self._aliases.items():
            if self._named(target) is not None:
                names[alias] = None
        return list(names)

    def _is_configured(self) -> bool:
        try:
            self.default()
        except NoModel:
            return False
        return True

    def _named(self, name: str) -> Choice | None:
        settings = self._model
        if settings.provider and name in (settings.name, settings.provider):
            return self.default()
        return self._split(name)

    def _split(self, name: str) -> Choice | None:
        provider, _, model = name.partition("/")
        if provider == SCRIPTED and provider in self._providers:
            return Choice(SCRIPTED, model or SCRIPTED)
        if model and (provider in self._providers or provider == self._model.provider):
            return Choice(provider, model)
        return None

    def _unknown(self, wish: str) -> NotFound:
        known = self.names()
        nearest = difflib.get_close_matches(wish, known, n=1)
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
