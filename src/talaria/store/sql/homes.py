"""The member of a cluster that a message's turn is for, in SQL. Used by `orders.accept`.

A chat stays with its place while files or processes of it are there, and otherwise with the member that has
an unsettled turn of it or ran one lately. Whoever accepts a message of any other chat takes the chat.
"""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from typing import NamedTuple

from talaria.core.cluster import AbsentPlace, Here
from talaria.core.ids import ChatKey, OwnerId, PlaceId, SessionId, TurnId, asking_chat
from talaria.core.ledger import Accept
from talaria.core.messages import File
from talaria.core.text import clean_line
from talaria.store.sql import locks, rules
from talaria.store.sql.delegates import CAN_BE_JOINED
from talaria.store.sql.executor import Transaction
from talaria.store.sql.rows import FOR_MEMBER

# Columns of a chat `c` and its current session `s`. The third is NULL if no turn of the chat is unsettled,
# and 1 if all of those wait for people.
HOME_COLUMNS = f"""c.member, c.place,
(SELECT max(CASE t.state WHEN 'waiting' THEN 1 ELSE 2 END) FROM turns t
 WHERE t.member = c.member AND t.chat_key = c.chat_key AND {FOR_MEMBER}),
s.updated_at, s.lease_owner, s.lease_expires, c.lost"""
FIND_HOME = f"""
SELECT {HOME_COLUMNS} FROM chats c LEFT JOIN sessions s ON s.id = c.session_id WHERE c.chat_key = ?
"""
FIND_MEMBER = "SELECT expires_at, draining FROM members WHERE owner = ?"
FIND_LAST_OF_PLACE = """
SELECT owner, host, expires_at, draining FROM members WHERE place = ? ORDER BY expires_at DESC LIMIT 1
"""
# `lost` is told to the model by the member that the chat is taken over by.
MOVE_HOME = """
UPDATE chats SET member = ?, place = ?, lost = coalesce(?, lost)
WHERE chat_key = ? AND member = ? AND place = ?
"""
FIND_PLACE = "SELECT place FROM chats WHERE chat_key = ?"
LOSE_PLACE = "UPDATE chats SET place = '', lost = ? WHERE chat_key = ? AND place = ?"
# A turn of the chat under a lease that a dead member left. Nobody can begin it yet.
IS_LEFT_LEASED = f"""
SELECT 1 FROM turns t JOIN sessions s ON s.id = t.session_id
WHERE t.member = ? AND t.chat_key = ? AND {FOR_MEMBER} AND t.state = 'running' AND s.lease_expires > ?
AND NOT EXISTS (SELECT 1 FROM members m WHERE m.owner = t.member AND m.expires_at > ?) LIMIT 1
"""
# A turn that still runs under a lease stays with its member, and so do the messages that steer it.
MOVE_TURNS = f"""
UPDATE turns AS t SET member = ?
WHERE t.member = ? AND t.chat_key = ? AND {FOR_MEMBER}
AND NOT ((t.state = 'running' OR t.merged_into IS NOT NULL)
         AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.session_id AND s.lease_expires > ?))
"""
FIND_RUNNING = f"""
SELECT t.id FROM turns t
WHERE t.session_id = ? AND t.member = ? AND {CAN_BE_JOINED} AND t.merged_into IS NULL AND t.command = ''
"""
IS_QUEUED = """
SELECT 1 FROM turns t
WHERE t.session_id = ? AND t.state = 'accepted' AND t.merged_into IS NULL AND t.command = '' AND t.id <> ?
LIMIT 1
"""
COUNT_WAITING = f"""
SELECT count(*) FROM turns t WHERE t.member = ? AND t.chat_key = ? AND t.state = 'accepted' AND {FOR_MEMBER}
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
    lost: str = ""

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


def brings_files(order: Accept) -> bool:
    """Return whether the message has files that only this place sees."""
    here = order.here
    is_tied = here is not None and not here.has_shared_files
    return is_tied and any(isinstance(part, File) for part in order.inbound.parts)


def describe_loss(place: PlaceId, now: float) -> str:
    """Return the mark of a chat that was taken over from a place. Each loss has a mark of its own."""
    return f"{place} {now:.3f}"


def choose(tx: Transaction, here: Here, order: Accept, home: ChatHome | None) -> TurnPlace:
    """Decide which member a turn of this chat is for, and move the chat there. A job works on the files of
    the chat that asked for it, so it runs where they are."""
    chat_key = order.inbound.chat_key
    asking = asking_chat(chat_key)
    if home is None and asking != chat_key:
        home = ChatHome(here.owner, "", None, None, None, None)  # the row that this order has made
    kept = ""
    while home is not None:
        files = home if asking == chat_key else home._replace(place=find_place(tx, asking))
        chosen = _plan(tx, here, files)
        if chosen.is_here and not chosen.place and brings_files(order):
            chosen = chosen._replace(place=here.place)
        left = (home.member, chat_key, tx.now, tx.now)
        is_moved = (chosen.member, chosen.place) != home[:2]
        if is_moved and home.owes is not None and tx.execute(IS_LEFT_LEASED, left).fetchone():
            # This turn is adopted together with that one. If the chat moved now, this turn would pass it.
            chosen = TurnPlace(OwnerId(home.member), PlaceId(home.place), is_here=False)
        if not chosen.is_here and chosen.member != kept and locks.share(tx, locks.member(chosen.member)):
            # The next process of its place takes its turns over, and must find this one among them.
            kept = chosen.member
            if tx.execute(FIND_MEMBER, (kept,)).fetchone() is None:
                home = read(tx, chat_key)
                continue
        if (chosen.member, chosen.place) == home[:2]:
            return chosen
        loss = None if chosen.lost is None else describe_loss(chosen.lost, tx.now)
        moved = (chosen.member, chosen.place, loss, chat_key, home.member, home.place)
        if tx.execute(MOVE_HOME, moved).rowcount:
            if home.owes is not None and chosen.member != home.member:
                tx.execute(MOVE_TURNS, (chosen.member, home.member, chat_key, tx.now))
            if chosen.lost is not None and asking != chat_key:
                tx.execute(LOSE_PLACE, (loss, asking, chosen.lost))
            return chosen
        home = read(tx, chat_key)  # another order moved it meanwhile
    return TurnPlace(here.owner)


def find_place(tx: Transaction, chat_key: ChatKey) -> PlaceId:
    """Return the place of a chat's files; an empty id if it has none, or is not known yet."""
    row = tx.execute(FIND_PLACE, (chat_key,)).fetchone()
    return PlaceId("" if row is None else row[0])


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
    absent = AbsentPlace(place, clean_line(host), expires_at + here.takeover_seconds)
    return TurnPlace(OwnerId(owner), place, is_here=False, absent=absent)


def check_room(tx: Transaction, order: Accept, member: OwnerId) -> None:
    """Raises `LimitReached` if too many messages of the chat wait at another member."""
    if order.most_waiting:
        ((waiting,),) = tx.execute(COUNT_WAITING, (member, order.inbound.chat_key)).fetchall()
        if waiting >= order.most_waiting:
            raise rules.chat_full(waiting)


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
