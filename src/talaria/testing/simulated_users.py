"""Users who write to a gateway on a fake chat platform, and a report on the answers that they got.

The report is made from the outside: from the messages that users sent and those that their chats show. Every
message has a name (m17), which its reply repeats. Telegram takes no nonce, and Discord forgets it after
minutes, so a reply whose first attempt may have arrived is sent again with a mark that users can see.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
from msgspec.structs import astuple

from talaria.access.authorizer import ChatKind
from talaria.channels.incoming import chat_key
from talaria.channels.live_message import CURSOR, REPEATED
from talaria.channels.reception import CORRECTS
from talaria.core.ids import ChatKey
from talaria.testing.discord_platform import DiscordMessageShown
from talaria.testing.discord_server import DiscordServer
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.telegram_platform import Json, ShownMessage
from talaria.testing.telegram_server import TelegramServer
from talaria.turns.crashes import MAX_CRASHES
from talaria.workspace.folder import chat_folder

_NAME = re.compile(r"\bm\d+\b")
_GIVEN_UP = f"This message was tried {MAX_CRASHES} times"
_EFFECTS = "effects.txt"
_END = "END"
_STRANGER = 99  # a person whom the gateway does not know


class MessageKind(StrEnum):
    TEXT = "text"
    TOOL = "tool"  # appends a line to a file: an effect that can be counted
    SLOW = "slow"  # streams for a second, so that a live message shows it
    COMMAND = "command"
    EDIT = "edit"
    BUTTON = "button"
    STEER = "steer"  # may be answered together with the message that it joins
    STOP = "stop"  # may end one message without a reply


class SimulatedMessage(msgspec.Struct, frozen=True):
    """An edit `replaces` the text of an earlier message, which has no reply of its own if it still waited."""

    name: str
    kind: MessageKind
    replaces: str = ""


class DeliveryReport(msgspec.Struct, frozen=True):
    """The answers of one chat, or of several together.

    `given_up` messages were reported as such after three crashes. `resent` replies were shown again with the
    mark, `duplicated` ones without it. `previews` are live messages that still have the cursor of an
    unfinished answer, because a crash kept their id from being stored. `intruded` are messages of a person
    whom the gateway does not know, and which it answered.
    """

    sent: int = 0
    answered: int = 0
    given_up: int = 0
    resent: int = 0
    previews: int = 0
    lost: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    out_of_order: tuple[str, ...] = ()
    intruded: tuple[str, ...] = ()

    def __add__(self, other: DeliveryReport) -> DeliveryReport:
        return DeliveryReport(*map(operator.add, astuple(self), astuple(other)))

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.duplicated or self.out_of_order or self.intruded)


class PlatformSide(Protocol):
    """The calls that `SimulatedUsers` makes of a fake platform."""

    def settings(self, people: Sequence[int]) -> dict[str, str]:
        """Return the settings of a gateway's channel."""
        ...

    def chat(self, person: int) -> ChatKey: ...

    def say(self, person: int, text: str) -> object:
        """Write in private, and return the message for `edit`."""
        ...

    def edit(self, person: int, message: Any, text: str) -> None: ...

    def press(self, person: int, text: str) -> None:
        """Press a button that means this text."""
        ...

    def redeliver(self, random: Random) -> None:
        """Deliver an event again that the gateway has confirmed."""
        ...

    def shown(self, person: int) -> list[ShownMessage]: ...

    def position(self) -> object:
        """Return the place of the last event among all events."""
        ...

    def is_confirmed(self, position: Any) -> bool | None:
        """Return whether the gateway has confirmed the event at the position; None if the platform does not
        know, because the gateway confirms nothing to it."""
        ...


