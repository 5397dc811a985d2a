"""The checks of `talaria doctor` for the model: its configuration, its key, its server and its answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from talaria.config.home import Home
from talaria.config.issues import dotted
from talaria.config.model_choice import try_model
from talaria.config.settings import Settings
from talaria.core.clock import SystemClock
from talaria.core.errors import ModelRefused, TalariaError
from talaria.core.problems import Problem, Severity, end_command, ok, problem, shell, type_key, warn
from talaria.core.spending import FREE, NANO, from_usd, most, price_command, show_usd
from talaria.models.catalog import Catalog, ModelChoice, fallback_chain
from talaria.models.discovery import MODEL_LISTS_FILE, LoadedModels, ModelLists
from talaria.models.known import Prices
from talaria.models.local.local_endpoint import LocalEndpoint, open_local
from talaria.models.local.runtime import missing_requirement
from talaria.models.local.weights import FetchStage, describe_model
from talaria.models.providers import Providers
from talaria.models.settings import LOCAL
from talaria.parts import builtin_tools

_CONNECT_SECONDS = 3.0


async def check_agent(
    home: Home,
    settings: Settings,
    environ: Mapping[str, str],
    *,
    calls: bool,
    running: Mapping[str, Any] | None = None,
) -> AsyncIterator[Problem]:
    """Check that the model has its key and that its server accepts connections. With `calls`, also call it.

    `running` is the status of a running gateway. It may have other variables than this shell, so the model
    and the keys in its status count.
    """
    told = (running or {}).get("model")
    local = open_local(settings.local, environ, SystemClock())
    async with Providers(settings.providers, environ, local=local) as providers:
        catalog = Catalog(
            settings.model,
            settings.aliases,
            providers=providers.known,
            agents=(settings.agent.name,),
            config_path=str(home.config),
            built_in_models=providers.built_in_models,
            built_in_default=local.default_model,
            abilities=settings.models,
            model_lists=ModelLists(providers, SystemClock(), (), home.path / MODEL_LISTS_FILE),
        )
        try:
            choice = catalog.default()
            if not told:
                providers.get(choice.provider)
        except TalariaError as error:
            if not told:
                yield error.problem("model", "talaria setup")
            choice = None
        if running and told:
            for finding in _check_running(running, choice):
                yield finding
            choice = choice if str(choice) == told["default"] else None
        if choice is not None and choice.provider == LOCAL and providers.built_in_models:
            if not (running and _is_fetching(running)):
                yield _check_built_in(local, choice)
        elif choice is not None:
            known = catalog.abilities(choice.provider, choice.model).describe()
            about = f"Known of it: {known}." if known else "Its abilities are not known."
            if not told:
                yield ok("model", f"{choice}; its key is there or not needed. {about}")
            yield _check_price(choice, settings)
            async for finding in _check_servers(providers, choice, settings, calls=calls):
                yield finding
        for finding in (*_check_caps(choice, settings), *_check_aliases(catalog, settings)):
            yield finding
    yield _check_tools(settings)


def _check_running(running: Mapping[str, Any], choice: ModelChoice | None) -> Iterator[Problem]:
    told = running["model"]
    used, missing = str(told["default"]), told["missing_keys"]
    stop = end_command(running.get("pid")) or "where it runs"
    for provider, variable in missing.items():
        text = f"The running gateway has no key for {provider}: {variable} is not among its variables."
        fix = f"Stop it ({stop}) and start it with the key; a service gets it from `talaria service install`:"
        level = problem if used.startswith(f"{provider}/") else warn
        yield level("model", text, fix, f"{type_key(variable)} && talaria serve")
    if not used:
        yield problem("model", "The running gateway has no model.", "", "talaria setup")
    elif used.partition("/")[0] not in missing:
        key = "" if used.startswith(f"{LOCAL}/") else "; its key is there or not needed"
        yield ok("model", f"The running gateway answers with {used}{key}.")
    if used and choice is not None and str(choice) != used:
        text = (
            f"This shell's settings differ: they name {choice}, and the running gateway answers with {used}."
        )
        yield warn("model", text, "It was started with other variables; if these are meant, restart it here.")


def _check_price(choice: ModelChoice, settings: Settings) -> Problem:
    price = Prices(settings.prices).find(choice.provider, choice.model)
    if price is None:
        return ok("price", f"That of {choice} is not known; {price_command(str(choice))} sets it.")
    if price == FREE:
        return ok("price", f"{choice} costs nothing.")
    paid = (
        f"{show_usd(price.input)} in, {show_usd(price.cached)} from the cache, {show_usd(price.output)} out"
    )
    return ok("price", f"{choice}: {paid}, for a million tokens.")


def _check_caps(choice: ModelChoice | None, settings: Settings) -> Iterator[Problem]:
    for text, command in find_tight_caps(choice, settings) if choice is not None else ():
        yield warn("budget", text, "", command)


def find_tight_caps(choice: ModelChoice, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each cap that is less than one answer of the model may cost, and the command that raises it."""
    price, budgets = Prices(settings.prices).find(choice.provider, choice.model), settings.budgets
    if price is None or price == FREE:
        return
    amount = most(0, price.max_output or budgets.assumed_output, price)
    for name in ("per_day_usd", "per_user_daily_usd", "per_session_usd"):
        limit = from_usd(getattr(budgets, name))
        if 0 < limit < amount:
            text = (
                f"budgets.{name} is {show_usd(limit)}, and one answer of {choice} may cost up to "
                f"{show_usd(amount)}, so every call is refused."
            )
            yield text, f"talaria config set budgets.{name} {max(10 * amount / NANO, 0.01):.2f}"


