"""Members of a cluster, their roles, and turns that move from one to another. In SQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol

import msgspec

from talaria.core.cluster import (
    CHANNEL_ROLE,
    Adopted,
    ChatPlace,
    Here,
    LeasedRole,
    Member,
    MemberFigures,
    StopAsked,
    Waiting,
    Wake,
)
from talaria.core.ids import ChatKey, Fence, OwnerId, PlaceId, TurnId
from talaria.core.text import clean_line
from talaria.core.turns import TurnState
from talaria.store.sql import homes, leases, locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import FOR_MEMBER, TURN_COLUMNS, UNSETTLED, encode, find_one, prefixed, turn_from

# -- wake-ups of members ----------------------------------------------------------------------------------


Heard = Callable[[Wake], None]


class WakeLine(Protocol):
    """How wake-ups get to members; see `ClusterStore.wake` and `ClusterStore.listen`."""

    async def wake(self, what: Wake, owner: OwnerId | None) -> None: ...

    def listen(self, owner: OwnerId, heard: Heard) -> AbstractAsyncContextManager[None]: ...


class LocalWakes:
    """Wake-ups within this process, for a database that no other process serves."""

    def __init__(self) -> None:
        self._listeners: list[tuple[OwnerId, Heard]] = []

    async def wake(self, what: Wake, owner: OwnerId | None) -> None:
        loop = asyncio.get_running_loop()
        for listener, heard in self._listeners:
            if owner in (None, listener):
                loop.call_soon(heard, what)

    @asynccontextmanager
    async def listen(self, owner: OwnerId, heard: Heard) -> AsyncIterator[None]:
        entry = (owner, heard)
        self._listeners.append(entry)
        try:
            yield
        finally:
            self._listeners.remove(entry)


# -- members of a cluster, their roles, and turns that move from one to another ---------------------------


# ruff: noqa: S608 (statements are put together from constant column lists only)


_figures = msgspec.json.Decoder(MemberFigures).decode
_texts = msgspec.json.Decoder(tuple[str, ...]).decode

KEPT_SECONDS = 30 * 86_400.0  # a dead member's row
SHOWN_SECONDS = 86_400.0
_MOST_CHANNELS = 20

# -- members ----------------------------------------------------------------------------------------------

MEMBER_COLUMNS = (
    "owner, place, boot, host, url, version, schema, started_at, expires_at, draining, shared_files, figures"
)
FIND_BEFORE = "SELECT owner FROM members WHERE place = ? AND owner <> ? ORDER BY owner"
DROP_MEMBER = "DELETE FROM members WHERE owner = ?"
PUT_MEMBER = f"""
INSERT INTO members ({MEMBER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)
ON CONFLICT (owner) DO UPDATE
SET url = excluded.url, expires_at = excluded.expires_at, draining = 0, figures = excluded.figures
"""
DROP_OLD = f"""
DELETE FROM members WHERE expires_at < ?
AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.member = members.owner AND {FOR_MEMBER})
"""
# Turns of a process before in the same place, and those of a database that was copied or had no cluster.
CLAIM_TURNS = f"""
UPDATE turns SET member = ? WHERE state IN ({UNSETTLED})
AND NOT EXISTS (SELECT 1 FROM members m WHERE m.owner = turns.member)
"""
CLAIM_CHATS = f"""
UPDATE chats SET member = ?
WHERE chat_key IN (SELECT t.chat_key FROM turns t WHERE t.member = ? AND {FOR_MEMBER})
AND NOT EXISTS (SELECT 1 FROM members m WHERE m.owner = chats.member)
"""
# `draining` is 1 for a member that drains, and 2 for one that has left. A renewal can wait in the database
# while its member leaves. Its `now` is earlier than the leave, so comparing times would revive the member.
RENEW_MEMBER = """
UPDATE members SET expires_at = ?, figures = ? WHERE owner = ? AND expires_at > ? AND draining < 2
"""
DRAIN_MEMBER = "UPDATE members SET draining = 1 WHERE owner = ?"
END_MEMBER = """
UPDATE members SET draining = 2, expires_at = CASE WHEN expires_at > ? THEN ? ELSE expires_at END
WHERE owner = ?
"""
END_ROLES = "UPDATE roles SET expires_at = 0 WHERE owner = ?"
FIND_MEMBERS = f"""
SELECT {MEMBER_COLUMNS} FROM members WHERE expires_at > ? ORDER BY started_at, owner
"""
FIND_MEMBER_OF = f"""
SELECT {prefixed("m", MEMBER_COLUMNS)} FROM chats c JOIN members m
ON CASE c.place WHEN '' THEN m.owner = c.member ELSE m.place = c.place END
WHERE c.chat_key = ? AND m.expires_at > ? ORDER BY m.expires_at DESC LIMIT 1
"""

FIND_MEMBER_OF_TURN = f"""
SELECT {prefixed("m", MEMBER_COLUMNS)} FROM turns t JOIN sessions s ON s.id = t.session_id JOIN members m
ON m.owner = CASE WHEN t.state = 'running' AND s.lease_expires > ? THEN s.lease_owner ELSE t.member END
WHERE t.id = ? AND m.expires_at > ?
"""


def member_from(row: Any) -> Member:
    """Return the member of a row. People see its texts, in terminals too, so they are cleaned here."""
    owner, place, boot, *shown, schema, started_at, expires_at, is_draining, is_shared, told = row
    host, url, version = (clean_line(text) for text in shown)
    figures = _figures(told)
    figures = msgspec.structs.replace(
        figures,
        channels=tuple(clean_line(name, 50) for name in figures.channels[:_MOST_CHANNELS]),
        trouble=clean_line(figures.trouble, 300),
    )
    times, flags = (started_at, expires_at), (bool(is_draining), bool(is_shared))
    return Member(owner, place, boot, host, url, version, schema, *times, *flags, figures)


def join(tx: Transaction, member: Member, lease_seconds: float) -> Sequence[Member]:
    """Write the member down, for `lease_seconds`, and return all members that are alive, it too.
    Durable. A member of the same place that was there before is dead: it ends at once."""
    for (dead,) in tx.execute(FIND_BEFORE, (member.place, member.owner)).fetchall():
        leases.bury(tx, dead)
        locks.whole(tx, locks.member(dead))
        tx.execute(END_ROLES, (dead,))
        tx.execute(DROP_MEMBER, (dead,))
    tx.execute(DROP_OLD, (tx.now - KEPT_SECONDS,))
    identity = (member.owner, member.place, member.boot, member.host, member.url, member.version)
    times = (member.schema, member.started_at, tx.now + lease_seconds)
    tx.execute(PUT_MEMBER, (*identity, *times, int(member.has_shared_files), encode(member.figures)))
    tx.execute(CLAIM_TURNS, (member.owner,))
    tx.execute(CLAIM_CHATS, (member.owner, member.owner))
    return members(tx, tx.now)


def renew_member(tx: Transaction, owner: OwnerId, figures: MemberFigures, lease_seconds: float) -> bool:
    """Extend the member's time. Return False, having changed nothing, if it had run out: then others may
    have taken its chats, and it has to `join` again."""
    until = tx.now + lease_seconds
    return tx.execute(RENEW_MEMBER, (until, encode(figures), owner, tx.now)).rowcount == 1


def drain_member(tx: Transaction, owner: OwnerId) -> None:
    """Mark the member as draining: new turns of its chats are for others. Durable."""
    tx.execute(DRAIN_MEMBER, (owner,))


def leave(tx: Transaction, owner: OwnerId) -> None:
    """End the member's time, and its roles: its chats are free at once. Durable."""
    tx.execute(END_MEMBER, (tx.now, tx.now, owner))
    tx.execute(END_ROLES, (owner,))


