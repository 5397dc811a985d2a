"""The bot's account: what `talaria doctor` says of it, and how `talaria connect discord` tries it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from talaria.access.authorizer import Authorizer
from talaria.channels.descriptor import find_secret
from talaria.channels.discord.api import (
    Application,
    DiscordApi,
    DiscordRefused,
    DiscordUser,
    GuildMessage,
    Interaction,
)
from talaria.channels.discord.gateway import NO_INTENT, DiscordGateway
from talaria.channels.discord.outlet import DiscordOutlet
from talaria.channels.discord.parse import (
    DiscordMessage,
    EventContext,
    parse_interaction,
    parse_message,
)
from talaria.channels.discord.part import DISCORD, DiscordSettings
from talaria.channels.incoming import ButtonPress
from talaria.channels.platform_api import PlatformError, decode_or_none
from talaria.channels.reception import admit
from talaria.channels.running import examine_account
from talaria.channels.self_test import InputQueue
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem, ok, problem
from talaria.core.settings import Examination
from talaria.core.tasks import running

_PORTAL = "https://discord.com/developers/applications"
# https://docs.discord.com/developers/resources/application#application-object-application-flags
_HAS_MESSAGE_CONTENT = 1 << 18 | 1 << 19
# View channels, send messages (also in threads), open threads, embed, attach, read history.
_PERMISSIONS = 1 << 10 | 1 << 11 | 1 << 38 | 1 << 35 | 1 << 14 | 1 << 15 | 1 << 16


async def examine_bot(examination: Examination[DiscordSettings]) -> AsyncIterator[Problem]:
    settings = examination.settings
    if not settings.is_on:
        return

    async def try_bot() -> list[Problem]:
        token = find_secret(settings, DISCORD, "token", examination.home, examination.environ)
        async with DiscordApi(settings.api_url, token) as api:
            bot = await api.call("GET", "/users/@me", DiscordUser)
            application = await api.call("GET", "/applications/@me", Application)
        found = [ok("discord", f"@{bot.name} answers.")]
        if not application.flags & _HAS_MESSAGE_CONTENT:
            text = f"The bot cannot read messages: {NO_INTENT}."
            found.append(problem("discord", text, "Turn it on, then restart."))
        return found

    for each in await examine_account(DISCORD, examination, try_bot):
        yield each


@asynccontextmanager
async def open_bot(settings: DiscordSettings, token: str) -> AsyncIterator[DiscordAccount]:
    """Raises `ConfigError` if Discord does not accept the token, or the bot may not read messages."""
    async with DiscordApi(settings.api_url, token) as api:
        try:
            bot = await api.call("GET", "/users/@me", DiscordUser)
            application = await api.call("GET", "/applications/@me", Application)
        except DiscordRefused as refusal:
            if not refusal.is_about_token:
                raise
            raise ConfigError(
                "Discord does not accept this token.",
                f"Open {_PORTAL}, your application, Bot, click Reset Token, and paste the new token whole. "
                "The client secret and the public key are not the token.",
            ) from None
        if not application.flags & _HAS_MESSAGE_CONTENT:
            raise ConfigError(
                "The token works, but the bot is not allowed to read messages.",
                f"Open {_PORTAL}/{application.id}/bot, scroll to Privileged Gateway Intents, turn on "
                "Message Content Intent and click Save Changes. Then paste the token again.",
            )
        yield DiscordAccount(api, bot, application)


class DiscordAccount:
    """A bot whose token works."""

    def __init__(
        self, api: DiscordApi, bot: DiscordUser, application: Application, clock: Clock | None = None
    ) -> None:
        self.api = api
        self.bot = bot
        self._application = application
        self._clock = clock or SystemClock()

    @property
    def name(self) -> str:
        return self.bot.name

    def invite(self, code: str) -> Sequence[str]:
        asked = f"scope=bot+applications.commands&permissions={_PERMISSIONS}"
        link = f"https://discord.com/oauth2/authorize?client_id={self._application.id}&{asked}"
        return (
            "Add the bot to a server of yours, and allow what it asks for:",
            f"  {link}",
            f"Then open the bot's profile there, choose Message, and send it:  /start {code}",
        )

    async def admit_first(self, authorizer: Authorizer, seconds: float) -> str | None:
        """Listen with a session that is not kept: the gateway fetches nothing that was answered here."""
        connection = DiscordGateway(self.api, self._clock)
        outlet = DiscordOutlet(self.api, self._clock, "off")
        admitted: list[str] = []

        def read(name: str, data: msgspec.Raw) -> object:
            """Return what a person wrote in private. If a gateway has registered the command `/start` before,
            Discord sends it as an interaction."""
            around = EventContext(self.bot, "")
            if name == "MESSAGE_CREATE" and (message := decode_or_none(data, GuildMessage)):
                return parse_message(message, around) if message.guild_id is None else None
            if name == "INTERACTION_CREATE" and (event := decode_or_none(data, Interaction)):
                return parse_interaction(event, around) if event.guild_id is None else None
            return None

        async def on_event(name: str, data: msgspec.Raw, seq: int) -> None:
            said = read(name, data)
            if isinstance(said, DiscordMessage) and (person := await admit(authorizer, said, outlet.say)):
                admitted.append(person)
                await connection.close()

        deadline = self._clock.elapsed() + seconds
        while not admitted and (left := deadline - self._clock.elapsed()) > 0:
            try:
                async with asyncio.timeout(left):
                    await connection.run(on_event)
            except TimeoutError:
                break
            except PlatformError:
                if not admitted:
                    await self._clock.sleep(1)
        return admitted[0] if admitted else None


# -- the self-test


@asynccontextmanager
async def open_check(settings: DiscordSettings, token: str) -> AsyncIterator[CheckedDiscord]:
    """Raises what `open_bot` raises."""
    async with open_bot(settings, token) as account:
        chat = CheckedDiscord(account)
        async with running(chat.listen(), name="discord self-test"):
            yield chat


class CheckedDiscord(InputQueue):
    """A second connection with the bot's token. A running gateway gets the same events and answers them."""

    def __init__(self, account: DiscordAccount) -> None:
        super().__init__()
        self._api = account.api
        self._context = EventContext(account.bot, "")
        self._connection = DiscordGateway(account.api, SystemClock())
        self._resumed = asyncio.Event()
        self.outlet = DiscordOutlet(account.api, SystemClock(), "off")

    async def listen(self) -> None:
        while True:
            try:
                await self._connection.run(self._on_event)
            except PlatformError:
                await asyncio.sleep(1)

    async def reconnect(self) -> None:
        self._resumed.clear()
        await self._connection.close()
        await self._resumed.wait()

    async def _on_event(self, name: str, data: msgspec.Raw, seq: int) -> None:
        if name == "RESUMED":
            self._resumed.set()
        elif name == "MESSAGE_CREATE":
            message = msgspec.json.decode(data, type=GuildMessage)
            parsed = parse_message(message, self._context)
            if message.guild_id is None:
                self.put(parsed)
        elif name == "INTERACTION_CREATE":
            event = msgspec.json.decode(data, type=Interaction)
            pressed = parse_interaction(event, self._context)
            if isinstance(pressed, ButtonPress):
                path = f"/interactions/{event.id}/{event.token}/callback"
                await self._api.call("POST", path, msgspec.Raw, {"type": 6})
                self.put(pressed)
