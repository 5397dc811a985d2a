"""`[channels.telegram]`: the bot, the people who may use it, and how much it shows of a running turn."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from talaria.access.settings import UserNumbers
from talaria.core.api_address import ApiAddress
from talaria.core.errors import ConfigError
from talaria.core.setting_marks import Check, Mark, variable_name, web_address

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
    if settings.token:
        return settings.token
    again = "Set it, or run `talaria connect telegram`."
    if settings.token_env and not settings.token_file:
        token = environ.get(settings.token_env, "").strip()
        if not token:
            raise ConfigError(f"The variable {settings.token_env} for Telegram's token is not set.", again)
        return token
    path = home / settings.token_file
    try:
        token = environ.get(settings.token_env, "").strip() or path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigError(f"Telegram's token cannot be read from {path}: {reason}.", again) from None
    if not token:
        raise ConfigError(f"{path} is empty and should hold Telegram's token.", again)
    return token


def webhook_secret(token: str) -> str:
    """Return the secret with which Telegram proves itself. It is derived from the token, so every webhook has
    one."""
    return hmac.new(token.encode(), b"talaria webhook", hashlib.sha256).hexdigest()
