"""`EventHandler`: completes parsed events with names and threads, and hands them to the reception."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import assert_never

import msgspec

from talaria.access.authorizer import Authorized, Authorizer
from talaria.access.settings import Unknown
from talaria.channels.incoming import ButtonPress, RemoteFile, Withdrawal, clean_name
from talaria.channels.platform_api import PlatformError
from talaria.channels.reception import Reception, leaving_out_broken
from talaria.channels.slack.outlet import SlackOutlet
from talaria.channels.slack.parse import MessageFields, Said, people_in, thread_text
from talaria.channels.slack.slack_api import BotIdentity, SlackApi, SlackRefused, Value
from talaria.core.limits import BoundedDict
from talaria.gateway import Gateway

_log = logging.getLogger("talaria.slack")

_NAME_SECONDS = 3600.0  # for which a name is known
_MAX_NAMES = 2000
_MAX_PEOPLE = 50  # of one message or thread: Slack answers about 100 calls of users.info a minute
_READ_SECONDS = 2.0  # Slack waits for three until it sends an event again
_THREAD_MESSAGES = 1000
_THREAD_CHARACTERS = 8000
_UNREAD = "[Earlier messages of this thread could not be read.]"


class _Profile(msgspec.Struct, frozen=True):
    display_name: str = ""
    real_name: str = ""


class _User(msgspec.Struct, frozen=True):
    name: str = ""
    profile: _Profile = _Profile()


class _UserInfo(msgspec.Struct, frozen=True):
    user: _User = _User()


class _Thread(msgspec.Struct, frozen=True):
    messages: tuple[MessageFields, ...] = ()


async def find_name(api: SlackApi, person: str) -> str:
    """Return the name that people see. Raises `PlatformError`."""
    user = (await api.call("users.info", _UserInfo, user=person)).user
    return clean_name(user.profile.display_name or user.profile.real_name or user.name)


class EventHandler:
    """Handles the events of one bot. It is the `Platform` of its reception."""

    title = "Slack"
    max_download = 50 << 20  # Slack gives larger ones; this is what the gateway stores

    def __init__(
        self,
        api: SlackApi,
        outlet: SlackOutlet,
        authorizer: Authorizer,
        gateway: Gateway,
        unknown: Unknown = "pair",
    ) -> None:
        self._api = api
        self._outlet = outlet
        self._authorizer = authorizer
        self._gateway = gateway
        self._agent = gateway.settings.agent.name
        self._reception = Reception(self, authorizer, gateway, unknown)
        self._names: BoundedDict[str, tuple[str, float]] = BoundedDict(_MAX_NAMES)

    async def handle(self, parsed: Said | Withdrawal | ButtonPress, bot: BotIdentity) -> None:
        """Handle one event. When this returns, a message that may become a turn is durable.

        Raises `StoreError`, `Draining` or `Overloaded` if it could not be stored: then the event may not be
        acknowledged.
        """
        with leaving_out_broken():
            match parsed:
                case Said():
                    if await self._is_read(parsed):
                        await self._receive(parsed, bot)
                case ButtonPress():
                    if (answer := await self._reception.press(parsed)) is not None:
                        await self.say(parsed.address, answer, parsed.actor.user_id)
                case Withdrawal():
                    self._reception.withdraw(parsed)
                case _:
                    assert_never(parsed)

    async def _receive(self, said: Said, bot: BotIdentity) -> None:
        """Hand over a message, completed with names and its thread. An unknown sender causes one call to
        Slack, whatever the message contains."""
        message = said.message(self._agent, {})
        if isinstance(await self._authorizer.check(message.actor, message.ingress), Authorized):
            names = await self._names_of(said.people - {said.user}) | await self._names_of({said.user})
            message = said.message(self._agent, names, await self._earlier(said, bot))
        else:
            message = said.message(self._agent, await self._names_of({said.user}))
        await self._reception.receive([message])

    # -- threads --------------------------------------------------------------------------------------------

    async def _is_read(self, said: Said) -> bool:
        return not said.needs_thread or said.is_own_thread or await self._has_session(said)

    async def _has_session(self, said: Said) -> bool:
        return await self._gateway.store.current_session(said.chat(self._agent)) is not None

    async def _earlier(self, said: Said, bot: BotIdentity) -> str:
        """Return what people wrote in the thread since the agent's last message in it. Slack sends an event
        of each, but the agent has read none that did not address it. A thread that begins with a message of
        the agent, such as the result of a job, is a new conversation, which does not know that message."""
        is_new = said.is_own_thread and not await self._has_session(said)
        if not said.is_reply or not (said.is_mention or is_new) or said.is_command or said.edited:
            return ""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                params: dict[str, Value] = {"channel": said.place.channel, "ts": said.place.thread}
                found = await self._api.call(
                    "conversations.replies", _Thread, limit=_THREAD_MESSAGES, **params
                )
                names = await self._names_of(people_in(found.messages))
        except (PlatformError, TimeoutError) as error:
            _log.warning("a thread could not be read: %s", error)
            return _UNREAD
        return thread_text(found.messages, said.ts, bot, names, _THREAD_CHARACTERS)

    # -- names ----------------------------------------------------------------------------------------------

    async def _names_of(self, people: Collection[str]) -> dict[str, str]:
        """Return the people's names by their ids. People whose names are not known are left out, and so are
        those beyond the first ones of a crowd."""
        asked = sorted(people)[:_MAX_PEOPLE]
        found = await asyncio.gather(*map(self._name_of, asked))
        return {person: name for person, name in zip(asked, found, strict=True) if name}

    async def _name_of(self, person: str) -> str:
        now = self._gateway.clock.elapsed()
        name, known_until = self._names.get(person, ("", 0.0))
        if now < known_until:
            return name
        try:
            async with asyncio.timeout(_READ_SECONDS):
                name = await find_name(self._api, person)
        except (PlatformError, TimeoutError) as error:
            if not isinstance(error, SlackRefused):
                return name  # the next message tries again
            _log.info("the name of %s is not known: %s", person, error.user_text)
        self._names[person] = (name, now + _NAME_SECONDS)
        return name

    # -- `reception.Platform` -------------------------------------------------------------------------------

    async def say(self, address: str, text: str, only_to: str | None = None) -> None:
        try:
            await self._outlet.say(address, text, only_to)
        except PlatformError as error:
            _log.warning("a notice could not be sent: %s", error.user_text)

    async def fetch(self, file: RemoteFile) -> bytes:
        is_page = file.media_type.startswith("text/html")
        return await self._api.download(file.id, self.max_download, is_page=is_page)
