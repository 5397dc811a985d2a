"""What was asked in a chat, what the chat shows, and which promises are kept: judged from outside alone.

Every message carries a name of its own (m17), and so does its reply. Telegram takes no nonce, so a reply
whose first try may have arrived comes again with a mark that people can see.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import astuple

from talaria.channels.telegram.outlet import CURSOR, REPEATED
from talaria.testing.telegram_platform import ShownMessage
from talaria.turns.crashes import MAX_CRASHES

_NAME = re.compile(r"\bm\d+\b")
_GIVEN_UP = f"This message was tried {MAX_CRASHES} times"


class Kind(StrEnum):
    TEXT = "text"
    TOOL = "tool"  # appends a line to a file: an effect that can be counted
    SLOW = "slow"  # streams for a second, so that a live message shows it
    COMMAND = "command"
    EDIT = "edit"
    BUTTON = "button"
    STEER = "steer"  # may be answered together with the message that it joins
    STOP = "stop"  # may end one message without a reply


class Asked(msgspec.Struct, frozen=True):
    name: str
    kind: Kind


class Verdict(msgspec.Struct, frozen=True):
    """Of one chat, or of many together. `told`: given up after three crashes, and said so. `resent`: shown
    again with the mark. `previews`: live messages whose id a crash kept from being stored; they still have
    the cursor of an unfinished answer."""

    asked: int = 0
    answered: int = 0
    told: int = 0
    resent: int = 0
    previews: int = 0
    lost: tuple[str, ...] = ()
    unmarked: tuple[str, ...] = ()
    disordered: tuple[str, ...] = ()

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(*map(operator.add, astuple(self), astuple(other)))

    @property
    def is_kept(self) -> bool:
        return not (self.lost or self.unmarked or self.disordered)


def is_preview(text: str) -> bool:
    return text.endswith(CURSOR.strip())


def finals(shown: Iterable[ShownMessage]) -> dict[str, list[ShownMessage]]:
    """The bot's messages that are replies, by the names that they answer; previews are none."""
    found: dict[str, list[ShownMessage]] = {}
    for one in shown:
        if one.by_bot and not is_preview(one.text):
            for name in dict.fromkeys(_NAME.findall(one.text)):
                found.setdefault(name, []).append(one)
    return found


def judge(asked: Sequence[Asked], shown: Sequence[ShownMessage]) -> Verdict:
    """One chat. `asked` is in the order in which it was sent, `shown` as the platform has it now."""
    replies = finals(shown)
    told = _told(shown)
    named = [one for one in asked if one.kind is not Kind.STOP]
    missing = [one.name for one in named if one.name not in replies]
    excused = told + sum(one.kind in (Kind.STOP, Kind.STEER) for one in asked)
    plain = {name: [one for one in found if not _is_marked(one)] for name, found in replies.items()}
    first = {name: found[0].id for name, found in plain.items() if found}
    in_lane = [one.name for one in named if one.kind is not Kind.STEER and one.name in first]
    return Verdict(
        asked=len(named),
        answered=len(named) - len(missing),
        told=told,
        resent=sum(one.by_bot and _is_marked(one) for one in shown),
        previews=sum(one.by_bot and is_preview(one.text) for one in shown),
        lost=tuple(missing[excused:]),
        unmarked=tuple(name for name, found in plain.items() if len(found) > 1),
        disordered=tuple(
            f"{later} before {earlier}"
            for earlier, later in itertools.pairwise(in_lane)
            if first[later] < first[earlier]
        ),
    )


def _told(shown: Iterable[ShownMessage]) -> int:
    """How many messages were given up. A marked one right behind another of these is its second copy: replies
    of a chat go out in order."""
    count, was_told = 0, False
    for one in shown:
        if one.by_bot and not is_preview(one.text):
            is_told = _GIVEN_UP in one.text
            count += is_told and not (was_told and _is_marked(one))
            was_told = is_told
    return count


def _is_marked(one: ShownMessage) -> bool:
    return one.text.startswith(REPEATED)