class TelegramSide:
    def __init__(self, server: TelegramServer) -> None:
        self._server = server
        self._updates: deque[Json] = deque(maxlen=50)

    def settings(self, people: Sequence[int]) -> dict[str, str]:
        return {
            "CHANNELS__TELEGRAM__TOKEN": self._server.token,
            "CHANNELS__TELEGRAM__API_URL": self._server.url,
            "CHANNELS__TELEGRAM__ALLOWED": ",".join(map(str, people)),
        }

    def chat(self, person: int) -> ChatKey:
        self._server.platform.private(self._server.person(person))
        return chat_key("main", "telegram", ChatKind.PRIVATE, str(person))

    def say(self, person: int, text: str) -> object:
        return self._server.person(person).says(text)

    def edit(self, person: int, message: Any, text: str) -> None:
        self._server.person(person).edits(message, text)

    def press(self, person: int, text: str) -> None:
        button = ShownMessage(1, "choose", by_bot=True, buttons=((text, text),))
        self._server.person(person).presses(button, text)

    def redeliver(self, random: Random) -> None:
        platform = self._server.platform
        first = platform.queue[0]["update_id"] if platform.queue else self._updates[-1]["update_id"] + 1
        if known := [update for update in self._updates if update["update_id"] < first]:
            platform.repeated.append(random.choice(known))
            self._server.notify()

    def shown(self, person: int) -> list[ShownMessage]:
        return list(self._server.platform.chats[person].messages.values())

    def position(self) -> object:
        self._updates.append(self._server.platform.queue[-1])
        return self._updates[-1]["update_id"]

    def is_confirmed(self, position: Any) -> bool | None:
        waiting = self._server.platform.queue
        return not waiting or position < waiting[0]["update_id"]


class DiscordSide:
    """Discord keeps the position in the gateway's own store, so no event is known to be confirmed."""

    def __init__(self, server: DiscordServer) -> None:
        self._server = server

    def settings(self, people: Sequence[int]) -> dict[str, str]:
        return {
            "CHANNELS__DISCORD__TOKEN": self._server.token,
            "CHANNELS__DISCORD__API_URL": self._server.url,
            "CHANNELS__DISCORD__ALLOWED": ",".join(map(str, people)),
        }

    def chat(self, person: int) -> ChatKey:
        self._server.platform.private(self._server.person(person))
        return chat_key("main", "discord", ChatKind.PRIVATE, str(person))

    def say(self, person: int, text: str) -> object:
        return self._server.person(person).says(text)

    def edit(self, person: int, message: Any, text: str) -> None:
        self._server.person(person).edits(message, text)

    def press(self, person: int, text: str) -> None:
        sender = self._server.person(person)
        channel = self._server.platform.private(sender)
        channel.messages.setdefault("1", DiscordMessageShown("1", channel.id, sender.id, "choose"))
        channel.messages["1"].buttons = ((text, text),)
        sender.presses(channel.messages["1"], text)

    def redeliver(self, random: Random) -> None:
        """Also forget nonces, as if minutes had passed. Sessions are kept: without one, Discord
        never sends the edits and presses of an outage, and only messages can be fetched."""
        session = self._server.session
        if session is not None and session.socket is not None:
            self._server.repeat(random.randint(1, 10))
        if random.random() < 0.3:
            self._server.platform.nonces.clear()

    def shown(self, person: int) -> list[ShownMessage]:
        channel = self._server.platform.private(self._server.person(person))
        found = channel.messages.values()
        return [ShownMessage(int(each.id), each.text, by_bot=each.by_bot) for each in found]

    def position(self) -> object:
        return None

    def is_confirmed(self, position: Any) -> bool | None:
        return None


