"""The webhook: what Telegram calls. It proves itself before a byte of its body is read."""

from __future__ import annotations

import hmac

from talaria.channels.http.answers import Answer, Reply, error_answer
from talaria.channels.http.calls import Call
from talaria.channels.telegram.channel import TelegramChannel
from talaria.core.errors import ErrorInfo

PATH = "/hooks/telegram"
MAX_BODY = 1 << 20
_FORGED = ErrorInfo("forbidden", "This is for Telegram only.")


class TelegramWebhook:
    """An endpoint outside the gateway's token: Telegram has a secret of its own."""

    def __init__(self, channel: TelegramChannel, secret: str) -> None:
        if not secret:
            raise ValueError("a webhook needs a secret")
        self._channel = channel
        self._secret = secret.encode()

    async def __call__(self, call: Call) -> Reply:
        """200 once what the update brought is durable. Otherwise an error, and Telegram sends it again."""
        given = call.headers.get(b"x-telegram-bot-api-secret-token", b"")
        if not hmac.compare_digest(given, self._secret):
            return error_answer(_FORGED, 403)
        await self._channel.take(await call.body(MAX_BODY))
        return Answer(b"{}")