def _is_fetching(running: Mapping[str, Any]) -> bool:
    weights = (running.get("built_in_model") or {}).get("weights") or {}
    return weights.get("stage") in (FetchStage.WAITING, FetchStage.FETCHING, FetchStage.VERIFYING)


def _check_built_in(local: LocalEndpoint, choice: ModelChoice) -> Problem:
    if (refusal := local.refusal(choice.model)) is None:
        return ok("model", f"{choice}, built in; its weights are here. It is {describe_model(choice.model)}.")
    is_fetchable = missing_requirement() is None
    command = shell("talaria", "model", "pull", choice.model, "--yes") if is_fetchable else "talaria setup"
    return refusal.problem("model", command)


async def _check_servers(
    providers: Providers, choice: ModelChoice, settings: Settings, *, calls: bool
) -> AsyncIterator[Problem]:
    is_reached = True
    for provider in dict.fromkeys((choice.provider, *_fallbacks(settings, providers))):
        finding = await _check_server(provider, providers.base_url(provider), settings)
        is_reached &= finding.severity is Severity.OK or provider != choice.provider
        yield finding
    if not is_reached:
        return
    if calls:
        yield await _call(providers, choice, settings)
    if (loaded := await providers.loaded(choice.provider, choice.model)) is not None:
        yield _check_context(loaded, choice)


def _check_context(loaded: LoadedModels, choice: ModelChoice) -> Problem:
    if (shortage := loaded.shortage(choice.model)) is not None:
        text, command = shortage
        return warn("context", text, "", command)
    tokens = loaded.find(choice.model)
    known = f"{tokens:,} tokens" if tokens else "a size that is known once the model is loaded"
    return ok("context", f"{loaded.server} runs {choice.model} with {known}.")


def _fallbacks(settings: Settings, providers: Providers) -> list[str]:
    return [each.provider for each in fallback_chain(settings.model) if each.provider in providers.known]


async def _check_server(provider: str, base_url: str, settings: Settings) -> Problem:
    """Check that the server accepts a connection. Nothing is sent."""
    url = urlsplit(base_url)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        reason = _reason(error)
    else:
        return ok("endpoint", f"{provider} can be reached at {host}:{port}.")
    if provider in settings.providers and settings.providers[provider].base_url:
        command = shell("talaria", "config", "set", dotted(("providers", provider, "base_url")))
    else:
        command = "talaria setup"
    text = f"{provider} cannot be reached at {host}:{port}: {reason}."
    return problem("endpoint", text, "Start its server, or name another:", command)


def _reason(error: OSError | TimeoutError) -> str:
    if isinstance(error, TimeoutError) or error.errno is None:
        return "no answer"
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)


async def _call(providers: Providers, choice: ModelChoice, settings: Settings) -> Problem:
    try:
        return ok("call", await try_model(providers, choice, Prices(settings.prices)))
    except ModelRefused as error:
        return error.problem("call", shell("talaria", "setup", "--provider", choice.provider))
    except TalariaError as error:
        return error.problem("call")


def _check_aliases(catalog: Catalog, settings: Settings) -> Iterator[Problem]:
    for alias in settings.aliases:
        try:
            catalog.resolve(alias)
        except TalariaError as error:
            command = shell("talaria", "config", "unset", dotted(("aliases", alias)))
            yield warn("alias", error.user_text, error.hint, command)


def _check_tools(settings: Settings) -> Problem:
    try:
        tools = builtin_tools(settings.tools)
    except TalariaError as error:
        return error.problem("tools", "talaria config unset tools.enabled")
    return ok("tools", f"{', '.join(tools.names) or 'none'}.")
