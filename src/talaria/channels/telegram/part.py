"""Telegram as a part of the gateway."""

from __future__ import annotations

from talaria.channels.telegram.settings import TelegramSettings
from talaria.gateway import Part

TELEGRAM = Part(name="telegram", table=("channels", "telegram"), settings=TelegramSettings)
