"""The state of a Discord server: people, channels, messages, and the rules for them.

Each rule names the page of Discord's documentation that states it; the pages are below
https://docs.discord.com/developers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Json = dict[str, Any]

BOT_ID = "4200000000000000001"
APPLICATION_ID = "4200000000000000002"
GUILD_ID = "4200000000000000003"
TEXT, DM, THREAD = 0, 1, 11
_FIRST_ID = 130_000_000_000_000_000
_EPOCH = "2026-01-01T00:00:00.000000+00:00"
_COMMAND_NAME = re.compile(r"[-_'\w]{1,32}")


class DiscordRefusal(Exception):
    """An error that Discord answers with: topics/opcodes-and-status-codes#json-json-error-codes."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def invalid(message: str) -> DiscordRefusal:
    return DiscordRefusal(400, 50035, f"Invalid Form Body: {message}")


@dataclass(slots=True)
class DiscordMessageShown:
    """A message as people see it now."""

    id: str
    channel: str
    author: str
    text: str
    buttons: tuple[tuple[str, str], ...] = ()  # labels and custom ids
    file: bytes | None = None
    file_name: str = ""
    reply_to: str = ""
    raw: Json = field(default_factory=dict)

    @property
    def by_bot(self) -> bool:
        return self.author == BOT_ID


@dataclass(slots=True)
class DiscordRoom:
    id: str
    type: int
    guild: str | None = None
    parent: str | None = None
    owner: str | None = None
    recipient: str = ""
    messages: dict[str, DiscordMessageShown] = field(default_factory=dict)
    is_forbidden: bool = False  # the bot may not write there

    def json(self) -> Json:
        body: Json = {"id": self.id, "type": self.type, "name": f"channel-{self.id}"}
        if self.guild:
            body |= {"guild_id": self.guild, "parent_id": self.parent}
        if self.type == THREAD:
            body["owner_id"] = self.owner
        return body

    @property
    def replies(self) -> list[str]:
        return [message.text for message in self.messages.values() if message.by_bot]


