"""Webhooks as a part of the gateway. Each table `[webhooks.NAME]` is one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from talaria.access.settings import WebhookSettings
from talaria.channels.descriptor import Channel
from talaria.config.settings import Settings
from talaria.core.problems import Problem, ok, problem, warn
from talaria.core.settings import Examination, Parts
from talaria.gateway import Gateway, ServicePart

_SHORTEST: Final = 16
HOOKS_PATH: Final = "/hooks/"


def find_secret(settings: WebhookSettings, environ: Mapping[str, str]) -> str:
    return (settings.secret or environ.get(settings.secret_env, "")).strip()


@asynccontextmanager
async def _open(gateway: Gateway, settings: Settings) -> AsyncIterator[None]:
    if settings.webhooks:
        _start(gateway, settings)
    gateway.reloader.live.on(("webhooks",), tell=lambda new: _start(gateway, new))
    yield


def _start(gateway: Gateway, settings: Settings) -> None:
    """Let the webhooks of these settings be called, and no others."""
    from talaria.channels.webhooks.webhook import open_webhooks  # noqa: PLC0415 - without a webhook it is not needed

    open_webhooks(gateway, settings.webhooks)


async def _examine(examination: Examination[Settings]) -> AsyncIterator[Problem]:
    for name, hook in examination.settings.webhooks.items():
        for finding in examine_hook(name, hook, examination.environ):
            yield finding


def examine_hook(name: str, hook: WebhookSettings, environ: Mapping[str, str]) -> Iterator[Problem]:
    from talaria.channels.webhooks.signatures import key_of  # noqa: PLC0415

    title, secret = f"webhook {name}", find_secret(hook, environ)
    if not secret:
        where = f"the variable {hook.secret_env}" if hook.secret_env else f"webhooks.{name}.secret_env"
        what = f"/hooks/{name} does not start: it has no secret."
        yield problem(title, what, f"Put one into {where}, such as the output of `openssl rand -hex 32`.")
        return
    try:
        key_of(hook.signature, secret)
    except ValueError as error:
        yield problem(title, f"/hooks/{name} does not start: {error}.", "Copy the secret again.")
        return
    if len(secret) < _SHORTEST:
        yield warn(title, f"The secret of /hooks/{name} is short.", f"Use {_SHORTEST} characters or more.")
    yield ok(title, f"POST /hooks/{name} starts a turn ({hook.signature}).")


WEBHOOKS: Final = ServicePart(
    name="webhooks", settings=Settings, needs_serve=True, open=_open, findings=_examine
)


def reserved_names(parts: Parts) -> frozenset[str]:
    """Return the names that channels use for webhooks of their own."""
    return frozenset(part.name for part in parts if isinstance(part, Channel))
