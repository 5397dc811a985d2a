"""Putting the built-in model together for one gateway, and whether its weights may be fetched unasked."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from talaria.core.clock import Clock
from talaria.models.local.cache import Cache
from talaria.models.local.endpoint import LocalEndpoint
from talaria.models.local.manifest import DEFAULT, MANIFEST, Weights
from talaria.models.local.needs import unmet
from talaria.models.local.runtime import Runtime
from talaria.models.local.settings import LocalSettings
from talaria.models.local.stock import Stock
from talaria.models.presets import LOCAL
from talaria.models.settings import ModelSettings

YES, NO_MODEL = "TALARIA_YES", "TALARIA_NO_MODEL"


def open_local(
    model: ModelSettings, settings: LocalSettings, environ: Mapping[str, str], clock: Clock
) -> LocalEndpoint:
    """Starts nothing: the stock's and the endpoint's `run` do, beside everything else."""
    cache = Cache.find(environ)
    wanted = chosen(model)
    is_missing = wanted is not None and not cache.has(wanted)
    may_come = is_missing and may_pull(environ) and unmet() is None
    stock = Stock(cache, environ, clock, wanted if may_come else None)
    return LocalEndpoint(
        cache, stock, Runtime(clock, settings.threads), clock, idle_after=settings.idle_after
    )


def chosen(model: ModelSettings) -> Weights | None:
    """The built-in model that answers by default; None when another does."""
    is_default = model.provider == LOCAL or not (model.provider or model.name)
    name = model.name or DEFAULT
    return next((weights for weights in MANIFEST if is_default and weights.name == name), None)


def may_pull(environ: Mapping[str, str]) -> bool:
    """Somebody watches and can stop it, or said yes beforehand; and nobody said no."""
    if is_set(environ, NO_MODEL):
        return False
    return is_set(environ, YES) or (sys.stdin.isatty() and sys.stdout.isatty())


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """A variable that says yes."""
    return environ.get(name, "").strip().lower() not in ("", "0", "no", "false")
