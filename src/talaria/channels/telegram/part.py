"""Telegram as a part of the gateway."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Final

from talaria.channels.descriptor import Channel
from talaria.channels.telegram.settings import TelegramSettings
from talaria.gateway import Gateway, OpenChannel


def _open(gateway: Gateway, settings: TelegramSettings) -> AbstractAsyncContextManager[OpenChannel]:
    # Its HTTP client takes longer to import than the rest of a start; see `Providers.warm`.
    from talaria.channels.telegram.channel import open_telegram  # noqa: PLC0415

    return open_telegram(gateway, settings)


TELEGRAM: Final = Channel(
    name="telegram",
    table=("channels", "telegram"),
    settings=TelegramSettings,
    open=_open,
    is_on=lambda settings: settings.is_on,
    has_pairing=True,
)
