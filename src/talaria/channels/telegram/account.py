"""The bot's account: what `talaria doctor` says of it, and how `talaria connect telegram` tries it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from talaria.access.authorizer import Authorizer
from talaria.channels.reception import admit
from talaria.channels.running import examine_account, state_of
from talaria.channels.telegram.bot_api import (
    DISPUTED,
    WANTED_UPDATES,
    BotApi,
    BotApiRefused,
    Update,
    User,
    WebhookInfo,
)
from talaria.channels.telegram.parse import ChatTarget, TelegramMessage, decode, parse
from talaria.channels.telegram.part import TELEGRAM, TelegramSettings, find_token
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem, ok, problem, warn
from talaria.core.settings import Examination

_MAX_UPDATES = 100  # that can be looked at without confirming any


# -- talaria doctor


async def examine_bot(examination: Examination[TelegramSettings]) -> AsyncIterator[Problem]:
    settings = examination.settings
    if not settings.is_on:
        return

    async def try_bot() -> list[Problem]:
        token = find_token(settings, examination.home, examination.environ)
        async with BotApi(settings.api_url, token) as api:
            bot = await api.call("getMe", User)
            hook = await api.call("getWebhookInfo", WebhookInfo)
        found = [ok("telegram", f"@{bot.username} answers; updates come by {settings.mode}.")]
        found += _examine_webhook(settings, hook)
        if (state := state_of(examination, "telegram")).endswith(DISPUTED):
            fix = "Stop the other one, or give this one a bot of its own: `talaria connect telegram`."
            found.append(problem("telegram", f"The gateway's channel is {state}.", fix))
        return found

    for each in await examine_account(TELEGRAM, examination, try_bot):
        yield each


def _examine_webhook(settings: TelegramSettings, hook: WebhookInfo) -> Iterator[Problem]:
    if settings.mode == "polling" and hook.url:
        text = "A webhook is set for the bot, so it cannot be polled; another program may use its token."
        yield warn("telegram", text, "The gateway takes the webhook away when it starts.")
    if settings.mode == "webhook" and hook.url not in ("", settings.webhook_url):
        text = "The bot's webhook leads elsewhere; another program may use its token."
        yield warn("telegram", text, "The gateway sets its own when it starts.")
    if settings.mode == "webhook" and hook.last_error_message:
        text = f"Telegram could not deliver to {settings.webhook_url}: {hook.last_error_message}."
        yield warn("telegram", text, "Does that address lead to this gateway?")


# -- talaria connect


@asynccontextmanager
async def open_bot(settings: TelegramSettings, token: str) -> AsyncIterator[BotAccount]:
    """Raises `ConfigError` if Telegram does not accept the token."""
    async with BotApi(settings.api_url, token) as api:
        try:
            bot = await api.call("getMe", User)
        except BotApiRefused as refusal:
            if not refusal.is_about_token:
                raise
            raise ConfigError(
                "Telegram does not know this token.", "Copy it whole from @BotFather, such as 123456:ABC…."
            ) from None
        yield BotAccount(api, bot)


class BotAccount:
    """A bot whose token works."""

    def __init__(self, api: BotApi, bot: User, clock: Clock | None = None) -> None:
        self._api = api
        self._bot = bot
        self._clock = clock or SystemClock()

    @property
    def name(self) -> str:
        return f"@{self._bot.username}"

    def invite(self, code: str) -> Sequence[str]:
        return (
            f"Open  https://t.me/{self._bot.username}?start={code}",
            f"or send the bot  /start {code}",
        )

    async def admit_first(self, authorizer: Authorizer, seconds: float) -> str | None:
        clock, seen = self._clock, set[int]()
        deadline = clock.elapsed() + seconds
        while clock.elapsed() < deadline:
            updates = await self._look()
            for update in updates:
                if update is not None and update.update_id not in seen:
                    seen.add(update.update_id)
                    if name := await self._admit(authorizer, update):
                        return name
            if len(updates) >= _MAX_UPDATES:
                break
            await clock.sleep(1 if updates else 0)
        return None

    async def _look(self) -> list[Update | None]:
        """Return the updates that wait, and confirm none."""
        try:
            raw = await self._api.call(
                "getUpdates",
                list[msgspec.Raw],
                1.0,
                timeout=1,
                limit=_MAX_UPDATES,
                allowed_updates=WANTED_UPDATES,
            )
        except BotApiRefused as refusal:
            if refusal.code != 409:
                raise
            raise ConfigError(
                "The bot is connected, but another program uses its token, so nobody can be waited for.",
                "End that program, then start the gateway with `talaria serve` and send the code.",
            ) from None
        return [decode(each) for each in raw]

    async def _admit(self, authorizer: Authorizer, update: Update) -> str | None:
        """Return the name of the person whom this update lets in."""
        message = parse(update, self._bot)
        if not isinstance(message, TelegramMessage):
            return None

        async def say(address: str, text: str) -> None:
            chat = ChatTarget.read(address).chat
            await self._api.call("sendMessage", msgspec.Raw, chat_id=chat, text=text)

        return await admit(authorizer, message, say)
