"""The descriptor of a channel: a part that people write to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol

from talaria.access.people import People
from talaria.core.errors import BadRequest
from talaria.core.ids import ChatAddress
from talaria.core.settings import GatewayPart, Parts, S
from talaria.gateway import Gateway, OpenChannel

if TYPE_CHECKING:
    from talaria.access.authorizer import Authorizer
    from talaria.config.reload import LiveSettings
    from talaria.config.settings import Settings


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
    """The needs of `talaria connect NAME`. `options` are keys of the table, each with its help. `open` takes
    the settings that would be written and the secrets by key; it raises `ConfigError` if the platform
    refuses them."""

    help: str
    secrets: tuple[SecretQuestion, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    open: Callable[[S, Mapping[str, str]], AbstractAsyncContextManager[PlatformAccount]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel(GatewayPart[S]):
    """`open` starts the channel, until its context is left. It does not wait for the platform, and raises
    `ConfigError` if the settings do not allow it to start. `is_on` returns whether the settings want the
    channel at all. With `has_pairing`, strangers are paired: see docs/access.md. `address_of` returns the
    platform's address of a chat, None for a chat that the platform cannot have; a channel without it sends
    nothing: people fetch what is in their chats. With `has_one_consumer` the platform gives each message to
    one process only, as by polling: of several gateways on one database, one opens the channel at a time."""

    open: Callable[[Gateway, S], AbstractAsyncContextManager[OpenChannel]]
    is_on: Callable[[S], bool] = lambda settings: True
    address_of: Callable[[ChatAddress], str | None] | None = None
    has_pairing: bool = False
    has_one_consumer: Callable[[S], bool] = lambda settings: False
    connector: Connector[S] | None = None


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