def members(db: Connection | Transaction, since: float) -> Sequence[Member]:
    """Return the members whose time ended after `since`, or has not ended."""
    return tuple(map(member_from, db.execute(FIND_MEMBERS, (since,))))


def recent_members(db: Connection, now: float) -> Sequence[Member]:
    """Return the members that are alive and those that were lately, the oldest first."""
    return members(db, now - SHOWN_SECONDS)


def member_of(db: Connection, now: float, chat_key: ChatKey) -> Member | None:
    """Return the living member that the chat's turns are for; None if there is none."""
    return find_one(member_from, db.execute(FIND_MEMBER_OF, (chat_key, now)))


def member_of_turn(db: Connection, now: float, turn_id: TurnId) -> Member | None:
    """Return the living member that runs the turn or that it is for; None if there is none."""
    return find_one(member_from, db.execute(FIND_MEMBER_OF_TURN, (now, turn_id, now)))


# -- turns of members -------------------------------------------------------------------------------------

FIND_WAITING = f"""
SELECT {prefixed("t", TURN_COLUMNS)}, t.stop_asked_at,
(SELECT count(*) FROM questions q WHERE q.turn_id = t.id AND q.decided_at IS NOT NULL)
+ (SELECT count(*) FROM delegates d WHERE d.turn_id = t.id AND d.report = 0 AND d.ended_at IS NOT NULL)
FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.member = ? AND {FOR_MEMBER} ORDER BY t.position
"""
# Unsettled turns of members that are dead or leave, with what decides whether they move. A chat that another
# living member has got meanwhile is for that one.
FIND_LEFT = f"""
SELECT t.session_id, {prefixed("t", TURN_COLUMNS)}, t.member, s.lease_expires, s.ephemeral,
       c.member, coalesce(c.place, '')
FROM members m JOIN turns t ON t.member = m.owner AND {FOR_MEMBER}
JOIN sessions s ON s.id = t.session_id LEFT JOIN chats c ON c.chat_key = t.chat_key AND s.ephemeral = 0
LEFT JOIN members h ON h.owner = c.member AND h.owner <> ? AND h.expires_at > ? AND h.draining = 0
WHERE m.owner <> ? AND (m.expires_at <= ? OR m.draining > 0) AND h.owner IS NULL
ORDER BY t.position
"""
FIND_PRESENT_PLACES = "SELECT DISTINCT place FROM members WHERE expires_at > ?"
IS_WORKING = "SELECT 1 FROM members WHERE owner = ? AND expires_at > ? AND draining = 0"
ADOPT_TURN = f"UPDATE turns AS t SET member = ? WHERE t.id = ? AND t.member = ? AND {FOR_MEMBER}"
FIND_ASKED = """
SELECT t.state, t.session_id, t.member, coalesce(m.expires_at, 0), s.lease_owner, s.lease_expires
FROM turns t JOIN sessions s ON s.id = t.session_id LEFT JOIN members m ON m.owner = t.member WHERE t.id = ?
"""


