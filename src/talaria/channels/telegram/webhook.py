"""The webhook that Telegram calls."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import ClassVar

from talaria.channels.telegram.channel import TelegramChannel

PATH = "/hooks/telegram"


class TelegramWebhook:
    """Hands updates to the channel. Telegram proves itself with a secret that only it was told."""

    max_body: ClassVar = 1 << 20

    def __init__(self, channel: TelegramChannel, secret: str) -> None:
        if not secret:
            raise ValueError("a webhook needs a secret")
        self._channel = channel
        self._secret = secret.encode()

    def is_genuine(self, headers: Mapping[bytes, bytes]) -> bool:
        return hmac.compare_digest(headers.get(b"x-telegram-bot-api-secret-token", b""), self._secret)

    async def receive(self, body: bytes | bytearray) -> None:
        await self._channel.take(body)
