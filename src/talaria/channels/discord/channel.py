"""`DiscordChannel`: receives events over the gateway, fetches missed messages, and reports its status.

The events of one channel are handled in order, and different channels in parallel. A message is confirmed by
the stored position of its channel, which follows the commit. After a restart the session is resumed. If
Discord has dropped it, the messages after the position of each channel are fetched.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import msgspec

from talaria.access.authorizer import Authorized, Authorizer
from talaria.channels.channel_loop import ChannelLoop, ChannelPhase
from talaria.channels.descriptor import find_secret
from talaria.channels.discord.api import (
    THREAD_EXISTS,
    AddedReaction,
    Application,
    BulkDeletion,
    DiscordApi,
    DiscordChannelInfo,
    DiscordRefused,
    DiscordUser,
    Guild,
    GuildMessage,
    Interaction,
)
from talaria.channels.discord.gateway import DiscordGateway
from talaria.channels.discord.outlet import MAX_FILE_MB, DiscordOutlet
from talaria.channels.discord.parse import (
    CHANNEL,
    DiscordMessage,
    EventContext,
    IgnoredEvent,
    parse_interaction,
    parse_message,
    parse_reaction,
)
from talaria.channels.discord.part import DISCORD, DiscordSettings
from talaria.channels.discord.position import ReadPosition
from talaria.channels.incoming import ButtonPress, RemoteFile, Withdrawal
from talaria.channels.lanes import EventLanes, Work
from talaria.channels.pieces import shorten
from talaria.channels.platform_api import PlatformError, decode_or_none
from talaria.channels.questions import is_decision
from talaria.channels.reception import Reception
from talaria.channels.running import hosts_of, run_channel
from talaria.core.delivery import DeliveryError
from talaria.core.errors import StoreError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey
from talaria.core.limits import BoundedDict
from talaria.core.redaction import Secret
from talaria.gateway import Gateway
from talaria.turns.intake import Draining
from talaria.turns.slash import SLASH_COMMANDS

_log = logging.getLogger("talaria.discord")

_MAX_COMMANDS = 100  # https://docs.discord.com/developers/interactions/application-commands
_MAX_KNOWN = 2048
_PAGE = 100
_FETCHES_AT_ONCE = 8
_TIER_MB = {2: 50, 3: 100}  # the largest file in a server with boosts
_EPHEMERAL = 1 << 6
_REPLY, _UPDATE_LATER = 4, 6  # answers to an interaction
_WORK = frozenset(
    ("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "MESSAGE_DELETE_BULK", "MESSAGE_REACTION_ADD")
) | {"INTERACTION_CREATE"}
_OF_CHANNELS = frozenset(("CHANNEL_UPDATE", "CHANNEL_DELETE", "THREAD_UPDATE", "THREAD_DELETE"))


class DiscordChannel(ChannelLoop):
    name = CHANNEL
    title = "Discord"
    max_download = 50 << 20

    def __init__(
        self,
        api: DiscordApi,
        settings: DiscordSettings,
        outlet: DiscordOutlet,
        authorizer: Authorizer,
        gateway: Gateway,
    ) -> None:
        super().__init__(gateway.clock)
        self._api = api
        self._settings = settings
        self._outlet = outlet
        self._authorizer = authorizer
        self._store = gateway.store
        self._agent = gateway.settings.agent.name
        self._connection = DiscordGateway(api, gateway.clock)
        self._reception = Reception(self, authorizer, gateway, settings.unknown)
        self._bot: DiscordUser | None = None
        self.position: ReadPosition | None = None
        self._lanes = EventLanes(self, self._note_recovered, self._connection.close)
        self._infos: BoundedDict[str, DiscordChannelInfo] = BoundedDict(_MAX_KNOWN)
        self._fetches = asyncio.Semaphore(_FETCHES_AT_ONCE)
        self._limits: dict[str, int] = {}  # of the files of servers, in MB
        self._chats: BoundedDict[str, ChatKey] = BoundedDict(_MAX_KNOWN)  # by message

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._lanes.close()
            if self.position is not None:
                try:
                    await self.position.save(self._connection.session, is_last=True)
                except StoreError as error:  # the next process fetches more than it needs
                    _log.debug("the position was not stored: %s", error.user_text)

    async def serve(self) -> NoReturn:
        if self.position is None:
            await self._introduce()
        try:
            await self._connection.run(self._on_event)
        except PlatformError:
            if self._lanes.is_draining:
                raise Draining("The gateway is shutting down.") from None
            raise

    async def _introduce(self) -> None:
        self._bot = bot = await self._api.call("GET", "/users/@me", DiscordUser)
        await self._register_commands()
        position = ReadPosition(self._store, self.clock, bot.id)
        self._connection.session = await position.load()
        self.position = position

    async def _register_commands(self) -> None:
        """Replace the slash commands if they are not those that were registered last."""
        commands = command_menu({spec.name: spec.help for spec in SLASH_COMMANDS.values()})
        application = await self._api.call("GET", "/applications/@me", Application)
        digest = hashlib.sha256(msgspec.json.encode(commands)).hexdigest()
        cursor = f"discord-commands:{application.id}"
        if await self._store.cursor(cursor) == digest:
            return
        try:
            await self._api.call("PUT", f"/applications/{application.id}/commands", msgspec.Raw, commands)
            await self._store.set_cursor(cursor, digest)
        except DiscordRefused as refusal:  # costs the menu only
            _log.warning("the slash commands are not registered: %s", refusal.user_text)

    # -- events ---------------------------------------------------------------------------------------------

    async def _on_event(self, name: str, data: msgspec.Raw, seq: int) -> None:
        assert self.position is not None
        position = self.position
        await self._lanes.room()
        match name:
            case "READY":
                position.restart()
                for channel in position.behind:
                    self._lanes.put(channel, partial(self._catch_up, channel))
                await position.save(self._connection.session)
                self.enter(ChannelPhase.READY, f"@{self._bot and self._bot.username}")
            case "RESUMED":
                self.enter(ChannelPhase.READY, f"@{self._bot and self._bot.username}")
            case _ if name in _WORK:
                for channel, work in self._works(name, data):
                    self._put(channel, seq, work)
            case "GUILD_CREATE" | "GUILD_UPDATE":
                if (guild := decode_or_none(data, Guild)) is not None:
                    self._limits[guild.id] = _TIER_MB.get(guild.premium_tier, MAX_FILE_MB)
            case _ if name in _OF_CHANNELS:
                if (info := decode_or_none(data, DiscordChannelInfo)) is not None:
                    self._infos.pop(info.id, None)
            case _:
                pass

    def _works(self, name: str, data: msgspec.Raw) -> Iterator[tuple[str, Work]]:
        """Yield what is to be done after an event, with its channel."""
        if name == "INTERACTION_CREATE":
            event = decode_or_none(data, Interaction)
            if event is not None and _are_ids(event.channel_id, event.id, event.guild_id):
                yield event.channel_id, partial(self._interact, event)
        elif name == "MESSAGE_REACTION_ADD":
            added = decode_or_none(data, AddedReaction)
            # Most emoji decide nothing, and cost no call.
            if (
                added is not None
                and is_decision(added.emoji.name or "")
                and _are_ids(added.channel_id, added.guild_id)
            ):
                yield added.channel_id, partial(self._react, added)
        else:
            for message in _messages_in(name, data):
                yield message.channel_id, partial(self._take, name, message)

    def _note_recovered(self) -> None:
        if self._connection.is_open:
            self.enter(ChannelPhase.READY, "again")

    def _put(self, channel: str, seq: int, work: Work) -> None:
        assert self.position is not None
        ticket = self.position.begin(seq)
        self._lanes.put(channel, work, partial(self.position.end, ticket))

    async def _catch_up(self, channel: str) -> None:
        """Take the messages of a channel that came while nobody received."""
        assert self.position is not None
        while (known := self.position.channels.get(channel)) is not None:
            path = f"/channels/{channel}/messages?after={known.last}&limit={_PAGE}"
            try:
                async with self._fetches:
                    found = await self._api.call("GET", path, tuple[GuildMessage, ...])
                for message in sorted(found, key=_number):
                    whole = msgspec.structs.replace(message, channel_id=channel, guild_id=known.guild or None)
                    await self._take("MESSAGE_CREATE", whole)
            except DiscordRefused as refusal:
                if refusal.code not in (403, 404):
                    raise
                await self.position.forget_channel(channel)
                break
            if len(found) < _PAGE:
                break
        self.position.behind.discard(channel)
        await self.position.save(self._connection.session)

    async def _take(self, name: str, message: GuildMessage) -> None:
        """Handle a message, an edit or a deletion."""
        assert self.position is not None
        if name.startswith("MESSAGE_DELETE"):
            if (chat := self._chats.get(message.id)) is not None:
                self._reception.withdraw(Withdrawal(chat=chat, key=f"m{message.id}"))
            return
        if name == "MESSAGE_UPDATE":
            if message.edited_timestamp is not None:  # else Discord has added a preview
                await self._read(message)
            return
        await self._read(msgspec.structs.replace(message, edited_timestamp=None))
        self.position.advance(message.channel_id, _number(message))
        await self.position.save(self._connection.session)

    async def _read(self, message: GuildMessage) -> None:
        """Hand over a message or an edit that addresses the bot."""
        assert self.position is not None
        if message.author is None or message.author.bot:
            return
        around = await self._look(message.channel_id, message.guild_id)
        parsed = parse_message(message, around)
        if isinstance(parsed, IgnoredEvent):
            _log.debug("message %s ignored: %s", message.id, parsed.reason)
            return
        if parsed.new_thread is not None:
            parsed = await self._open_thread(message, parsed, around)
        self._chats[message.id] = parsed.chat
        if await self._reception.receive([parsed]):
            number, guild = _number(message), message.guild_id or ""
            if parsed.new_thread is not None:  # it has the id of its first message
                await self.position.save_channel(message.id, number, guild)
            if parsed.edits is None:
                await self.position.save_channel(message.channel_id, number, guild)
                hit(Failpoint.ACKNOWLEDGED)

    async def _look(self, channel: str, guild: str | None) -> EventContext:
        """Return what is known of the place of an event. The first event of a channel asks Discord for it."""
        assert self._bot is not None
        if guild is None:
            return EventContext(self._bot, self._agent)
        info = self._infos.get(channel)
        if info is None:
            info = self._infos[channel] = await self._api.call(
                "GET", f"/channels/{channel}", DiscordChannelInfo
            )
        settings, limit = self._settings, await self._find_limit(guild)
        around = EventContext(self._bot, self._agent, info, auto_thread=settings.auto_thread, limit=limit)
        mention = settings.mention_in.get(around.home, settings.mention)
        return msgspec.structs.replace(around, mention=mention)

    async def _find_limit(self, guild: str) -> int:
        """Return the size in MB of the largest file in a server. A resumed session has not told it."""
        if guild not in self._limits:
            try:
                found = await self._api.call("GET", f"/guilds/{guild}", Guild)
            except DiscordRefused as refusal:
                if refusal.code == 429:
                    raise
                found = Guild(guild)
            self._limits[guild] = _TIER_MB.get(found.premium_tier, MAX_FILE_MB)
        return self._limits[guild]

    async def _open_thread(
        self, message: GuildMessage, parsed: DiscordMessage, around: EventContext
    ) -> DiscordMessage:
        """Open the thread of the message. A message of a stranger opens none. Without the permission the
        reply goes to the channel."""
        if not isinstance(await self._authorizer.check(parsed.actor, parsed.ingress), Authorized):
            return parsed
        path = f"/channels/{message.channel_id}/messages/{message.id}/threads"
        body = {"name": parsed.new_thread, "auto_archive_duration": 1440}
        try:
            await self._api.call("POST", path, DiscordChannelInfo, body)
        except DiscordRefused as refusal:
            if refusal.number == THREAD_EXISTS:  # from an attempt before a restart
                return parsed
            if refusal.code == 429:
                raise
            _log.warning("a thread could not be opened: %s", refusal.user_text)
            plain = parse_message(message, msgspec.structs.replace(around, auto_thread=False))
            return plain if isinstance(plain, DiscordMessage) else parsed
        return parsed

    async def _react(self, added: AddedReaction) -> None:
        around = await self._look(added.channel_id, added.guild_id)
        await self._reception.react(parse_reaction(added, around))

    async def _interact(self, event: Interaction) -> None:
        around = await self._look(event.channel_id, event.guild_id)
        parsed = parse_interaction(event, around)
        told = None
        match parsed:
            case ButtonPress():
                told = await self._reception.press(parsed)
            case DiscordMessage():
                await self._reception.receive([parsed])
                told = f"`{parsed.text[:200].replace('`', '')}`"
            case IgnoredEvent():
                return
        # Always answered, so that the person's client stops waiting. Only this person sees it.
        answer: dict[str, Any] = {"type": _UPDATE_LATER}
        if told:
            answer = {"type": _REPLY, "data": {"content": told[:2000], "flags": _EPHEMERAL}}
        try:
            await self._api.call(
                "POST", f"/interactions/{event.id}/{event.token}/callback", msgspec.Raw, answer
            )
        except PlatformError as error:
            _log.debug("an interaction was not answered: %s", error.user_text)

    # -- `reception.Platform` -------------------------------------------------------------------------------

    async def say(self, address: str, text: str) -> None:
        try:
            await self._outlet.say(address, text)
        except (PlatformError, DeliveryError) as error:
            _log.warning("a chat could not be told why its message was not taken: %s", error.user_text)

    async def fetch(self, file: RemoteFile) -> bytes:
        return await self._api.download(file.id, self.max_download)


def command_menu(helps: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the slash commands with these names: the first ones, if there are more than Discord takes. They
    are offered where the bot can answer, in servers and in its private chats."""
    named = {"start": "Present a code that lets you in.", **helps}
    option = {"type": 3, "name": "text", "description": "What follows the command."}
    return [
        {"name": name, "description": shorten(text, 100), "options": [option], "contexts": [0, 1]}
        for name, text in islice(named.items(), _MAX_COMMANDS)
    ]


