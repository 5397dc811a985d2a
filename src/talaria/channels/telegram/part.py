"""Telegram as a part of the gateway. What it needs to run is imported when it is used: its HTTP client takes
longer to import than the rest of a start."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from talaria.access.settings import Unknown, UserNumbers
from talaria.channels.descriptor import Channel, Connector, PlatformAccount, SecretQuestion, find_secret
from talaria.core.ids import ChatAddress
from talaria.core.problems import Problem
from talaria.core.redaction import ApiAddress
from talaria.core.settings import Check, Examination, Mark, variable_name, web_address
from talaria.gateway import Gateway, OpenChannel

# -- `[channels.telegram]`: the bot, the people who may use it, and how much it shows of a running turn ---


API_URL = "https://api.telegram.org"


def public_address(url: str) -> str | None:
    """Check the address that Telegram calls: return what is expected instead, or None if it is valid."""
    if not url or (web_address(url) is None and urlsplit(url).path.endswith("/hooks/telegram")):
        return None
    return 'an address such as "https://talaria.example.org/hooks/telegram"'


class TelegramSettings(msgspec.Struct, frozen=True):
    """The channel runs if one of `token_env`, `token_file`, `token` is set. `token_file` is relative to the
    home. `webhook_url` is the public address that leads to `/hooks/telegram` of this gateway."""

    token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""
    token_file: Annotated[str, Mark.SECRET_FILE] = ""
    token: Annotated[str, Mark.SECRET] = ""
    allowed: Annotated[UserNumbers, Mark.LIVE] = ()
    api_url: Annotated[str, Check(web_address)] = API_URL
    unknown: Unknown = "pair"
    progress: Literal["off", "brief", "full"] = "brief"
    groups: Literal["mention", "all", "off"] = "mention"
    mode: Literal["polling", "webhook"] = "polling"
    webhook_url: Annotated[str, Check(public_address)] = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "api_url", ApiAddress(self.api_url))

    @property
    def is_on(self) -> bool:
        return bool(self.token_env or self.token_file or self.token)

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.mode == "webhook" and not self.webhook_url:
            yield "mode", 'is "webhook": expected channels.telegram.webhook_url beside it.'


def find_token(settings: TelegramSettings, home: Path, environ: Mapping[str, str]) -> str:
    """Return the bot's token. Raises `ConfigError` if the configured place has none."""
    return find_secret(settings, TELEGRAM, "token", home, environ)


def webhook_secret(token: str) -> str:
    """Return the secret with which Telegram proves itself. It is derived from the token, so every webhook has
    one."""
    return hmac.new(token.encode(), b"talaria webhook", hashlib.sha256).hexdigest()


# -- Telegram as a part of the gateway --------------------------------------------------------------------


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
    title="Telegram",
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
