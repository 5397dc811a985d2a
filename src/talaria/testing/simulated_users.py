"""Users who write to a gateway on the fake Bot API, and a report on the answers that they got.

The report is made from the outside: from the messages that users sent and those that their chats show. Every
message has a name (m17), which its reply repeats. Telegram takes no nonce, so a reply whose first attempt may
have arrived is sent again with a mark that users can see.
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

import msgspec
from msgspec.structs import astuple

from talaria.access.authorizer import ChatKind
from talaria.channels.telegram.outlet import CURSOR, REPEATED
from talaria.channels.telegram.parse import ChatTarget, chat_key
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
    name: str
    kind: MessageKind


class DeliveryReport(msgspec.Struct, frozen=True):
    """The answers of one chat, or of several together.

    `given_up` messages were reported as such after three crashes. `resent` replies were shown again with the
    mark, `duplicated` ones without it. `previews` are live messages that still have the cursor of an
    unfinished answer, because a crash kept their id from being stored.
    """

    sent: int = 0
    answered: int = 0
    given_up: int = 0
    resent: int = 0
    previews: int = 0
    lost: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    out_of_order: tuple[str, ...] = ()

    def __add__(self, other: DeliveryReport) -> DeliveryReport:
        return DeliveryReport(*map(operator.add, astuple(self), astuple(other)))

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.duplicated or self.out_of_order)


class SimulatedUsers:
    """Users in private chats. `homes` are the homes of all gateways, where tools leave their effects."""

    def __init__(self, server: TelegramServer, people: Sequence[int], *homes: Path) -> None:
        self._server = server
        self._homes = homes
        self._names = count(1)
        self._updates: deque[Json] = deque(maxlen=50)
        self._update_ids: dict[str, int] = {}
        self._texts: dict[int, list[Json]] = {person: [] for person in people}
        self.sent: dict[int, list[SimulatedMessage]] = {person: [] for person in people}
        for person in people:
            server.platform.private(server.person(person))
            for folder in self._folders(person):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / _EFFECTS).write_text(_END)

    @property
    def people(self) -> list[int]:
        return list(self.sent)

    def settings_with(self, model: ModelServer) -> dict[str, str]:
        """Return settings for a gateway that serves these users with this model and may be killed often."""
        return {
            "CHANNELS__TELEGRAM__TOKEN": self._server.token,
            "CHANNELS__TELEGRAM__API_URL": self._server.url,
            "CHANNELS__TELEGRAM__ALLOWED": ",".join(map(str, self.people)),
            "MODEL__PROVIDER": "scripted",
            "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
            "SHUTDOWN__RESTART_PAUSE": "1ms",
            "LOG__LEVEL": "warning",
        }

    def send(self, person: int, kind: MessageKind) -> SimulatedMessage:
        message = SimulatedMessage(f"m{next(self._names)}", kind)
        self._put(person, message)
        self.sent[person].append(message)
        self._updates.append(self._server.platform.queue[-1])
        self._update_ids[message.name] = self._updates[-1]["update_id"]
        return message

    def redeliver(self, random: Random) -> None:
        """Let the platform deliver an update again that the gateway has confirmed."""
        platform = self._server.platform
        first = platform.queue[0]["update_id"] if platform.queue else self._updates[-1]["update_id"] + 1
        if known := [update for update in self._updates if update["update_id"] < first]:
            platform.repeated.append(random.choice(known))
            self._server.notify()

    def is_accepted(self, message: SimulatedMessage) -> bool:
        """Return whether the gateway has confirmed the message, and so has promised an answer."""
        waiting = self._server.platform.queue
        return not waiting or self._update_ids[message.name] < waiting[0]["update_id"]

    @property
    def is_all_accepted(self) -> bool:
        return not self._server.platform.queue

    def shown(self, person: int) -> list[ShownMessage]:
        return list(self._server.platform.chats[person].messages.values())

    def report(self) -> DeliveryReport:
        reports = (check_chat(sent, self.shown(person)) for person, sent in self.sent.items())
        return sum(reports, DeliveryReport())

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

    def _put(self, person: int, message: SimulatedMessage) -> None:
        sender, name = self._server.person(person), message.name
        match message.kind:
            case MessageKind.TEXT:
                self._texts[person].append(sender.says(name))
            case MessageKind.TOOL:
                call = {"path": _EFFECTS, "old": _END, "new": f"{name}\n{_END}"}
                sender.says(f"[[call edit_file {msgspec.json.encode(call).decode()}]] [[reply did {name}]]")
            case MessageKind.SLOW:
                sender.says(
                    f"[[chunks 12]][[chunk-delay 0.1]][[reply {name} took its time over a long answer]]"
                )
            case MessageKind.COMMAND:
                sender.says(f"/title {name}")
            case MessageKind.STEER:
                sender.says(f"/steer {name}")
            case MessageKind.STOP:
                sender.says("/stop")
            case MessageKind.EDIT if self._texts[person]:
                sender.edits(self._texts[person].pop(), name)
            case MessageKind.EDIT:
                self._texts[person].append(sender.says(name))
            case MessageKind.BUTTON:
                sender.presses(ShownMessage(1, "choose", by_bot=True, buttons=((name, name),)), name)

    def _folders(self, person: int) -> list[Path]:
        key = chat_key("main", ChatTarget(person), ChatKind.PRIVATE)
        return [chat_folder(home, key) for home in self._homes]


def check_chat(sent: Sequence[SimulatedMessage], shown: Sequence[ShownMessage]) -> DeliveryReport:
    """Compare the messages of a user, in the order of sending, with all messages that the chat shows now."""
    replies = replies_by_name(shown)
    given_up = _count_given_up(shown)
    named = [one for one in sent if one.kind is not MessageKind.STOP]
    missing = [one.name for one in named if one.name not in replies]
    excused = given_up + sum(one.kind in (MessageKind.STOP, MessageKind.STEER) for one in sent)
    unmarked = {name: [one for one in found if not _is_marked(one)] for name, found in replies.items()}
    first = {name: found[0].id for name, found in unmarked.items() if found}
    in_lane = [one.name for one in named if one.kind is not MessageKind.STEER and one.name in first]
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
