"""The truth table of who is the same person, and of what may be seen from where."""

from __future__ import annotations

import pytest

from talaria.access.people import People
from talaria.access.settings import PersonSettings
from talaria.core.access import EVERYTHING, OWNER, Reach
from talaria.core.ids import ChatKey
from talaria.core.turns import Sender

PAGE = "agent:main:http:api:web"
LONE = "agent:main:telegram:dm:1"
ANNA, ANNA_TOKEN = "agent:main:telegram:dm:2", "agent:main:http:token:anna:notes"
ANNA_CALL = "agent:main:http:ephemeral:anna:ses_1"
BEN = "agent:main:telegram:dm:3"
MINE = "agent:main:telegram:dm:4"
GROUP, TOPIC = "agent:main:telegram:group:-5", "agent:main:telegram:group:-5:7"
OTHER_GROUP = "agent:main:telegram:group:-55"
NOBODY = "agent:main:hooks:hook:deploys"
CHATS = [PAGE, LONE, ANNA, f"{ANNA}:9", ANNA_TOKEN, ANNA_CALL, BEN, MINE, GROUP, TOPIC, OTHER_GROUP, NOBODY]
ANNAS = {ANNA, f"{ANNA}:9", ANNA_TOKEN, ANNA_CALL}

PEOPLE = People(
    {
        "anna": PersonSettings(("telegram:2", "http:token:anna")),
        "owner": PersonSettings(("telegram:4",)),
    },
    {"telegram": [1]},
)


@pytest.mark.parametrize(
    ("chat", "person", "seen"),
    [
        (PAGE, OWNER, set(CHATS)),
        ("agent:main:http:ephemeral:ses_2", OWNER, set(CHATS)),
        (LONE, OWNER, set(CHATS)),
        (MINE, OWNER, set(CHATS)),
        (ANNA, "anna", ANNAS),
        (ANNA_TOKEN, "anna", ANNAS),
        (ANNA_CALL, "anna", ANNAS),
        (BEN, "telegram:3", {BEN}),
        (GROUP, None, {GROUP, TOPIC}),
        (TOPIC, None, {GROUP, TOPIC}),
        (OTHER_GROUP, None, {OTHER_GROUP}),
        (NOBODY, None, {NOBODY}),
    ],
)
def test_what_may_be_seen_from_a_chat(chat: ChatKey, person: str | None, seen: set[str]) -> None:
    assert PEOPLE.of_chat(chat) == person
    reach = PEOPLE.reach(chat)
    assert {key for key in CHATS if reach.includes(ChatKey(key))} == seen


@pytest.mark.parametrize(
    ("sender", "chat", "person"),
    [
        (Sender("api", is_operator=True), PAGE, OWNER),
        (Sender("token:ops", is_operator=True), ANNA, OWNER),
        (Sender("1"), LONE, OWNER),
        (Sender("1"), GROUP, OWNER),
        (Sender("2"), GROUP, "anna"),
        (Sender("3"), GROUP, "telegram:3"),
        (Sender("token:anna"), ANNA_TOKEN, "anna"),
        (Sender("token:ben"), "agent:main:http:token:ben:x", "http:token:ben"),
    ],
)
def test_who_speaks(sender: Sender, chat: ChatKey, person: str) -> None:
    assert PEOPLE.of_sender(sender, chat) == person


def test_several_allowed_people_are_people_of_their_own() -> None:
    people = People({}, {"telegram": [1, 2], "signal": []})
    assert people.of_identity("telegram", "1") == "telegram:1"
    assert people.reach(ChatKey(LONE)) == Reach((ChatKey(LONE),))


def test_a_named_person_with_the_only_allowed_id_is_the_owner_everywhere() -> None:
    people = People({"me": PersonSettings(("telegram:1", "signal:a"))}, {"telegram": (1,)})
    assert people.of_identity("signal", "a") == OWNER
    assert people.reach(ChatKey("agent:main:signal:dm:a")) == EVERYTHING


def test_a_change_of_the_settings_counts_at_once() -> None:
    people = People({}, {"telegram": [1]})
    people.change({}, {"telegram": [1, 3]})
    assert people.of_identity("telegram", "1") == "telegram:1"


def test_an_id_that_begins_like_another_is_another_person() -> None:
    assert not PEOPLE.reach(ChatKey(BEN)).includes(ChatKey("agent:main:telegram:dm:33"))
