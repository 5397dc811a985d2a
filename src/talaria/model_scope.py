"""The models of a running gateway: providers, the built-in model, and the catalog of names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from talaria.config.home import Home
from talaria.config.reload import LiveSettings
from talaria.config.settings import Settings
from talaria.core.clock import Clock
from talaria.core.limits import Limits
from talaria.core.setting_marks import KeyPath
from talaria.core.tasks import run_loops
from talaria.models.catalog import Catalog, providers_in_use
from talaria.models.discovery import MODEL_LISTS_FILE, ModelLists
from talaria.models.local.local_endpoint import LocalEndpoint, open_local
from talaria.models.providers import Providers
from talaria.observe.metrics import Metrics, endpoint_metrics

MODEL_KEYS: tuple[KeyPath, ...] = (("providers",), ("aliases",), ("model", "provider"), ("model", "name"))


@dataclass(frozen=True, slots=True)
class ModelScope:
    """The models of a gateway while they are open."""

    providers: Providers
    local: LocalEndpoint
    catalog: Catalog


@asynccontextmanager
async def open_models(
    home: Home,
    live: LiveSettings,
    environ: Mapping[str, str],
    clock: Clock,
    *,
    limits: Limits,
    metrics: Metrics,
) -> AsyncIterator[ModelScope]:
    """Open the models, and follow changes of their settings, while the context is open."""
    settings = live.settings
    local = open_local(settings.local, environ, clock)
    async with Providers(settings.providers, environ, clock, local=local, limits=limits) as providers:
        providers.follow(settings.model)
        metrics.watch(lambda: endpoint_metrics(providers.readings()))
        in_use = (*providers_in_use(settings.model, settings.aliases), *settings.providers)
        model_lists = ModelLists(providers, clock, in_use, home.path / MODEL_LISTS_FILE)
        catalog = Catalog(
            settings.model,
            settings.aliases,
            providers=providers.known,
            agents=(settings.agent.name,),
            config_path=str(home.config),
            abilities=settings.models,
            model_lists=model_lists,
            built_in_models=providers.built_in_models,
            built_in_default=local.default_model,
        )

        def change(new: Settings) -> None:
            providers.change(new.providers)
            providers.follow(new.model)
            model_lists.change()
            catalog.change(new.model, new.aliases, providers.known, providers.built_in_models)

        live.on(*MODEL_KEYS, tell=change)
        loops = {"model lists": model_lists.run, "weights": local.downloads.run, "built-in model": local.run}
        async with run_loops(clock, loops):
            yield ModelScope(providers, local, catalog)
