"""The types of a cluster: several gateways that serve one database.

A *member* is a gateway process; its id is the owner of its leases. A *place* is the home folder of a gateway,
which outlives its processes: the files and background processes of a chat are in one place.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.ids import ChatKey, Fence, OwnerId, PlaceId, TurnId
from talaria.core.turns import Turn
from talaria.core.units import format_wait


class Here(msgspec.Struct, frozen=True):
    """The member that gives an order, for orders whose result depends on who gives it.

    A chat stays with the member that ran its last turn for `warm_seconds`. A place whose last member was
    seen `takeover_seconds` ago is gone, and others take its chats over. With `has_shared_files` all members
    see the files of chats, so files alone tie no chat to a place.
    """

    owner: OwnerId
    place: PlaceId
    warm_seconds: float = 900.0
    takeover_seconds: float = 600.0
    has_shared_files: bool = False

    @property
    def own_place(self) -> PlaceId:
        """The place whose files of chats nobody else sees; empty if all see them."""
        return PlaceId("") if self.has_shared_files else self.place


class MemberFigures(msgspec.Struct, frozen=True):
    """Figures that a member gives of itself at each renewal, for people who look at the cluster. `files` is
    the id of its folder of `store.files`."""

    turns: int = 0
    agents: int = 0
    rss_bytes: int = 0
    turns_total: int = 0
    channels: tuple[str, ...] = ()
    trouble: str = ""
    files: str = ""


class Member(msgspec.Struct, frozen=True):
    """A gateway of the cluster. `boot` is the id of its machine's boot, the same for all processes of one
    machine. `url` is how other members reach it. `has_shared_files`: `store.files` names a folder."""

    owner: OwnerId
    place: PlaceId
    boot: str
    host: str
    url: str
    version: str
    schema: int
    started_at: float
    expires_at: float = 0.0
    is_draining: bool = False
    has_shared_files: bool = False
    figures: MemberFigures = MemberFigures()

    def is_alive(self, now: float) -> bool:
        return self.expires_at > now


class Wake(StrEnum):
    """Things that a member is asked to look at. A wake-up may be lost: all are looked at each second too."""

    TURNS = "turns"
    OUTBOX = "outbox"
    JOBS = "jobs"
    MEMBERS = "members"


class AbsentPlace(msgspec.Struct, frozen=True):
    """A place without a living member that a chat waits for, because its files and processes are there.

    `host` is the machine of its last member. At `until` the place is gone and others take the chat over.
    """

    place: PlaceId
    host: str
    until: float

    def sentence(self, now: float) -> str:
        """Return what a person is told whose message waits."""
        return (
            f"The files of this chat are on {self.host}, whose gateway is away. The message is kept: if that "
            f"gateway is not back in {format_wait(self.until - now)}, another one answers without them."
        )


class ChatPlace(msgspec.Struct, frozen=True):
    """The place of a chat's files and processes, empty if it has none.

    `lost` names the place that the chat was taken over from, and when, as long as its log does not tell of
    it. `processes` describes the background processes there.
    """

    place: PlaceId = PlaceId("")
    lost: str = ""
    processes: tuple[str, ...] = ()


class Waiting(msgspec.Struct, frozen=True):
    """An unsettled turn that is for a member. `stop_asked`: a person wants it stopped. `decided`: how many of
    its questions are decided."""

    turn: Turn
    stop_asked: bool = False
    decided: int = 0


class Adopted(msgspec.Struct, frozen=True):
    """The unsettled turns of chats that a member took over, oldest first, and the chats among them whose
    files and processes were in a place that is gone."""

    turns: tuple[Turn, ...] = ()
    lost: tuple[ChatKey, ...] = ()


CHANNEL_ROLE = "channel:"
"""The name of a channel behind this is the role of its only consumer and sender."""


class LeasedRole(msgspec.Struct, frozen=True):
    """A leased role, such as the one consumer of a channel. It has a fence that only grows."""

    name: str
    owner: OwnerId
    fence: Fence
    expires_at: float


class StopAsked(msgspec.Struct, frozen=True):
    """Where a turn is that a person wants stopped; `owner` is empty if no member has it."""

    turn_id: TurnId
    owner: OwnerId
