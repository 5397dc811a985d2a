"""People who write to a gateway on the fake Bot API, and what became of each of their messages."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random

import msgspec

from talaria.access.authorizer import ChatKind
from talaria.channels.telegram.parse import ChatTarget, chat_key
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.promises import Asked, Kind, Verdict, judge
from talaria.testing.telegram_platform import Json, ShownMessage
from talaria.testing.telegram_server import TelegramServer
from talaria.workspace.folder import chat_folder

_EFFECTS = "effects.txt"
_END = "END"


class Crowd:
    """Everybody in a private chat. `home` is the gateway's, where the effects of tools are seen."""

    def __init__(self, server: TelegramServer, people: Sequence[int], home: Path) -> None:
        self._server = server
        self._home = home
        self._names = count(1)
        self._updates: deque[Json] = deque(maxlen=50)
        self._update_ids: dict[str, int] = {}
        self._said: dict[int, list[Json]] = {person: [] for person in people}
        self.asked: dict[int, list[Asked]] = {person: [] for person in people}
        for person in people:
            server.platform.private(server.person(person))
            folder = self._folder(person)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _EFFECTS).write_text(_END)

    @property
    def people(self) -> list[int]:
        return list(self.asked)

    def settings_with(self, model: ModelServer) -> dict[str, str]:
        """For a gateway that hears them, asks this model, and may be killed as often as one likes."""
        return {
            "CHANNELS__TELEGRAM__TOKEN": self._server.token,
            "CHANNELS__TELEGRAM__API_URL": self._server.url,
            "CHANNELS__TELEGRAM__ALLOWED": ",".join(map(str, self.people)),
            "MODEL__PROVIDER": "scripted",
            "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
            "SHUTDOWN__RESTART_PAUSE": "1ms",
            "LOG__LEVEL": "warning",
        }

    def send(self, person: int, kind: Kind) -> Asked:
        asked = Asked(f"m{next(self._names)}", kind)
        self._put(person, asked)
        self.asked[person].append(asked)
        self._updates.append(self._server.platform.queue[-1])
        self._update_ids[asked.name] = self._updates[-1]["update_id"]
        return asked

    def repeat(self, random: Random) -> None:
        """The platform hands out once more what the gateway has confirmed before."""
        platform = self._server.platform
        first = platform.queue[0]["update_id"] if platform.queue else self._updates[-1]["update_id"] + 1
        if known := [update for update in self._updates if update["update_id"] < first]:
            platform.repeated.append(random.choice(known))
            self._server.notify()

    def is_taken(self, asked: Asked) -> bool:
        """Whether the gateway has confirmed it to the platform, and so promised an answer."""
        waiting = self._server.platform.queue
        return not waiting or self._update_ids[asked.name] < waiting[0]["update_id"]

    def shown(self, person: int) -> list[ShownMessage]:
        return list(self._server.platform.chats[person].messages.values())

    def verdict(self) -> Verdict:
        return sum((judge(asked, self.shown(person)) for person, asked in self.asked.items()), Verdict())

    def broken_chats(self) -> list[str]:
        """Every chat in which a promise was broken, with all that it shows."""
        return [
            "\n".join([str(verdict), *(f"{'bot' if one.by_bot else 'you'}: {one.text}" for one in shown)])
            for person, asked in self.asked.items()
            if not (verdict := judge(asked, shown := self.shown(person))).is_kept
        ]

    def effects(self) -> Counter[str]:
        """How often the tool call of each message took effect."""
        return Counter(
            line
            for person in self.asked
            for line in (self._folder(person) / _EFFECTS).read_text().splitlines()
            if line != _END
        )

    @property
    def is_all_taken(self) -> bool:
        """Whether the gateway has confirmed every update."""
        return not self._server.platform.queue

    def _put(self, person: int, asked: Asked) -> None:
        sender, name = self._server.person(person), asked.name
        match asked.kind:
            case Kind.TEXT:
                self._said[person].append(sender.says(name))
            case Kind.TOOL:
                call = {"path": _EFFECTS, "old": _END, "new": f"{name}\n{_END}"}
                sender.says(f"[[call edit_file {msgspec.json.encode(call).decode()}]] [[reply did {name}]]")
            case Kind.SLOW:
                sender.says(
                    f"[[chunks 12]][[chunk-delay 0.1]][[reply {name} took its time over a long answer]]"
                )
            case Kind.COMMAND:
                sender.says(f"/title {name}")
            case Kind.STEER:
                sender.says(f"/steer {name}")
            case Kind.STOP:
                sender.says("/stop")
            case Kind.EDIT if self._said[person]:
                sender.edits(self._said[person].pop(), name)
            case Kind.EDIT:
                self._said[person].append(sender.says(name))
            case Kind.BUTTON:
                sender.presses(ShownMessage(1, "choose", by_bot=True, buttons=((name, name),)), name)

    def _folder(self, person: int) -> Path:
        return chat_folder(self._home, chat_key("main", ChatTarget(person), ChatKind.PRIVATE))


async def settled(gateway: GatewayProcess, crowd: Crowd, seconds: float = 60.0) -> int:
    """Until nothing is owed; answers what still is after `seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        owed = (await gateway.call("GET", "/api/status"))["owed"]
        left = int(owed["turns"]) + int(owed["replies"]) + (not crowd.is_all_taken)
        if not left or loop.time() > deadline:
            return left
        await asyncio.sleep(0.05)
