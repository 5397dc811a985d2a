"""People: which identities are one person, whose chat a chat is, and which chats may be seen from it. Pure.

An identity is a channel and the platform's id of a sender, written `CHANNEL:1234` or `http:token:phone`.
Search, memory, jobs and messages to other chats ask here before they show one chat's words in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import msgspec

from talaria.access.settings import PersonSettings
from talaria.core.access import EVERYTHING, OWNER, PersonId, Reach
from talaria.core.ids import EPHEMERAL, ChatAddress, ChatKey, channel_of
from talaria.core.memory import MemoryPlace
from talaria.core.turns import Sender

_CHATS_KEPT: Final = 4096
_HTTP: Final = "http"
_TOKEN: Final = "token"  # noqa: S105 - a kind of chat, and the beginning of a sender's id
_DM: Final = "dm"
_GROUP: Final = "group"
_SHARED: Final = "api"


def is_group(key: ChatKey) -> bool:
    """Return whether several people write in the chat."""
    return ChatAddress.parse(key).kind == _GROUP


class People:
    """The people that a gateway serves.

    The owner is everyone who operates it: the home's token, logins, tokens that operate, the terminal. The
    only id of a channel's `allowed` list is the owner too. `[people.NAME]` joins identities to a person, and
    `[people.owner]` joins them to the owner. `/link` joins identities too. Every other identity is a
    person of its own.
    """

    def __init__(
        self,
        named: Mapping[str, PersonSettings] | None = None,
        allowed: Mapping[str, Iterable[int | str]] | None = None,
    ) -> None:
        self._links: dict[str, str] = {}
        self.change(named or {}, allowed or {})

    def change(self, named: Mapping[str, PersonSettings], allowed: Mapping[str, Iterable[int | str]]) -> None:
        """Replace the settings, `[people]` and the `allowed` list of each channel, from now on."""
        lone = [
            f"{channel}:{ids[0]}" for channel, each in allowed.items() if len(ids := tuple(set(each))) == 1
        ]
        joined = {identity: PersonId(name) for name, person in named.items() for identity in person.ids}
        # A named person who has the only id of a channel is the owner, on every channel.
        owning = {joined[identity] for identity in lone if identity in joined} | {OWNER}
        self._known = dict.fromkeys(lone, OWNER) | {
            identity: OWNER if person in owning else person for identity, person in joined.items()
        }
        self._configured = self._known
        self.join(self._links)

    def join(self, links: Mapping[str, str]) -> None:
        """Replace the identities that `/link` has joined, each with its root: from now on they are the person
        of the root. `[people.NAME]` wins."""
        self._links, known = dict(links), self._configured
        joined = {root: known.get(root, PersonId(root)) for root in self._links.values()}
        joined |= {identity: joined[root] for identity, root in self._links.items()}
        self._known = {**joined, **known}
        self._persons = lru_cache(maxsize=_CHATS_KEPT)(self._of_chat)  # asked for each message

    def is_named(self, identity: str) -> bool:
        """Return whether the settings say whose identity it is, so that `/link` cannot change that."""
        return identity in self._configured

    def of_identity(self, channel: str, user_id: str) -> PersonId:
        identity = f"{channel}:{user_id}"
        return self._known.get(identity, PersonId(identity))

    def of_sender(self, sender: Sender, key: ChatKey) -> PersonId:
        """Return the person who speaks in a chat."""
        return OWNER if sender.is_operator else self.of_identity(channel_of(key), sender.id)

    def of_chat(self, key: ChatKey) -> PersonId | None:
        """Return the person whose private chat it is; None for a group, and for a chat of nobody's. The key
        of a private chat on a platform has the person's id.

        An operator who writes in the chat of another person does not make it the owner's.
        """
        return self._persons(key)

    def _of_chat(self, key: ChatKey) -> PersonId | None:
        address = ChatAddress.parse(key)
        if address.kind == _DM:
            return self.of_identity(address.channel, address.chat)
        if address.channel != _HTTP:
            return None
        if address.kind == _TOKEN or (address.kind == EPHEMERAL and address.thread is not None):
            return self.of_identity(_HTTP, f"{_TOKEN}:{address.chat}")
        return OWNER if address.kind in (_SHARED, EPHEMERAL) else None

    def reach(self, key: ChatKey) -> Reach:
        """Return what may be seen from a chat. In a private chat of the owner: everything. In one of another
        person: the private chats of that person, on all channels. Elsewhere: the chat, with its threads."""
        person = self.of_chat(key)
        address = ChatAddress.parse(key)
        if person is None:
            return Reach((msgspec.structs.replace(address, thread=None).key(),))
        return self.reach_of(person, address.agent)

    def reach_of(self, person: PersonId, agent: str) -> Reach:
        """Return what a person may see of an agent's chats, wherever the person asks alone."""
        if person == OWNER:
            return EVERYTHING
        identities = [identity for identity, each in self._known.items() if each == person]
        found = [address.key() for each in identities or [person] for address in _chats(agent, each)]
        return Reach(tuple(sorted(found)))


def _chats(agent: str, identity: str) -> list[ChatAddress]:
    """Return the private chats of an identity, without their threads."""
    channel, _, user_id = identity.partition(":")
    kind, _, token = user_id.partition(":")
    if channel == _HTTP and kind == _TOKEN:
        return [ChatAddress(agent, _HTTP, _TOKEN, token), ChatAddress(agent, _HTTP, EPHEMERAL, token)]
    return [ChatAddress(agent, channel, _DM, user_id)]


def place_of(people: People, key: ChatKey) -> MemoryPlace:
    """Return the place whose memory a chat uses."""
    person = people.of_chat(key)
    if person is not None:
        return MemoryPlace(unquote(key.split(":", 2)[1]), person)
    address = ChatAddress.parse(key)
    return MemoryPlace(address.agent, chat=f"{address.channel}:{address.kind}:{address.chat}")
