"""Discord as a part of the gateway. What it needs to run is imported when it is used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from talaria.access.settings import Unknown, UserNumbers
from talaria.channels.descriptor import Channel, Connector, Mention, PlatformAccount, SecretQuestion
from talaria.core.ids import ChatAddress
from talaria.core.problems import Problem
from talaria.core.redaction import ApiAddress
from talaria.core.settings import Check, Examination, Mark, variable_name, web_address
from talaria.gateway import Gateway, OpenChannel

if TYPE_CHECKING:
    from talaria.channels.self_test import CheckedChat

API_URL = "https://discord.com/api/v10"


def channel_id(text: str) -> str | None:
    """Check the id of a channel: return what is expected instead, or None if it is valid."""
    return None if text.isascii() and text.isdigit() and 15 <= len(text) <= 20 else "the id of a channel"


class DiscordSettings(msgspec.Struct, frozen=True):
    """The channel runs if one of `token_env`, `token_file`, `token` is set. `token_file` is relative to the
    home. `mention` says when a message in a server is read. `mention_in` overrides it for channels and their
    threads by the channels' ids."""

    token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""
    token_file: Annotated[str, Mark.SECRET_FILE] = ""
    token: Annotated[str, Mark.SECRET] = ""
    allowed: Annotated[UserNumbers, Mark.LIVE] = ()
    unknown: Unknown = "pair"
    progress: Literal["off", "brief", "full"] = "brief"
    mention: Mention = "channels"
    mention_in: dict[Annotated[str, Check(channel_id)], Mention] = {}
    auto_thread: bool = False
    api_url: Annotated[str, Check(web_address)] = API_URL

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "api_url", ApiAddress(self.api_url))

    @property
    def is_on(self) -> bool:
        return bool(self.token_env or self.token_file or self.token)


def _open(gateway: Gateway, settings: DiscordSettings) -> AbstractAsyncContextManager[OpenChannel]:
    from talaria.channels.discord.channel import open_discord  # noqa: PLC0415

    return open_discord(gateway, settings)


def _examine(examination: Examination[DiscordSettings]) -> AsyncIterator[Problem]:
    from talaria.channels.discord.account import examine_bot  # noqa: PLC0415

    return examine_bot(examination)


def _connect(
    settings: DiscordSettings, secrets: Mapping[str, str]
) -> AbstractAsyncContextManager[PlatformAccount]:
    from talaria.channels.discord.account import open_bot  # noqa: PLC0415

    return open_bot(settings, secrets["token"])


def _check(settings: DiscordSettings, secrets: Mapping[str, str]) -> AbstractAsyncContextManager[CheckedChat]:
    from talaria.channels.discord.account import open_check  # noqa: PLC0415

    return open_check(settings, secrets["token"])


def _find_address(chat: ChatAddress) -> str | None:
    """Return the address of a chat, as `parse.Place` writes it."""
    ids = (chat.chat, chat.thread or "0")
    if chat.kind not in ("dm", "group") or not all(each.isascii() and each.isdigit() for each in ids):
        return None
    return f":{chat.chat}::" if chat.kind == "dm" else f"{chat.thread or chat.chat}:::"


_GUIDE = """\
1. Open https://discord.com/developers/applications, click New Application, name it, click Create.
2. Open Bot. Below Privileged Gateway Intents, turn on Message Content Intent. Click Save Changes.
3. On the same page click Reset Token, and copy the token.
"""


DISCORD: Final = Channel(
    name="discord",
    title="Discord",
    table=("channels", "discord"),
    settings=DiscordSettings,
    open=_open,
    is_on=lambda settings: settings.is_on,
    has_pairing=True,
    has_one_consumer=lambda settings: True,
    address_of=_find_address,
    findings=_examine,
    connector=Connector(
        guide=lambda: _GUIDE,
        help="Connect a Discord bot. You create it at https://discord.com/developers/applications.",
        secrets=(
            SecretQuestion(
                "token",
                "Token of the bot",
                "Open https://discord.com/developers/applications, choose your application, "
                "then Bot, then Reset Token, and copy the token.",
            ),
        ),
        options={"api_url": "Another server than Discord's API."},
        open=_connect,
        check=_check,
    ),
)