def waiting_here(db: Connection, owner: OwnerId) -> Sequence[Waiting]:
    """Return the unsettled turns of the member's chats, oldest first."""
    rows = db.execute(FIND_WAITING, (owner,))
    return tuple(Waiting(turn_from(row[:-2]), row[-2] is not None, row[-1]) for row in rows)


class LeftTurn(NamedTuple):
    """A turn whose member is dead or leaves, with the member and the place of its chat; `home` is None if it
    has no chat. Turns with the same `group` move together."""

    row: Any
    member: OwnerId
    lease_expires: float
    is_ephemeral: bool
    home: OwnerId | None
    place: PlaceId

    @property
    def chat_key(self) -> ChatKey:
        return ChatKey(self.row[1])

    @property
    def group(self) -> str:
        return str(self.row[2] if self.is_ephemeral else self.row[1])


def left_turns(db: Connection, now: float, here: Here) -> list[list[LeftTurn]]:
    """Return the turns that this member may take over, by their chats."""
    return _movable(db, db.execute(FIND_LEFT, _left(now, here)).fetchall(), now, here)


def _left(now: float, here: Here) -> tuple[Any, ...]:
    return (here.owner, now, here.owner, now)


def _movable(db: Connection | Transaction, rows: list[Any], now: float, here: Here) -> list[list[LeftTurn]]:
    groups: dict[str, list[LeftTurn]] = {}
    for row in rows:
        left = LeftTurn(row[1:-5], *row[-5:])
        groups.setdefault(left.group, []).append(left)
    # The other places that are not gone.
    places = db.execute(FIND_PRESENT_PLACES, (now - here.takeover_seconds,)) if groups else ()
    present = {place for (place,) in places} - {here.place}
    return [
        turns
        for turns in groups.values()
        if all(turn.lease_expires <= now for turn in turns) and turns[0].place not in present
    ]


def adopt(tx: Transaction, here: Here) -> Adopted:
    if tx.execute(IS_WORKING, (here.owner, tx.now)).fetchone() is None:
        return Adopted()
    turns, lost = list[Any](), list[ChatKey]()
    for group in _movable(tx, locks.confirmed(tx, FIND_LEFT, _left(tx.now, here)), tx.now, here):
        first = group[0]
        if first.home is not None:
            place = first.place if first.place == here.place else ""
            loss = None if first.place == place else homes.describe_loss(first.place, tx.now)
            move = (here.owner, place, loss, first.chat_key, first.home, first.place)
            if not tx.execute(homes.MOVE_HOME, move).rowcount:
                continue  # the chat has moved meanwhile
            if loss is not None:
                lost.append(first.chat_key)
        moves = [(turn.row, (here.owner, turn.row[0], turn.member)) for turn in group]
        turns += [row for row, adoption in moves if tx.execute(ADOPT_TURN, adoption).rowcount]
    return Adopted(tuple(map(turn_from, turns)), tuple(lost))


