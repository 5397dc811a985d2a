"""`TelegramChannel`: receives updates by polling or by webhook, and reports its status.

An update is confirmed to Telegram only after its messages are durable: the next offset, or the webhook's 200,
follows the commit. Telegram sends an unconfirmed update again, and the intake recognizes it by its key.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NoReturn
from urllib.parse import urlsplit

import msgspec

from talaria.access.approvals import NotEntitled
from talaria.access.authorizer import Authorizer
from talaria.channels.channel_loop import ChannelLoop, ChannelNotReady, ChannelPhase
from talaria.channels.platform_api import PlatformRefused
from talaria.channels.running import hosts_of, run_channel
from talaria.channels.telegram.bot_api import (
    DISPUTED,
    WANTED_UPDATES,
    BotApi,
    BotApiRefused,
    User,
    WebhookInfo,
)
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.channels.telegram.parse import CHANNEL, decode, is_full
from talaria.channels.telegram.part import TELEGRAM, TelegramSettings, find_token, webhook_secret
from talaria.channels.telegram.updates import UpdateHandler
from talaria.core.clock import Clock
from talaria.core.failpoints import Failpoint, hit
from talaria.core.redaction import Secret
from talaria.gateway import Admission, Gateway
from talaria.store.store import Store
from talaria.turns.slash import SLASH_COMMANDS

_log = logging.getLogger("talaria.telegram")

WEBHOOK_PATH = "/hooks/telegram"
POLL_SECONDS = 50
_ALBUM_SECONDS = 0.5
_UNDISPUTED_SECONDS = 90.0  # longer than the longest pause, after which another gateway polls again


class TelegramChannel(ChannelLoop):
    name = CHANNEL
    title = "Telegram"

    def __init__(
        self, api: BotApi, settings: TelegramSettings, handler: UpdateHandler, store: Store, clock: Clock
    ) -> None:
        super().__init__(clock)
        self._api = api
        self._settings = settings
        self._handler = handler
        self._store = store
        self._bot: User | None = None
        self._offset = 0

    async def serve(self) -> NoReturn:
        self._bot = self._bot or await self._introduce()
        await (self._listen() if self._settings.mode == "webhook" else self._poll(self._bot))

    def explain(self, refusal: PlatformRefused) -> str:
        return _explain(refusal) if isinstance(refusal, BotApiRefused) else refusal.user_text

    async def take(self, body: bytes | bytearray) -> None:
        """Handle one update that Telegram sent to the webhook. Raises `StoreError`, `Draining`,
        `Overloaded` or `ChannelNotReady` if Telegram must send it again."""
        if self._bot is None or self.phase is ChannelPhase.STOPPED:
            raise ChannelNotReady("The Telegram channel is not ready.", "Send it again in a moment.")
        update = decode(body)
        if update is not None:
            await self._handler.handle([update], self._bot)

    @property
    def _described(self) -> str:
        return f"@{self._bot and self._bot.username}, by {self._settings.mode}"

    async def _introduce(self) -> User:
        bot = await self._api.call("getMe", User)
        commands: list[Any] = [
            {"command": spec.name, "description": spec.help} for spec in SLASH_COMMANDS.values()
        ]
        try:
            await self._api.call("setMyCommands", bool, commands=commands)
        except BotApiRefused as refusal:  # costs the menu only
            _log.warning("the commands are not in Telegram's menu: %s", refusal.user_text)
        self._offset = int(await self._store.cursor(_cursor_of(bot)) or 0)
        return bot

    async def _listen(self) -> NoReturn:
        await self._api.call(
            "setWebhook",
            bool,
            url=self._settings.webhook_url,
            secret_token=webhook_secret(self._api.token),
            allowed_updates=WANTED_UPDATES,
        )
        self.enter(ChannelPhase.READY, self._described)
        await asyncio.Event().wait()
        raise AssertionError

    # -- polling --------------------------------------------------------------------------------------------

    async def _poll(self, bot: User) -> NoReturn:
        info = await self._api.call("getWebhookInfo", WebhookInfo)
        if info.url:
            _log.warning("a webhook was set for this bot; it is removed, because mode is polling")
            await self._api.call("deleteWebhook", bool)
        seconds = 0  # the first call returns at once and shows that polling works
        began = self.clock.elapsed()
        while True:
            updates = await self._complete_album(await self._fetch(seconds))
            is_disputed = self.reason == DISPUTED and self.clock.elapsed() - began < _UNDISPUTED_SECONDS
            if self.phase is not ChannelPhase.READY and not is_disputed:
                self.enter(ChannelPhase.READY, self._described)
            seconds = POLL_SECONDS
            if updates:
                await self._handle_and_confirm(updates, bot)

    async def _fetch(self, seconds: int) -> Sequence[msgspec.Raw]:
        return await self._api.call(
            "getUpdates",
            list[msgspec.Raw],
            float(seconds),
            offset=self._offset,
            timeout=seconds,
            allowed_updates=WANTED_UPDATES,
        )

    async def _complete_album(self, updates: Sequence[msgspec.Raw]) -> Sequence[msgspec.Raw]:
        """Wait for the rest of an album, or of a long text: each of its parts is a message, and the last ones
        may come later."""
        while updates and (last := decode(updates[-1])) and (message := last.message):
            if message.media_group_id is None and not is_full(message.text):
                break
            await self.clock.sleep(_ALBUM_SECONDS)
            more = await self._fetch(0)
            if len(more) <= len(updates):
                break
            updates = more
        return updates

    async def _handle_and_confirm(self, updates: Sequence[msgspec.Raw], bot: User) -> None:
        """Handle updates, then store their offset; the next poll confirms them with it."""
        await self._handler.handle([update for raw in updates if (update := decode(raw)) is not None], bot)
        offset = max(_update_id(raw) for raw in updates) + 1
        if offset > self._offset:
            await self._store.set_cursor(_cursor_of(bot), str(offset))
            hit(Failpoint.ACKNOWLEDGED)
            self._offset = offset


@asynccontextmanager
async def open_telegram(gateway: Gateway, settings: TelegramSettings) -> AsyncIterator[TelegramChannel]:
    """Run the channel until the context is left: then no more updates are taken, and sends under way finish.

    Raises `ConfigError` without a token. Later errors are not raised; the channel's status tells of them.
    """
    token = find_token(settings, gateway.home.path, gateway.environ)
    name = "channels.telegram.token"
    gateway.secrets.add([Secret(name, token), Secret(f"{name}, for webhooks", webhook_secret(token))])
    authorizer = Authorizer(gateway.store.pairings, {CHANNEL: settings.allowed}, gateway.clock)

    async with BotApi(settings.api_url, token) as api:
        handler = UpdateHandler(api, authorizer, gateway, settings.groups, settings.unknown)
        channel = TelegramChannel(api, settings, handler, gateway.store, gateway.clock)
        own = hosts_of(gateway, urlsplit(settings.webhook_url).hostname or "")
        outlet = TelegramOutlet(api, gateway.clock, settings.progress, handler.move_chat, own)
        webhooks = {}
        if settings.mode == "webhook":
            webhooks[WEBHOOK_PATH] = TelegramWebhook(channel, webhook_secret(token))
        is_only = settings.mode == "polling"
        async with run_channel(
            gateway, TELEGRAM, channel, outlet, authorizer, is_only=is_only, webhooks=webhooks
        ):
            yield channel


class TelegramWebhook:
    """The `gateway.Webhook` of the channel. Telegram proves itself with a secret that only it was told."""

    max_body: ClassVar = 1 << 20

    def __init__(self, channel: TelegramChannel, secret: str) -> None:
        if not secret:
            raise ValueError("a webhook needs a secret")
        self._channel = channel
        self._secret = secret.encode()

    def admit(self, headers: Mapping[bytes, bytes], caller: str) -> Admission:
        if not hmac.compare_digest(headers.get(b"x-telegram-bot-api-secret-token", b""), self._secret):
            raise NotEntitled(
                "This address is for a chat platform only.", "It calls with a secret of its own."
            )
        return Admission(self.max_body, is_proved=True)

    async def receive(self, headers: Mapping[bytes, bytes], body: bytes, caller: str) -> tuple[int, bytes]:
        await self._channel.take(body)
        return 200, b"{}\n"


def _cursor_of(bot: User) -> str:
    """Each bot numbers its own updates."""
    return f"telegram:{bot.id}"


class _UpdateId(msgspec.Struct, frozen=True):
    update_id: int


def _update_id(raw: msgspec.Raw) -> int:
    """Return the id also of an update that cannot be decoded: unconfirmed, it would come again for ever."""
    try:
        return msgspec.json.decode(raw, type=_UpdateId).update_id
    except msgspec.MsgspecError:
        return -1


def _explain(refusal: BotApiRefused) -> str:
    if refusal.code != 409:
        return refusal.user_text
    if refusal.says("webhook"):
        return "a webhook is set for this bot, so it cannot be polled"
    return DISPUTED