class DiscordPlatform:
    """`on_event` gets each event that the bot's gateway session should receive."""

    def __init__(self) -> None:
        self._ids = count(_FIRST_ID)
        self.people: dict[str, DiscordPerson] = {}
        self.channels: dict[str, DiscordRoom] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.file_url = ""
        self.commands: list[Json] = []
        self.interactions: dict[str, Json | None] = {}  # by token, with the answer
        self.max_file = 10 << 20
        self.premium_tier = 0
        self.has_message_content = True
        self.may_open_threads = True
        self.nonces: dict[str, str] = {}
        self.on_event: Callable[[str, Json], None] = lambda name, data: None

    def new_id(self) -> str:
        return str(next(self._ids))

    def person(self, id: int, name: str = "Ada", *, is_bot: bool = False) -> DiscordPerson:
        return self.people.setdefault(str(id), DiscordPerson(self, str(id), name, is_bot=is_bot))

    def private(self, person: DiscordPerson) -> DiscordRoom:
        for channel in self.channels.values():
            if channel.recipient == person.id:
                return channel
        return self._add(DiscordRoom(self.new_id(), DM, recipient=person.id))

    def channel(self) -> DiscordRoom:
        """Create a channel of the server."""
        return self._add(DiscordRoom(self.new_id(), TEXT, GUILD_ID))

    def thread(
        self, parent: DiscordRoom, owner: str, message: DiscordMessageShown | None = None
    ) -> DiscordRoom:
        """Open a thread. One that begins with a message has its id: topics/threads#threads-from-messages"""
        id = message.id if message else self.new_id()
        thread = self._add(DiscordRoom(id, THREAD, GUILD_ID, parent.id, owner))
        self.on_event("THREAD_CREATE", thread.json() | {"newly_created": True})
        if message is not None:
            # The starter comes again under another id: resources/message#message-object-message-types (21).
            # Discord leaves its text empty. It has one here, so that only its type shows that it is a repeat.
            starter = self.message_json(message) | {"channel_id": parent.id}
            self._push(thread, message.author, message.text, type=21, referenced_message=starter)
        return thread

    def _add(self, channel: DiscordRoom) -> DiscordRoom:
        self.channels[channel.id] = channel
        return channel

    # -- messages -------------------------------------------------------------------------------------------

    def user_json(self, id: str) -> Json:
        if id == BOT_ID:
            return {"id": id, "username": "talaria", "global_name": None, "bot": True, "discriminator": "0"}
        person = self.people[id]
        body = {"id": id, "username": f"user{id}", "global_name": person.name, "discriminator": "0"}
        return body | ({"bot": True} if person.is_bot else {})

    def message_json(self, message: DiscordMessageShown) -> Json:
        mentioned = re.findall(r"<@!?(\d+)>", message.text)
        base: Json = {
            "id": message.id,
            "channel_id": message.channel,
            "author": self.user_json(message.author),
            "content": message.text,
            "timestamp": _EPOCH,
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [self.user_json(id) for id in mentioned if id == BOT_ID or id in self.people],
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": 0,
        }
        return base | message.raw

    def event_json(self, message: DiscordMessageShown) -> Json:
        """A message of the gateway names its server, one of a REST call does not: events/gateway-events."""
        channel = self.channels[message.channel]
        more: Json = {"guild_id": channel.guild, "member": {"roles": []}} if channel.guild else {}
        return self.message_json(message) | more

    def _push(self, channel: DiscordRoom, author: str, text: str, **raw: Any) -> DiscordMessageShown:
        message = DiscordMessageShown(self.new_id(), channel.id, author, text, raw=raw)
        channel.messages[message.id] = message
        self.on_event("MESSAGE_CREATE", self.event_json(message))
        return message

    def post(self, person: DiscordPerson, channel: DiscordRoom, text: str, **raw: Any) -> DiscordMessageShown:
        return self._push(channel, person.id, text, **raw)

    def find(self, channel: str) -> DiscordRoom:
        if (found := self.channels.get(channel)) is None:
            raise DiscordRefusal(404, 10003, "Unknown Channel")
        return found

    def _check(self, body: Json, file: tuple[str, bytes] | None, channel: DiscordRoom) -> Json:
        """resources/message#create-message-jsonform-params"""
        content = body.get("content") or ""
        if not isinstance(content, str) or len(content.encode("utf-16-le", "surrogatepass")) // 2 > 2000:
            raise invalid("content: Must be 2000 or fewer in length.")
        if not content.strip() and file is None and not body.get("components"):
            raise DiscordRefusal(400, 50006, "Cannot send an empty message")
        if file is not None and len(file[1]) > self.max_file:
            raise DiscordRefusal(413, 40005, "Request entity too large")
        nonce = body.get("nonce")
        if nonce is not None and (not isinstance(nonce, str) or len(nonce) > 25):
            raise invalid("nonce: Must be 25 or fewer in length.")
        seen: set[str] = set()
        rows = body.get("components") or []
        if len(rows) > 5:
            raise invalid("components: Must be 5 or fewer in length.")
        buttons = []
        for row in rows:  # components/reference#button
            if row.get("type") != 1 or not 1 <= len(row.get("components", ())) <= 5:
                raise invalid("components: Must be between 1 and 5 in length.")
            for button in row["components"]:
                name, label = button.get("custom_id", ""), button.get("label", "")
                if button.get("type") != 2 or button.get("style") not in (1, 2, 3, 4):
                    raise invalid("components: type and style")
                if not 1 <= len(name) <= 100 or name in seen:
                    raise invalid("components: custom_id must be unique and of 1 to 100 characters.")
                if not 1 <= len(label) <= 80:
                    raise invalid("components: label must be of 1 to 80 characters.")
                seen.add(name)
                buttons.append((label, name))
        if channel.is_forbidden:
            dm = channel.type == DM
            raise (
                DiscordRefusal(403, 50007, "Cannot send messages to this user")
                if dm
                else DiscordRefusal(403, 50013, "Missing Permissions")
            )
        return {"content": content, "buttons": tuple(buttons)}

    def send(self, channel_id: str, body: Json, file: tuple[str, bytes] | None) -> DiscordMessageShown:
        channel = self.find(channel_id)
        read = self._check(body, file, channel)
        reference = body.get("message_reference") or {}
        target = reference.get("message_id", "")
        if target and target not in channel.messages and reference.get("fail_if_not_exists", True):
            raise invalid("message_reference: Unknown message")
        nonce = body.get("nonce")
        if nonce and body.get("enforce_nonce") and (known := self.nonces.get(nonce)) in channel.messages:
            return channel.messages[str(known)]
        message = DiscordMessageShown(
            self.new_id(), channel.id, BOT_ID, read["content"], read["buttons"], reply_to=target, raw={}
        )
        message.raw["components"] = body.get("components") or []
        message.raw["flags"] = body.get("flags", 0)
        if "allowed_mentions" not in body and "@everyone" in read["content"]:
            message.raw["mention_everyone"] = True
        if file is not None:
            message.file_name, message.file = file
        channel.messages[message.id] = message
        if nonce:
            self.nonces[nonce] = message.id
        self.on_event("MESSAGE_CREATE", self.event_json(message))
        return message

    def edit(self, channel_id: str, message_id: str, body: Json) -> DiscordMessageShown:
        channel = self.find(channel_id)
        if (message := channel.messages.get(message_id)) is None:
            raise DiscordRefusal(404, 10008, "Unknown Message")
        if not message.by_bot:
            raise DiscordRefusal(403, 50005, "Cannot edit a message authored by another user")
        read = self._check(body, None, channel)
        message.text = read["content"]
        if "components" in body:
            message.buttons = read["buttons"]
            message.raw["components"] = body["components"] or []
        message.raw["edited_timestamp"] = _EPOCH
        self.on_event("MESSAGE_UPDATE", self.event_json(message))
        return message

    def history(self, channel_id: str, after: str, limit: int) -> list[Json]:
        """Return the newest first: resources/message#get-channel-messages"""
        channel = self.find(channel_id)
        if not 1 <= limit <= 100:
            raise invalid("limit: int value should be between 1 and 100.")
        found = [each for each in channel.messages.values() if int(each.id) > int(after or 0)][:limit]
        return [self.message_json(each) for each in reversed(found)]

    def open_thread(self, channel_id: str, message_id: str, body: Json) -> DiscordRoom:
        """resources/channel#start-thread-from-message"""
        channel = self.find(channel_id)
        if (message := channel.messages.get(message_id)) is None:
            raise DiscordRefusal(404, 10008, "Unknown Message")
        if not 1 <= len(body.get("name", "")) <= 100:
            raise invalid("name: Must be between 1 and 100 in length.")
        if not self.may_open_threads:
            raise DiscordRefusal(403, 50013, "Missing Permissions")
        if message.id in self.channels:
            raise DiscordRefusal(400, 160004, "A thread has already been created for this message")
        return self.thread(channel, BOT_ID, message)

    def set_commands(self, commands: list[Json]) -> None:
        """interactions/application-commands#application-command-object"""
        names = [each.get("name", "") for each in commands]
        if len(commands) > 100:
            raise DiscordRefusal(400, 30032, "Maximum number of application commands reached (100)")
        for each in commands:
            name = each.get("name", "")
            if not _COMMAND_NAME.fullmatch(name) or name != name.lower():
                raise invalid(f"name: {name!r}")
            if not set(each.get("contexts", ())) <= {0, 1, 2}:
                raise invalid("contexts: Value must be one of {0, 1, 2}.")
            for part in (each, *each.get("options", ())):
                if not 1 <= len(part.get("description", "")) <= 100:
                    raise invalid("description: Must be between 1 and 100 in length.")
        if len(set(names)) < len(names):
            raise DiscordRefusal(400, 50035, "Application command names must be unique")
        self.commands = commands

    def answer(self, token: str, body: Json) -> None:
        """interactions/receiving-and-responding#create-interaction-response"""
        if token not in self.interactions:
            raise DiscordRefusal(404, 10062, "Unknown interaction")
        if self.interactions[token] is not None:
            raise DiscordRefusal(400, 40060, "Interaction has already been acknowledged.")
        content = (body.get("data") or {}).get("content", "")
        if body.get("type") not in (4, 5, 6, 7) or len(content) > 2000 or (body["type"] == 4 and not content):
            raise invalid("type")
        self.interactions[token] = body


