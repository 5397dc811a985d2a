"""Actors for the tests of access: people who are entitled, and every kind of stranger."""

from __future__ import annotations

from talaria.access.authorizer import Actor, ChatKind

LISTED, PAIRED, STRANGE = "1001", "1002", "6666"

GROUP = "-100500"


def private(user_id: str, name: str = "") -> Actor:
    return Actor("telegram", user_id, ChatKind.PRIVATE, user_id, name)


def in_group(user_id: str, name: str = "") -> Actor:
    return Actor("telegram", user_id, ChatKind.GROUP, GROUP, name)


# Nobody here may ever get a turn, whatever they do. Some borrow what belongs to someone who may.
UNENTITLED: dict[str, Actor] = {
    "a stranger in private": private(STRANGE),
    "a stranger in a group of entitled people": in_group(STRANGE),
    "a stranger with an entitled person's name": private(STRANGE, "Ann"),
    "a stranger whose name is an entitled id": private(STRANGE, LISTED),
    "a stranger in a chat whose id is an entitled id": Actor("telegram", STRANGE, ChatKind.GROUP, LISTED),
    "an entitled id of another channel": Actor("discord", LISTED, ChatKind.PRIVATE, LISTED),
    "a paired id of another channel": Actor("discord", PAIRED, ChatKind.PRIVATE, PAIRED),
    "a bot": Actor("telegram", STRANGE, ChatKind.PRIVATE, STRANGE, is_bot=True),
    "a bot in a group": Actor("telegram", STRANGE, ChatKind.GROUP, GROUP, is_bot=True),
    "a bot with a listed id": Actor("telegram", LISTED, ChatKind.PRIVATE, LISTED, is_bot=True),
    "a bot with a paired id": Actor("telegram", PAIRED, ChatKind.GROUP, GROUP, is_bot=True),
    "an anonymous admin": Actor("telegram", "", ChatKind.GROUP, GROUP, speaks_as_chat=True),
    "an anonymous admin who carries a listed id": Actor(
        "telegram", LISTED, ChatKind.GROUP, GROUP, speaks_as_chat=True
    ),
    "a channel as the sender": Actor("telegram", GROUP, ChatKind.GROUP, GROUP, speaks_as_chat=True),
    "a post in a channel": Actor("telegram", "", ChatKind.BROADCAST, GROUP),
    "a post in a channel, signed by a listed id": Actor("telegram", LISTED, ChatKind.BROADCAST, GROUP),
    "nobody": private(""),
    "an id with a space in front": private(f" {LISTED}"),
    "an id with zeroes in front": private(f"000{LISTED}"),
    "an id in other digits": private("١٠٠١"),
    "an id that only begins like a listed one": private(f"{LISTED}0"),
    "an id that no text can hold": private("\ud800"),
    "an id with a line feed behind it": private(f"{LISTED}\n"),
    "an endless id": private(LISTED * 10_000),
}
ENTITLED: dict[str, Actor] = {
    "a listed person in private": private(LISTED),
    "a listed person in a group": in_group(LISTED),
    "a paired person in private": private(PAIRED),
    "a paired person in a group": in_group(PAIRED),
    "a listed person who calls themselves something else": private(LISTED, "\u202eeve\ud800\x1b"),
}