def _messages_in(name: str, data: msgspec.Raw) -> list[GuildMessage]:
    """Return the messages of an event. Those that are deleted have ids only."""
    found: list[GuildMessage] = []
    if name == "MESSAGE_DELETE_BULK":
        if (bulk := decode_or_none(data, BulkDeletion)) is not None:
            found = [GuildMessage(id, bulk.channel_id, bulk.guild_id) for id in bulk.ids]
    elif (message := decode_or_none(data, GuildMessage)) is not None:
        found = [message]
    return [each for each in found if _are_ids(each.channel_id, each.id, each.guild_id)]


def _are_ids(*ids: str | None) -> bool:
    """Return whether these are ids, which may stand in a path. A private chat has no server."""
    return all(each is None or (each.isascii() and each.isdigit() and len(each) <= 20) for each in ids)


def _number(message: GuildMessage) -> int:
    """Ids grow with time: https://docs.discord.com/developers/reference#snowflakes"""
    return int(message.id) if message.id.isascii() and message.id.isdigit() else 0


@asynccontextmanager
async def open_discord(gateway: Gateway, settings: DiscordSettings) -> AsyncIterator[DiscordChannel]:
    """Run the channel until the context is left: then no more events are taken, and sends under way finish.

    Raises `ConfigError` without a token. Later errors are not raised; the channel's status tells of them.
    """
    token = find_secret(settings, DISCORD, "token", gateway.home.path, gateway.environ)
    gateway.secrets.add([Secret("channels.discord.token", token)])
    authorizer = Authorizer(gateway.store.pairings, {CHANNEL: settings.allowed}, gateway.clock)

    async with DiscordApi(settings.api_url, token, gateway.clock.elapsed) as api:
        outlet = DiscordOutlet(api, gateway.clock, settings.progress, hosts_of(gateway))
        channel = DiscordChannel(api, settings, outlet, authorizer, gateway)
        async with run_channel(gateway, DISCORD, channel, outlet, authorizer):
            yield channel
