"""Slack as a part of the gateway. What it needs to run is imported when it is used: its HTTP client takes
longer to import than the rest of a start."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from talaria.access.settings import Unknown
from talaria.channels.descriptor import (
    Channel,
    Connector,
    Mention,
    PlatformAccount,
    SecretQuestion,
    find_secret,
)
from talaria.core.ids import ChatAddress
from talaria.core.problems import Problem
from talaria.core.redaction import ApiAddress
from talaria.core.settings import Check, Examination, Mark, matching, variable_name, web_address
from talaria.gateway import Gateway, OpenChannel

if TYPE_CHECKING:
    from talaria.channels.self_test import CheckedChat

CHANNEL = "slack"
API_URL = "https://slack.com/api"
UNCONFIRMED = "connected, but unconfirmed until the first event arrives"
SPLIT = "another program has a connection of this app too, and Slack splits the events"
SCOPES = (
    *("channels:history", "chat:write", "commands", "files:read", "files:write"),
    *("groups:history", "im:history", "im:write", "mpim:history", "users:read"),
)

_USER = "[UW][A-Z0-9]{2,30}"
_CHANNEL = "[CG][A-Z0-9]{2,30}"
SlackUsers = Annotated[
    tuple[Annotated[str, msgspec.Meta(pattern=f"^{_USER}$")], ...],
    msgspec.Meta(
        description='a list of member IDs, such as ["U012AB3CD"] (in a profile: the three dots, Copy member '
        "ID; `talaria pair list` shows the IDs of people who asked)"
    ),
]
SlackChannelId = Annotated[str, Check(matching(_CHANNEL, 'a channel ID such as "C012AB3CD"'))]


class SlackSettings(msgspec.Struct, frozen=True):
    """The channel runs if a bot token is set. With an app-level token it uses Socket Mode, else the Events
    API, whose requests the signing secret proves. The `_file` keys are relative to the home.

    `mention` says when a message in a channel is read. `mention_in` overrides it for channels by their ids.
    """

    bot_token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""
    bot_token_file: Annotated[str, Mark.SECRET_FILE] = ""
    bot_token: Annotated[str, Mark.SECRET] = ""
    app_token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""
    app_token_file: Annotated[str, Mark.SECRET_FILE] = ""
    app_token: Annotated[str, Mark.SECRET] = ""
    signing_secret_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""
    signing_secret_file: Annotated[str, Mark.SECRET_FILE] = ""
    signing_secret: Annotated[str, Mark.SECRET] = ""
    allowed: Annotated[SlackUsers, Mark.LIVE] = ()
    unknown: Unknown = "pair"
    progress: Literal["off", "brief", "full"] = "brief"
    mention: Mention = "channels"
    mention_in: dict[SlackChannelId, Mention] = {}
    api_url: Annotated[str, Check(web_address)] = API_URL

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "api_url", ApiAddress(self.api_url))

    def has(self, secret: str) -> bool:
        return any(getattr(self, secret + ending) for ending in ("", "_env", "_file"))

    @property
    def is_on(self) -> bool:
        return self.has("bot_token")

    @property
    def is_socket_mode(self) -> bool:
        return self.has("app_token")

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.is_on and not self.is_socket_mode and not self.has("signing_secret"):
            text = (
                "is set: expected channels.slack.app_token_env (Socket Mode) or signing_secret_env with it."
            )
            yield "bot_token", text


_SECRETS = ("bot_token", "app_token", "signing_secret")


def find_secrets(settings: SlackSettings, home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the configured secrets by their keys. Raises `ConfigError` if a configured place has none."""
    return {key: find_secret(settings, SLACK, key, home, environ) for key in _SECRETS if settings.has(key)}


# -- Slack as a part of the gateway -----------------------------------------------------------------------


def _open(gateway: Gateway, settings: SlackSettings) -> AbstractAsyncContextManager[OpenChannel]:
    from talaria.channels.slack.channel import open_slack  # noqa: PLC0415

    return open_slack(gateway, settings)


def _examine(examination: Examination[SlackSettings]) -> AsyncIterator[Problem]:
    from talaria.channels.slack.account import examine_app  # noqa: PLC0415

    return examine_app(examination)


def _connect(
    settings: SlackSettings, secrets: Mapping[str, str]
) -> AbstractAsyncContextManager[PlatformAccount]:
    from talaria.channels.slack.account import open_app  # noqa: PLC0415

    return open_app(settings, secrets["bot_token"], secrets["app_token"])


def _check(settings: SlackSettings, secrets: Mapping[str, str]) -> AbstractAsyncContextManager[CheckedChat]:
    from talaria.channels.slack.account import open_check  # noqa: PLC0415

    return open_check(settings, secrets["bot_token"], secrets["app_token"])


def _find_address(chat: ChatAddress) -> str | None:
    """Return the address of a chat, as `parse.SlackPlace` writes it."""
    pattern = {"dm": _USER, "group": _CHANNEL}.get(chat.kind, "")
    if not re.fullmatch(pattern, chat.chat) or not re.fullmatch(r"|[0-9]+\.[0-9]+", chat.thread or ""):
        return None
    return f"{chat.chat}:{chat.thread or ''}"


def _guide() -> str:
    manifest = Path(__file__).with_name("manifest.yaml").read_text(encoding="utf-8")
    return f"""\
1. Open https://api.slack.com/apps and click Create New App, From a manifest. Choose your workspace.
2. Paste this manifest in place of the one shown, and click Next, then Create:

{manifest}
3. Click Install App, Install to Workspace. Copy the Bot User OAuth Token (xoxb-…).
4. Click Basic Information, App-Level Tokens, Generate Token and Scopes. Add the scope
   connections:write, click Generate, and copy the token (xapp-…).
"""


SLACK: Final = Channel(
    name=CHANNEL,
    title="Slack",
    table=("channels", "slack"),
    settings=SlackSettings,
    open=_open,
    is_on=lambda settings: settings.is_on,
    has_pairing=True,
    has_one_consumer=lambda settings: settings.is_socket_mode,
    address_of=_find_address,
    findings=_examine,
    connector=Connector(
        help="Connect an app of yours to a Slack workspace. The command prints the manifest to create it.",
        guide=_guide,
        secrets=(
            SecretQuestion(
                "bot_token",
                "Bot User OAuth Token (xoxb-…)",
                "It is on the app's page OAuth & Permissions, after Install to Workspace.",
            ),
            SecretQuestion(
                "app_token",
                "App-Level Token (xapp-…)",
                "Create it under Basic Information, App-Level Tokens, with the scope connections:write.",
            ),
        ),
        options={"api_url": "Another Web API server than Slack's."},
        open=_connect,
        check=_check,
    ),
)
