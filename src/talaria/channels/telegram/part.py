"""Telegram as a part of the gateway. What it needs to run is imported when it is used: its HTTP client takes
longer to import than the rest of a start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

from talaria.channels.descriptor import Channel, Connector, PlatformAccount, SecretQuestion
from talaria.channels.telegram.settings import TelegramSettings
from talaria.core.gateway_part import Examination
from talaria.core.ids import ChatAddress
from talaria.core.problems import Problem
from talaria.gateway import Gateway, OpenChannel


def _open(gateway: Gateway, settings: TelegramSettings) -> AbstractAsyncContextManager[OpenChannel]:
    from talaria.channels.telegram.channel import open_telegram  # noqa: PLC0415

    return open_telegram(gateway, settings)


def _examine(examination: Examination[TelegramSettings]) -> AsyncIterator[Problem]:
    from talaria.channels.telegram.account import examine_bot  # noqa: PLC0415

    return examine_bot(examination)


def _connect(
    settings: TelegramSettings, secrets: Mapping[str, str]
) -> AbstractAsyncContextManager[PlatformAccount]:
    from talaria.channels.telegram.account import open_bot  # noqa: PLC0415

    return open_bot(settings, secrets["token"])


def _find_address(chat: ChatAddress) -> str | None:
    """Return the address of a chat, as `parse.ChatTarget` writes it."""
    numbers = (chat.chat.removeprefix("-"), chat.thread or "0")
    if chat.kind not in ("dm", "group") or not all(each.isascii() and each.isdigit() for each in numbers):
        return None
    return f"{chat.chat}:{chat.thread or ''}:"


TELEGRAM: Final = Channel(
    name="telegram",
    table=("channels", "telegram"),
    settings=TelegramSettings,
    open=_open,
    is_on=lambda settings: settings.is_on,
    has_pairing=True,
    has_one_consumer=lambda settings: settings.mode == "polling",
    address_of=_find_address,
    findings=_examine,
    connector=Connector(
        help="Connect a bot of yours. @BotFather on Telegram makes one and tells its token.",
        secrets=(
            SecretQuestion(
                "token",
                "Token from @BotFather",
                "Send /newbot to @BotFather on Telegram; it answers with one, such as 123456:ABC….",
            ),
        ),
        options={"api_url": "Another Bot API server than Telegram's."},
        open=_connect,
    ),
)
