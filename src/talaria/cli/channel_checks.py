"""What `talaria doctor` says of the chat platforms: whether the token is good, and who else uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from talaria.channels.telegram.client import BotApi, BotApiError, BotApiRefused, User, WebhookInfo
from talaria.channels.telegram.settings import TelegramSettings, find_token
from talaria.config.home import Home
from talaria.core.errors import TalariaError
from talaria.core.findings import Finding, failed, ok, problem, warn

ANSWER_SECONDS = 10.0
_CONNECT = "talaria connect telegram --wait 0"


def check_running(status: Mapping[str, object]) -> Iterator[Finding]:
    """How the running gateway's own channels are, as its status tells."""
    channels = status.get("channels")
    for name, state in channels.items() if isinstance(channels, dict) else ():
        if name != "http" and not str(state).startswith(("ready", "starting")):
            fix = "Mend that and restart the gateway." if str(state).startswith("stopped") else ""
            yield problem(name, f"The gateway's channel is {str(state).rstrip('.')}.", fix)


async def check_telegram(
    home: Home,
    settings: TelegramSettings,
    environ: Mapping[str, str],
    running: Mapping[str, Any] | None = None,
) -> AsyncIterator[Finding]:
    """`running` is the status of a gateway, whose own variables may have a token that this shell has not."""
    state = str(((running or {}).get("channels") or {}).get("telegram", ""))
    if not settings.is_on:
        return
    try:
        token = find_token(settings, home.path, environ)
        async with asyncio.timeout(ANSWER_SECONDS), BotApi(settings.api_url, token) as api:
            bot = await api.call("getMe", User)
            hook = await api.call("getWebhookInfo", WebhookInfo)
    except BotApiRefused as refusal:
        is_token = refusal.is_about_token
        text = "Telegram does not accept the token." if is_token else refusal.user_text
        yield problem("telegram", text, "", _CONNECT if is_token else "")
    except BotApiError as error:
        yield problem("telegram", error.user_text, "Check the network and api_url.")
    except TimeoutError:
        yield problem("telegram", f"{settings.api_url} does not answer.", "Check the network.")
    except TalariaError as error:
        if state.startswith("ready"):
            yield ok("telegram", "The gateway's channel is ready.")
            return
        yield failed("telegram", error, _CONNECT)
    else:
        yield ok("telegram", f"@{bot.username} answers; updates come by {settings.mode}.")
        for finding in _webhook(settings, hook):
            yield finding


def _webhook(settings: TelegramSettings, hook: WebhookInfo) -> Iterator[Finding]:
    if settings.mode == "polling" and hook.url:
        text = "A webhook is set for the bot, so it cannot be polled; another program may use its token."
        yield warn("telegram", text, "The gateway takes the webhook away when it starts.")
    if settings.mode == "webhook" and hook.url not in ("", settings.webhook_url):
        text = "The bot's webhook leads elsewhere; another program may use its token."
        yield warn("telegram", text, "The gateway sets its own when it starts.")
    if settings.mode == "webhook" and hook.last_error_message:
        text = f"Telegram could not deliver to {settings.webhook_url}: {hook.last_error_message}."
        yield warn("telegram", text, "Does that address lead to this gateway?")
