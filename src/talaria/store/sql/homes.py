"""The member of a cluster that a message's turn is for, in SQL. Used by `orders.accept`.

A chat stays with its place while files or processes of it are there, and otherwise with the member that has
an unsettled turn of it or ran one lately. Whoever accepts a message of any other chat takes the chat.
"""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from typing import NamedTuple

from talaria.core.cluster import AbsentPlace, Here
from talaria.core.ids import ChatKey, OwnerId, PlaceId, SessionId, TurnId
from talaria.core.ledger import Accept
from talaria.store.sql import locks
from talaria.store.sql.executor import Transaction

# Statements that find turns by their member name both conditions of the index.
FOR_MEMBER = "t.member <> '' AND (t.state = 'accepted' OR t.state = 'running' OR t.state = 'waiting')"

# Columns of a chat `c` and its current session `s`. The third is NULL if no turn of the chat is unsettled,
# and 1 if all of those wait for people.
HOME_COLUMNS = f"""c.member, c.place,
(SELECT max(CASE t.state WHEN 'waiting' THEN 1 ELSE 2 END) FROM turns t
 WHERE t.member = c.member AND t.chat_key = c.chat_key AND {FOR_MEMBER}),
s.updated_at, s.lease_owner, s.lease_expires"""
FIND_HOME = f"""
SELECT {HOME_COLUMNS} FROM chats c LEFT JOIN sessions s ON s.id = c.session_id WHERE c.chat_key = ?
"""
FIND_MEMBER = "SELECT expires_at, draining FROM members WHERE owner = ?"
FIND_LAST_OF_PLACE = """
SELECT owner, host, expires_at, draining FROM members WHERE place = ? ORDER BY expires_at DESC LIMIT 1
"""
MOVE_HOME = "UPDATE chats SET member = ?, place = ? WHERE chat_key = ? AND member = ? AND place = ?"
# A turn that still runs under a lease stays with its member, and so do the messages that steer it.
MOVE_TURNS = f"""
UPDATE turns AS t SET member = ?
WHERE t.member = ? AND t.chat_key = ? AND {FOR_MEMBER}
AND NOT ((t.state = 'running' OR t.merged_into IS NOT NULL)
         AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.session_id AND s.lease_expires > ?))
"""
FIND_RUNNING = """
SELECT t.id FROM turns t
WHERE t.session_id = ? AND t.member = ? AND t.state = 'running' AND t.merged_into IS NULL AND t.command = ''
"""
IS_QUEUED = """
SELECT 1 FROM turns t
WHERE t.session_id = ? AND t.state = 'accepted' AND t.merged_into IS NULL AND t.command = '' AND t.id <> ?
LIMIT 1
"""
ASK_STOP = """
UPDATE turns SET stop_asked_at = ?, stop_asked_by = ? WHERE id = ? AND stop_asked_at IS NULL
"""

STEER = "steer"
INTERRUPT = "interrupt"


class ChatHome(NamedTuple):
    """The row of a chat, with what says whether its member is needed for it."""

    member: str
    place: str
    owes: int | None
    used_at: float | None
    lease_owner: str | None
    lease_expires: float | None

    @property
    def is_owing(self) -> bool:
        """Turns of the chat wait to run, or run, at its member."""
        return self.owes is not None and self.owes > 1

    def is_needed(self, here: Here, now: float) -> bool:
        """Return whether the chat stays with its member, if that is alive."""
        is_leased = self.lease_owner == self.member and (self.lease_expires or 0.0) > now
        return is_leased or self.owes is not None or (self.used_at or 0.0) > now - here.warm_seconds


class TurnPlace(NamedTuple):
    """The member that a turn is for, and the chat's place from now on."""

    member: OwnerId = OwnerId("")
    place: PlaceId = PlaceId("")
    is_here: bool = True
    is_behind: bool = False
    absent: AbsentPlace | None = None
    lost: PlaceId | None = None


def read(tx: Transaction, chat_key: ChatKey) -> ChatHome | None:
    row = tx.execute(FIND_HOME, (chat_key,)).fetchone()
    return None if row is None else ChatHome(*row)


def find(tx: Transaction, chat_key: ChatKey) -> ChatHome | None:
    """Return the chat's row. If there is none, nobody else makes one before this order ends."""
    home = read(tx, chat_key)
    if home is None and locks.chat(tx, chat_key):
        home = read(tx, chat_key)
    return home


def choose(tx: Transaction, here: Here, chat_key: ChatKey, home: ChatHome | None) -> TurnPlace:
    """Decide which member a turn of this chat is for, and move the chat there."""
    while home is not None:
        chosen = _plan(tx, here, home)
        if (chosen.member, chosen.place) == home[:2]:
            return chosen
        moved = (chosen.member, chosen.place, chat_key, home.member, home.place)
        if tx.execute(MOVE_HOME, moved).rowcount:
            if home.owes is not None and chosen.member != home.member:
                tx.execute(MOVE_TURNS, (chosen.member, home.member, chat_key, tx.now))
            return chosen
        home = read(tx, chat_key)  # another order moved it meanwhile
    return TurnPlace(here.owner)


def _plan(tx: Transaction, here: Here, home: ChatHome) -> TurnPlace:
    if home.place not in ("", here.place):
        return _plan_with_place(tx, here, home)
    place = PlaceId(home.place)
    if home.member not in ("", here.owner):
        row = tx.execute(FIND_MEMBER, (home.member,)).fetchone()
        if row is not None and row[0] > tx.now and not row[1] and home.is_needed(here, tx.now):
            return TurnPlace(OwnerId(home.member), place, is_here=False)
    return TurnPlace(here.owner, place, is_behind=home.is_owing)


def _plan_with_place(tx: Transaction, here: Here, home: ChatHome) -> TurnPlace:
    """The chat's files are in another place."""
    place = PlaceId(home.place)
    row = tx.execute(FIND_LAST_OF_PLACE, (place,)).fetchone()
    if row is None or row[2] + here.takeover_seconds <= tx.now:
        return TurnPlace(here.owner, is_behind=home.is_owing, lost=place)
    owner, host, expires_at, is_draining = row
    if expires_at > tx.now and not is_draining:
        return TurnPlace(OwnerId(owner), place, is_here=False)
    absent = AbsentPlace(place, host, expires_at + here.takeover_seconds)
    return TurnPlace(OwnerId(owner), place, is_here=False, absent=absent)


def join_running(tx: Transaction, order: Accept, session_id: SessionId, member: OwnerId) -> TurnId | None:
    """Do what `order.busy` asks for with the turn that runs at another member. Return the turn that the
    message is to steer."""
    if order.command or order.busy not in (STEER, INTERRUPT):
        return None
    row = tx.execute(FIND_RUNNING, (session_id, member)).fetchone()
    if row is None:
        return None
    if order.busy == INTERRUPT:
        tx.execute(ASK_STOP, (tx.now, order.inbound.sender.id, row[0]))
        return None
    is_queued = not order.passes and tx.execute(IS_QUEUED, (session_id, order.turn_id)).fetchone()
    return None if is_queued else TurnId(row[0])
