"""The descriptor of a channel: a part that people write to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from talaria.access.people import People
from talaria.core.errors import BadRequest, ConfigError
from talaria.core.ids import ChatAddress
from talaria.core.settings import GatewayPart, Parts, S
from talaria.gateway import Gateway, OpenChannel

if TYPE_CHECKING:
    from talaria.access.authorizer import Authorizer
    from talaria.channels.self_test import CheckedChat
    from talaria.config.reload import LiveSettings
    from talaria.config.settings import Settings


Mention = Literal["always", "channels", "never", "off"]
"""When a message in a channel is read, by the settings `mention` and `mention_in`: `always` needs a mention,
`channels` needs one except in threads in which the agent takes part, `never` reads all, `off` reads none."""


class PlatformAccount(Protocol):
    """An account on the platform, with secrets that the platform accepts."""

    @property
    def name(self) -> str: ...

    def invite(self, code: str) -> Sequence[str]:
        """Return lines that tell how a person presents the code."""
        ...

    async def admit_first(self, authorizer: Authorizer, seconds: float) -> str | None:
        """Wait for the first person whom the authorizer lets in by a code, and return the name; None after
        so many seconds. Messages are only looked at: the gateway receives all of them later."""
        ...


@dataclass(frozen=True, slots=True)
class SecretQuestion:
    """A secret that `talaria connect` asks for. The table has three keys for it: KEY, KEY_env for the name of
    a variable, and KEY_file for the name of a file in the home."""

    key: str
    question: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector(Generic[S]):
    """The needs of `talaria connect NAME`. `guide` returns what to do on the platform, which is shown before
    secrets are asked for. `options` are keys of the table, each with its help. `open` takes the settings that
    would be written and the secrets by key; it raises `ConfigError` if the platform refuses them. `check`
    opens a chat for the live self-test."""

    help: str
    guide: Callable[[], str] | None = None
    secrets: tuple[SecretQuestion, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    open: Callable[[S, Mapping[str, str]], AbstractAsyncContextManager[PlatformAccount]]
    check: Callable[[S, Mapping[str, str]], AbstractAsyncContextManager[CheckedChat]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel(GatewayPart[S]):
    """`title` is the platform's name for people. `open` starts the channel, until its context is left. It
    does not wait for the platform, and raises `ConfigError` if the settings do not allow it. `is_on`
    returns whether the settings want the channel at all. With `has_pairing`, strangers are paired: see
    docs/access.md. `address_of` returns the platform's address of a chat, None for a chat that the platform
    cannot have; a channel without it sends nothing: people fetch what is in their chats. With
    `has_one_consumer` the platform gives each message to one process only, as by polling: of several gateways
    on one database, one opens the channel at a time."""

    open: Callable[[Gateway, S], AbstractAsyncContextManager[OpenChannel]]
    title: str = ""
    is_on: Callable[[S], bool] = lambda settings: True
    address_of: Callable[[ChatAddress], str | None] | None = None
    has_pairing: bool = False
    has_one_consumer: Callable[[S], bool] = lambda settings: False
    connector: Connector[S] | None = None


def find_secret(
    settings: object, channel: Channel[Any], key: str, home: Path, environ: Mapping[str, str]
) -> str:
    """Return the secret of a channel's table that KEY, KEY_env or KEY_file names. Raises `ConfigError` if the
    configured place has none."""
    given, variable, file = (str(getattr(settings, key + ending)) for ending in ("", "_env", "_file"))
    if given:
        return given
    name = f"{channel.title}'s {key.replace('_', ' ')}"
    again = f"Set it, or run `talaria connect {channel.name}`."
    value = environ.get(variable, "").strip()
    if variable and not file:
        if not value:
            raise ConfigError(f"The variable {variable} for {name} is not set.", again)
        return value
    path = home / file
    try:
        value = value or path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigError(f"{name} cannot be read from {path}: {reason}.", again) from None
    if not value:
        raise ConfigError(f"{path} is empty and should hold {name}.", again)
    return value


def find_address(
    parts: Parts, settings_of: Callable[[Channel[Any]], Any], agent: str, chat: ChatAddress
) -> str | None:
    """Return where messages to a chat go; None for a chat whose people fetch them. Raises `BadRequest` for a
    chat that cannot be written to."""
    if chat.agent != agent:
        raise BadRequest(f"There is no agent {chat.agent!r} here.", f"The agent's name is {agent!r}.")
    channels = [part for part in parts if isinstance(part, Channel)]
    channel = next((each for each in channels if each.name == chat.channel), None)
    if channel is None:
        names = ", ".join(each.name for each in channels)
        raise BadRequest(f"There is no channel {chat.channel!r}.", f"The channels are: {names}.")
    if channel.address_of is None:
        return None
    if not channel.is_on(settings_of(channel)):
        raise BadRequest(
            f"{chat.channel} is not connected, so nothing can be sent there.",
            f"Run `talaria connect {chat.channel}`.",
        )
    if (address := channel.address_of(chat)) is None:
        raise BadRequest(f"{chat.key()} is no chat of {chat.channel}.", "`talaria sessions list` shows keys.")
    return address


def connected_files(parts: Parts) -> list[str]:
    """Return the names of the files to which `talaria connect` writes secrets."""
    connectors = [(part.name, part.connector) for part in parts if isinstance(part, Channel)]
    return [f"{name}.{secret.key}" for name, each in connectors if each for secret in each.secrets]


def pairing_channels(parts: Parts) -> list[str]:
    """Return the names of the channels whose people can be paired."""
    return [part.name for part in parts if isinstance(part, Channel) and part.has_pairing]


def follow_people(live: LiveSettings, parts: Parts) -> People:
    """Return the people of the settings, also after changes of them."""

    def allowed(settings: Settings) -> dict[str, tuple[int | str, ...]]:
        channels = [part for part in parts if isinstance(part, Channel)]
        return {part.name: getattr(settings.of(part), "allowed", ()) for part in channels}

    people = People(live.settings.people, allowed(live.settings))
    live.on(("people",), ("channels",), tell=lambda new: people.change(new.people, allowed(new)))
    return people