class DiscordPerson:
    def __init__(self, platform: DiscordPlatform, id: str, name: str, *, is_bot: bool) -> None:
        self._platform = platform
        self.id, self.name, self.is_bot = id, name, is_bot

    def says(
        self,
        text: str,
        channel: DiscordRoom | None = None,
        *,
        reply_to: DiscordMessageShown | None = None,
        file: tuple[str, bytes] | None = None,
        **raw: Any,
    ) -> DiscordMessageShown:
        """Write in a channel, or to the bot in private."""
        platform = self._platform
        if reply_to is not None:
            raw |= {
                "type": 19,
                "message_reference": {"message_id": reply_to.id, "channel_id": reply_to.channel},
                "referenced_message": platform.message_json(reply_to),
            }
        if file is not None:
            id = platform.new_id()
            platform.files[id] = file
            url = f"{platform.file_url}/_files/{id}/{file[0]}"
            kind = {"content_type": "text/plain; charset=utf-8", "size": len(file[1])}
            raw["attachments"] = [{"id": id, "filename": file[0], "url": url, **kind}]
        return platform.post(self, channel or platform.private(self), text, **raw)

    def edits(self, message: DiscordMessageShown, text: str) -> None:
        message.text = text
        message.raw["edited_timestamp"] = f"2026-01-01T00:00:{int(message.id) % 60:02}.{len(text):06}+00:00"
        self._platform.on_event("MESSAGE_UPDATE", self._platform.event_json(message))

    def deletes(self, message: DiscordMessageShown) -> None:
        channel = self._platform.channels[message.channel]
        del channel.messages[message.id]
        body = {"id": message.id, "channel_id": channel.id}
        self._platform.on_event(
            "MESSAGE_DELETE", body | ({"guild_id": channel.guild} if channel.guild else {})
        )

    def purges(self, *messages: DiscordMessageShown) -> None:
        """Delete several messages as a moderator: events/gateway-events#message-delete-bulk"""
        channel = self._platform.channels[messages[0].channel]
        for message in messages:
            del channel.messages[message.id]
        body: Json = {"ids": [message.id for message in messages], "channel_id": channel.id}
        self._platform.on_event("MESSAGE_DELETE_BULK", body | {"guild_id": channel.guild})

    def reacts(self, message: DiscordMessageShown, emoji: str) -> None:
        """Add an emoji to a message: events/gateway-events#message-reaction-add"""
        channel = self._platform.channels[message.channel]
        body: Json = {"user_id": self.id, "channel_id": channel.id, "message_id": message.id}
        body |= {"emoji": {"id": None, "name": emoji}, "burst": False, "type": 0}
        if channel.guild:
            body |= {"guild_id": channel.guild, "member": {"user": self._platform.user_json(self.id)}}
        self._platform.on_event("MESSAGE_REACTION_ADD", body)

    def presses(self, message: DiscordMessageShown, label: str) -> str:
        """Press a button, and return the token of the interaction."""
        custom_id = dict(message.buttons)[label]
        data = {"custom_id": custom_id, "component_type": 2}
        return self._interact(3, message.channel, data, message=self._platform.message_json(message))

    def runs(self, name: str, text: str = "", channel: DiscordRoom | None = None) -> str:
        """Send a slash command, and return the token of the interaction."""
        options = [{"name": "text", "type": 3, "value": text}] if text else []
        place = channel or self._platform.private(self)
        return self._interact(2, place.id, {"name": name, "id": "1", "type": 1, "options": options})

    def _interact(self, type: int, channel_id: str, data: Json, **more: Any) -> str:
        platform, channel = self._platform, self._platform.channels[channel_id]
        id = platform.new_id()
        token = f"interaction-{id}"
        platform.interactions[token] = None
        user = platform.user_json(self.id)
        who: Json = {"user": user}
        if channel.guild:
            who = {"member": {"user": user, "roles": []}, "guild_id": channel.guild}
        body = {"id": id, "token": token, "type": type, "channel_id": channel_id, "data": data, "version": 1}
        platform.on_event("INTERACTION_CREATE", body | who | more)
        return token