def ask_stop(tx: Transaction, turn_id: TurnId, by: str) -> StopAsked:
    """Note that a person wants the turn stopped. Durable. A turn that is over stays as it is. Raises
    `NotFound`."""
    row = tx.execute(FIND_ASKED, (turn_id,)).fetchone()
    if row is None:
        raise rules.no_turn(turn_id)
    state, _, member, expires, lease_owner, lease_expires = row
    if TurnState(state).is_final:
        return StopAsked(turn_id, OwnerId(""))
    tx.execute(homes.ASK_STOP, (tx.now, by, turn_id))
    if lease_expires > tx.now and state == TurnState.RUNNING.value:
        return StopAsked(turn_id, lease_owner)
    return StopAsked(turn_id, member if expires > tx.now else OwnerId(""))


PLACE_CHAT = "UPDATE chats SET place = ? WHERE chat_key = ? AND place = ''"
FIND_CHAT_PLACE = "SELECT place, lost, processes FROM chats WHERE chat_key = ?"
NOTE_PROCESSES = "UPDATE chats SET processes = ? WHERE chat_key = ? AND place = ?"
FORGET_LOSS = """
UPDATE chats SET lost = '', processes = '' WHERE chat_key = ? AND lost = ?
"""


def place_chat(tx: Transaction, chat_key: ChatKey, place: PlaceId) -> PlaceId:
    """Note that files or processes of the chat are in this place, unless they are in another one already.
    Return where they are; an empty id, having noted nothing, for a chat that is not known yet."""
    tx.execute(PLACE_CHAT, (place, chat_key))
    return homes.find_place(tx, chat_key)


def chat_place(db: Connection, chat_key: ChatKey) -> ChatPlace:
    """Return where the files and processes of a chat are, and what was lost."""
    row = db.execute(FIND_CHAT_PLACE, (chat_key,)).fetchone()
    if row is None:
        return ChatPlace()
    place, lost, processes = row
    return ChatPlace(place, lost, _texts(processes) if processes else ())


def note_processes(tx: Transaction, chat_key: ChatKey, place: PlaceId, processes: Sequence[str]) -> None:
    """Note which background processes the chat has in its place, for the case that the place is lost.
    Changes nothing if the chat is not in this place."""
    text = msgspec.json.encode(tuple(processes)).decode() if processes else ""
    tx.execute(NOTE_PROCESSES, (text, chat_key, place))


def forget_loss(tx: Transaction, chat_key: ChatKey, lost: str) -> None:
    """Note that the log of the chat tells of this loss."""
    tx.execute(FORGET_LOSS, (chat_key, lost))


# -- roles ------------------------------------------------------------------------------------------------

# The fence grows unless the holder renews its role in time.
TAKE_ROLE = """
INSERT INTO roles (name, owner, fence, expires_at) VALUES (?, ?, 1, ?)
ON CONFLICT (name) DO UPDATE
SET owner = excluded.owner, expires_at = excluded.expires_at,
    fence = roles.fence + (CASE WHEN roles.owner = excluded.owner AND roles.expires_at > ? THEN 0 ELSE 1 END)
WHERE roles.owner = excluded.owner OR roles.expires_at <= ?
"""
FIND_ROLE = "SELECT name, owner, fence, expires_at FROM roles WHERE name = ?"
FIND_ROLES = "SELECT name, owner, fence, expires_at FROM roles ORDER BY name"
# The holder before has stopped, and what became of its last messages is not known.
SEND_AGAIN = "UPDATE outbox SET due_at = 0 WHERE state = 'sending' AND channel = ?"
GIVE_ROLE = "UPDATE roles SET expires_at = 0 WHERE name = ? AND owner = ?"


def take_role(tx: Transaction, name: str, owner: OwnerId, lease_seconds: float) -> LeasedRole:
    """Take or renew a role, unless another member has it, and return it as it is then."""
    before = tx.execute(FIND_ROLE, (name,)).fetchone()
    tx.execute(TAKE_ROLE, (name, owner, tx.now + lease_seconds, tx.now, tx.now))
    role = _role_from(tx.execute(FIND_ROLE, (name,)).fetchone())
    if role.owner == owner and before is not None and _role_from(before).fence != role.fence:
        tx.execute(SEND_AGAIN, (name.removeprefix(CHANNEL_ROLE),))
    return role


def give_role(tx: Transaction, name: str, owner: OwnerId) -> None:
    tx.execute(GIVE_ROLE, (name, owner))


def roles(db: Connection) -> Sequence[LeasedRole]:
    return tuple(map(_role_from, db.execute(FIND_ROLES)))


def _role_from(row: Any) -> LeasedRole:
    name, owner, fence, expires_at = row
    return LeasedRole(name, owner, Fence(fence), expires_at)