class SimulatedUsers:
    """Users in private chats. `homes` are the homes of all gateways, where tools leave their effects."""

    def __init__(
        self, server: TelegramServer | DiscordServer | PlatformSide, people: Sequence[int], *homes: Path
    ) -> None:
        self._side: PlatformSide
        match server:
            case TelegramServer():
                self._side = TelegramSide(server)
            case DiscordServer():
                self._side = DiscordSide(server)
            case _:
                self._side = server
        self._homes = homes
        self._names = count(1)
        self._positions: dict[str, object] = {}
        self._texts: dict[int, list[tuple[str, object]]] = {person: [] for person in people}  # with names
        self.sent: dict[int, list[SimulatedMessage]] = {person: [] for person in people}
        for person in people:
            for folder in self._folders(person):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / _EFFECTS).write_text(_END)

    @property
    def people(self) -> list[int]:
        return list(self.sent)

    def settings_with(self, model: ModelServer) -> dict[str, str]:
        """Return settings for a gateway that serves these users with this model and may be killed often."""
        return {
            **self._side.settings(self.people),
            "MODEL__PROVIDER": "scripted",
            "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
            "SHUTDOWN__RESTART_PAUSE": "1ms",
            "LOG__LEVEL": "warning",
        }

    def send(self, person: int, kind: MessageKind) -> SimulatedMessage:
        message = self._put(person, f"m{next(self._names)}", kind)
        self.sent[person].append(message)
        self._positions[message.name] = self._side.position()
        return message

    def redeliver(self, random: Random) -> None:
        """Let the platform deliver an event again that the gateway has confirmed."""
        self._side.redeliver(random)

    def intrude(self) -> None:
        """Write as a person whom the gateway does not know."""
        self._side.chat(_STRANGER)
        self._side.say(_STRANGER, f"m{next(self._names)}")

    def is_accepted(self, message: SimulatedMessage) -> bool:
        """Return whether the gateway has confirmed the message, and so has promised an answer. Where it
        confirms nothing to the platform, an answered message is accepted."""
        confirmed = self._side.is_confirmed(self._positions[message.name])
        if confirmed is not None:
            return confirmed
        return any(message.name in replies_by_name(self.shown(person)) for person in self.sent)

    @property
    def is_all_accepted(self) -> bool:
        if all(self._side.is_confirmed(position) is not None for position in self._positions.values()):
            return all(map(self._side.is_confirmed, self._positions.values()))
        return not self.report().lost

    def shown(self, person: int) -> list[ShownMessage]:
        return self._side.shown(person)

    def report(self) -> DeliveryReport:
        reports = (check_chat(sent, self.shown(person)) for person, sent in self.sent.items())
        self._side.chat(_STRANGER)
        intruded = tuple(replies_by_name(self.shown(_STRANGER)))
        return sum(reports, DeliveryReport(intruded=intruded))

    def broken_chats(self) -> list[str]:
        """Return the text of every chat with a lost, duplicated or misplaced reply."""
        return [
            "\n".join([str(report), *(f"{'bot' if one.by_bot else 'you'}: {one.text}" for one in shown)])
            for person, sent in self.sent.items()
            if not (report := check_chat(sent, shown := self.shown(person))).is_good
        ]

    def effects(self) -> Counter[str]:
        """Count how often the tool call of each message took effect."""
        return Counter(
            line
            for person in self.sent
            for folder in self._folders(person)
            for line in (folder / _EFFECTS).read_text().splitlines()
            if line != _END
        )

    async def until_settled(self, gateway: GatewayProcess, seconds: float = 60.0) -> int:
        """Wait until the gateway owes nothing. Returns how much it still owes after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            owed = (await gateway.call("GET", "/api/status"))["owed"]
            left = int(owed["turns"]) + int(owed["replies"]) + (not self.is_all_accepted)
            if not left or loop.time() > deadline:
                return left
            await asyncio.sleep(0.05)

    def _put(self, person: int, name: str, kind: MessageKind) -> SimulatedMessage:
        side = self._side
        match kind:
            case MessageKind.TEXT:
                self._texts[person].append((name, side.say(person, name)))
            case MessageKind.TOOL:
                call = {"path": _EFFECTS, "old": _END, "new": f"{name}\n{_END}"}
                call_text = f"[[call edit_file {msgspec.json.encode(call).decode()}]]"
                side.say(person, f"{call_text} [[reply did {name}]]")
            case MessageKind.SLOW:
                took = f"[[reply {name} took its time over a long answer]]"
                side.say(person, f"[[chunks 12]][[chunk-delay 0.1]]{took}")
            case MessageKind.COMMAND:
                side.say(person, f"/title {name}")
            case MessageKind.STEER:
                side.say(person, f"/steer {name}")
            case MessageKind.STOP:
                side.say(person, "/stop")
            case MessageKind.EDIT if self._texts[person]:
                replaced, message = self._texts[person].pop()
                side.edit(person, message, name)
                return SimulatedMessage(name, kind, replaced)
            case MessageKind.EDIT:
                self._texts[person].append((name, side.say(person, name)))
            case MessageKind.BUTTON:
                side.press(person, name)
        return SimulatedMessage(name, kind)

    def _folders(self, person: int) -> list[Path]:
        key = self._side.chat(person)
        return [chat_folder(home, key) for home in self._homes]


def check_chat(sent: Sequence[SimulatedMessage], shown: Sequence[ShownMessage]) -> DeliveryReport:
    """Compare the messages of a user, in the order of sending, with all messages that the chat shows now."""
    replies = replies_by_name(shown)
    given_up = _count_given_up(shown)
    named = [one for one in sent if one.kind is not MessageKind.STOP]
    edits = [one for one in named if one.replaces and one.replaces not in replies and one.name in replies]
    # An edit that came too late is a message of its own, also if the earlier one was stopped.
    amended = {one.replaces: one.name for one in edits if CORRECTS not in replies[one.name][0].text}
    missing = [one.name for one in named if one.name not in replies and one.name not in amended]
    excused = given_up + sum(one.kind in (MessageKind.STOP, MessageKind.STEER) for one in sent)
    unmarked = {name: [one for one in found if not _is_marked(one)] for name, found in replies.items()}
    first = {name: found[0].id for name, found in unmarked.items() if found}
    # An edit of a message that still waited is answered in that one's place.
    placed = [amended.get(one.name, one.name) for one in named if one.name not in amended.values()]
    steered = {one.name for one in named if one.kind is MessageKind.STEER}
    in_lane = [name for name in placed if name in first and name not in steered]
    return DeliveryReport(
        sent=len(named),
        answered=len(named) - len(missing),
        given_up=given_up,
        resent=sum(one.by_bot and _is_marked(one) for one in shown),
        previews=sum(one.by_bot and is_preview(one.text) for one in shown),
        lost=tuple(missing[excused:]),
        duplicated=tuple(name for name, found in unmarked.items() if len(found) > 1),
        out_of_order=tuple(
            f"{later} before {earlier}"
            for earlier, later in itertools.pairwise(in_lane)
            if first[later] < first[earlier]
        ),
    )


def replies_by_name(shown: Iterable[ShownMessage]) -> dict[str, list[ShownMessage]]:
    """Return the bot's replies by the names of the messages that they answer. Previews do not count."""
    found: dict[str, list[ShownMessage]] = {}
    for one in shown:
        if one.by_bot and not is_preview(one.text):
            for name in dict.fromkeys(_NAME.findall(one.text)):
                found.setdefault(name, []).append(one)
    return found


def is_preview(text: str) -> bool:
    return text.endswith(CURSOR.strip())


def _count_given_up(shown: Iterable[ShownMessage]) -> int:
    """Count the messages that were given up. Replies of a chat go out in order, so a marked notice directly
    after another notice is its second copy."""
    total, was_notice = 0, False
    for one in shown:
        if one.by_bot and not is_preview(one.text):
            is_notice = _GIVEN_UP in one.text
            total += is_notice and not (was_notice and _is_marked(one))
            was_notice = is_notice
    return total


def _is_marked(one: ShownMessage) -> bool:
    return one.text.startswith(REPEATED)
