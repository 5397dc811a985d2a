"""The Telegram channel: takes updates in by polling or by webhook, and says how it is.

An update is confirmed to Telegram only when what it brought is durable: the offset, or the webhook's 200,
comes after the commit. Telegram sends again what was not confirmed, and the intake knows it by its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NoReturn, Protocol

import msgspec

from talaria.channels.telegram.client import BotApi, BotApiError, Refused
from talaria.channels.telegram.desk import Desk
from talaria.channels.telegram.parse import decode
from talaria.channels.telegram.settings import TelegramSettings, webhook_secret
from talaria.channels.telegram.wire import WANTED_UPDATES, Update, User, WebhookInfo
from talaria.commands.slash import SLASH_COMMANDS
from talaria.core.clock import Clock
from talaria.core.errors import StoreError, TalariaError
from talaria.core.failpoints import Failpoint, hit
from talaria.turns.intake import Draining

_log = logging.getLogger("talaria.telegram")

POLL_SECONDS = 50
_ALBUM_SECONDS = 0.5
_LONGEST_PAUSE = 60.0


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # something is wrong that may pass
    STOPPED = "stopped"  # the gateway drains, or the operator must mend something


class Cursors(Protocol):
    """How far was read; a part of the store."""

    async def cursor(self, name: str) -> str | None: ...

    async def set_cursor(self, name: str, value: str) -> None: ...


class NotReady(TalariaError):
    """The channel cannot take anything yet."""

    type = "draining"


class TelegramChannel:
    """`run` goes on until it is cancelled, the gateway drains, or the token is refused."""

    def __init__(
        self, api: BotApi, settings: TelegramSettings, desk: Desk, cursors: Cursors, clock: Clock
    ) -> None:
        self._api = api
        self._settings = settings
        self._desk = desk
        self._cursors = cursors
        self._clock = clock
        self._bot: User | None = None
        self._offset = 0
        self._failures = 0
        self._phase = Phase.STARTING
        self._why = ""

    @property
    def status(self) -> str:
        return f"{self._phase}: {self._why}" if self._why else str(self._phase)

    @property
    def phase(self) -> Phase:
        return self._phase

    async def run(self) -> None:
        while True:
            try:
                self._bot = self._bot or await self._introduce()
                await (self._listen() if self._settings.mode == "webhook" else self._poll(self._bot))
            except Draining:
                self._enter(Phase.STOPPED, "the gateway shuts down")
                return
            except Refused as refusal:
                if refusal.is_about_token:
                    self._enter(Phase.STOPPED, "Telegram does not accept the token")
                    _log.error("Telegram does not accept the token; `talaria connect telegram` sets another")
                    return
                await self._wait(_explained(refusal), refusal.retry_after or 0.0)
            except (BotApiError, StoreError) as error:
                await self._wait(error.user_text)
            except Exception:
                _log.exception("the Telegram channel failed and goes on in a moment")
                await self._wait("an error, which the log tells")

    async def take(self, body: bytes | bytearray) -> None:
        """One update that was pushed here. Raises `StoreError` and `Draining`: then it must come again."""
        if self._bot is None or self._phase is Phase.STOPPED:
            raise NotReady("The Telegram channel is not ready.", "Send it again in a moment.")
        update = decode(body)
        if update is not None:
            await self._desk.handle([update], self._bot)

    # -- beginning ------------------------------------------------------------------------------------------

    async def _introduce(self) -> User:
        bot = await self._api.call("getMe", User)
        commands: list[Any] = [
            {"command": spec.name, "description": spec.help} for spec in SLASH_COMMANDS.values()
        ]
        try:
            await self._api.call("setMyCommands", bool, commands=commands)
        except Refused as refusal:  # only the menu is without them
            _log.warning("the commands are not in Telegram's menu: %s", refusal.user_text)
        self._offset = int(await self._cursors.cursor(_cursor_of(bot)) or 0)
        return bot

    async def _listen(self) -> NoReturn:
        await self._api.call(
            "setWebhook",
            bool,
            url=self._settings.webhook_url,
            secret_token=webhook_secret(self._api.token),
            allowed_updates=WANTED_UPDATES,
        )
        self._enter(Phase.READY)
        await asyncio.Event().wait()
        raise AssertionError

    # -- polling --------------------------------------------------------------------------------------------

    async def _poll(self, bot: User) -> NoReturn:
        info = await self._api.call("getWebhookInfo", WebhookInfo)
        if info.url:
            _log.warning("a webhook was set for this bot; it is taken away, because mode is polling")
            await self._api.call("deleteWebhook", bool)
        seconds = 0  # the first answer comes at once and tells that all is well
        while True:
            updates = await self._whole_albums(await self._fetch(seconds))
            if self._phase is not Phase.READY:
                self._enter(Phase.READY)
            seconds = POLL_SECONDS
            if updates:
                await self._confirm_after(updates, bot)

    async def _fetch(self, seconds: int) -> Sequence[msgspec.Raw]:
        return await self._api.call(
            "getUpdates",
            list[msgspec.Raw],
            float(seconds),
            offset=self._offset,
            timeout=seconds,
            allowed_updates=WANTED_UPDATES,
        )

    async def _whole_albums(self, updates: Sequence[msgspec.Raw]) -> Sequence[msgspec.Raw]:
        """An album comes as one message for each item; its last ones may be a moment behind the first."""
        while updates and _is_of_album(updates[-1]):
            await self._clock.sleep(_ALBUM_SECONDS)
            more = await self._fetch(0)
            if len(more) <= len(updates):
                break
            updates = more
        return updates

    async def _confirm_after(self, updates: Sequence[msgspec.Raw], bot: User) -> None:
        """The next poll's offset confirms them to Telegram; until the store has it, they come again."""
        await self._desk.handle([update for raw in updates if (update := decode(raw)) is not None], bot)
        offset = max(_update_id(raw) for raw in updates) + 1
        if offset > self._offset:
            await self._cursors.set_cursor(_cursor_of(bot), str(offset))
            hit(Failpoint.ACKNOWLEDGED)
            self._offset = offset

    # -- how it is ------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase, why: str = "") -> None:
        if phase is Phase.READY:
            self._failures = 0
            _log.info("Telegram is ready: @%s, by %s", self._bot and self._bot.username, self._settings.mode)
        self._phase, self._why = phase, why

    async def _wait(self, why: str, at_least: float = 0.0) -> None:
        if (self._phase, self._why) != (Phase.WAITING, why):
            _log.warning("Telegram waits: %s", why)
        self._enter(Phase.WAITING, why)
        pause = min(_LONGEST_PAUSE, 2.0 ** min(self._failures, 10))
        self._failures += 1
        await self._clock.sleep(max(pause, at_least))


def _cursor_of(bot: User) -> str:
    """Update ids are a bot's own."""
    return f"telegram:{bot.id}"


class _Numbered(msgspec.Struct, frozen=True):
    update_id: int


def _update_id(raw: msgspec.Raw) -> int:
    """Also of an update that cannot be read otherwise: it must be confirmed, or it would come for ever."""
    try:
        return msgspec.json.decode(raw, type=_Numbered).update_id
    except msgspec.MsgspecError:
        return -1


def _is_of_album(raw: msgspec.Raw) -> bool:
    update: Update | None = decode(raw)
    return bool(update and update.message and update.message.media_group_id)


def _explained(refusal: Refused) -> str:
    if refusal.code != 409:
        return refusal.user_text
    if refusal.says("webhook"):
        return "a webhook is set for this bot, so it cannot be polled"
    return "another process polls with this bot's token; only one can"
