"""The fake Slack as `SimulatedUsers` write on it, by Socket Mode."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from talaria.access.authorizer import ChatKind
from talaria.channels.incoming import chat_key
from talaria.core.ids import ChatKey
from talaria.testing.slack_platform import Json, SlackPerson
from talaria.testing.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer
from talaria.testing.telegram_platform import ShownMessage


class SlackSide:
    """The `PlatformSide` of Slack. Slack drops a press that is not acknowledged, so people write instead."""

    def __init__(self, server: SlackServer) -> None:
        self._server = server
        self._events: deque[tuple[str, Json]] = deque(maxlen=50)

    def settings(self, people: Sequence[int]) -> dict[str, str]:
        return {
            "CHANNELS__SLACK__BOT_TOKEN": BOT_TOKEN,
            "CHANNELS__SLACK__APP_TOKEN": APP_TOKEN,
            "CHANNELS__SLACK__API_URL": self._server.api_url,
            "CHANNELS__SLACK__ALLOWED": ",".join(self._person(person).id for person in people),
        }

    def _person(self, person: int) -> SlackPerson:
        return self._server.person(f"U{person}")

    def chat(self, person: int) -> ChatKey:
        return chat_key("main", "slack", ChatKind.PRIVATE, self._person(person).id)

    def say(self, person: int, text: str) -> Json:
        return self._person(person).says(f"!{text[1:]}" if text.startswith("/") else text)

    def edit(self, person: int, message: Any, text: str) -> None:
        self._person(person).edits(message, text)

    def press(self, person: int, text: str) -> None:
        self.say(person, text)

    def redeliver(self, random: Random) -> None:
        if known := [event for event in self._events if self.is_confirmed(event[1])]:
            self._server.repeat(*random.choice(known))

    def shown(self, person: int) -> list[ShownMessage]:
        found = self._person(person).dm.messages.values()
        return [ShownMessage(number, one.shown, one.by_bot) for number, one in enumerate(found)]

    def position(self) -> Json:
        self._events.append(self._server.platform.log[-1])
        return self._events[-1][1]

    def is_confirmed(self, position: Any) -> bool:
        return all(event.payload is not position for event in self._server.unacknowledged)
