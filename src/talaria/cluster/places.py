"""The place of a gateway: its id, the chats whose files are there, and the leash of its commands."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from talaria.cluster.member_checks import describe
from talaria.core.clock import HELD_SHARE, Clock
from talaria.core.cluster import ChatPlace, Here, Member
from talaria.core.errors import ConfigError, StoreError, ToolError
from talaria.core.ids import ChatKey, OwnerId, PlaceId, asking_chat
from talaria.core.limits import BoundedDict
from talaria.core.whole_files import replace_file
from talaria.store.store import ClusterStore

PLACE_FILE = "place"


def find_place(home: Path) -> PlaceId:
    """Return the id of the home, which is made at the first call. The caller holds the home's lock. Raises
    `OSError`.

    The file names the folder by its inode, so that a copy of a home becomes a place of its own.
    """
    path, inode = home / PLACE_FILE, str(os.stat(home).st_ino)  # noqa: PTH116 - follows a link, as it should
    with suppress(OSError, UnicodeDecodeError, ValueError):
        place, of = path.read_text(encoding="utf-8").split()
        if of == inode:
            return PlaceId(place)
    place = f"plc_{secrets.token_hex(12)}"
    replace_file(path, f"{place} {inode}\n".encode())
    return PlaceId(place)


# -- the check that no gateway on another machine has the same home, which would be a copy of it ----------


_log = logging.getLogger("talaria.cluster")
_LOOKS = 6  # in the time of a lease


async def refuse_copied_home(
    store: ClusterStore, clock: Clock, me: Member, home: Path, lease_seconds: float
) -> None:
    """Return when no other machine has a living member of this member's place. `clock` tells the database's
    time.

    The home's lock keeps a second gateway of this machine away, but an image of a disk has the same place on
    each machine. Two members of one place would end each other again and again. A member that does not renew
    its time died with its machine, so the home may have moved here. Raises `ConfigError` if one does.
    """
    seen = dict[OwnerId, float]()
    while rivals := _find_rivals(await store.members(), me, clock.now()):
        if not seen:
            _log.info("%s had this home and may be alive: waiting for its time to end", describe(rivals[0]))
        for rival in rivals:
            if rival.expires_at > seen.setdefault(rival.owner, rival.expires_at):
                raise ConfigError(
                    f"{describe(rival)} serves the same database from the same home on another machine: one "
                    "of the two homes is a copy of the other.",
                    f"Delete {home / PLACE_FILE} if the home here is the copy. It counts as a place of its "
                    "own then, and chats with files stay with the other gateway.",
                )
        await clock.sleep(lease_seconds / _LOOKS)


def _find_rivals(members: Sequence[Member], me: Member, now: float) -> list[Member]:
    return [
        member
        for member in members
        if member.place == me.place and _machine(member) != _machine(me) and member.is_alive(now)
    ]


def _machine(member: Member) -> str:
    """Return the boot of a member's machine, without its network: containers of a machine share a lock."""
    return member.boot.partition("/")[0]


# -- the leash of a place ---------------------------------------------------------------------------------
# Others take the chats of a member over when it could not renew its time, and the files and processes of
# its place after a longer one. By then its own commands must have ended, even if this process is stopped,
# held or dead. So the moments are in a file of the home, which the keepers of commands and processes read
# by themselves: two numbers of 8 bytes, in nanoseconds since the boot, the first for commands, the second
# for background processes. Without the file there is no cluster, and no limit.


LEASH_FILE: Final = "leash"
_PROCESSES_SHARE: Final = 0.9  # of the time after which a place is gone; the rest is for ending them


class Leash:
    """The file, written by the member of the place. `extend` may be called in any thread."""

    def __init__(self, home: Path, lease_seconds: float, takeover_seconds: float) -> None:
        """Raises `OSError`."""
        self.path = home / LEASH_FILE
        self._commands = lease_seconds * HELD_SHARE
        self._processes = takeover_seconds * _PROCESSES_SHARE
        self._lock = Lock()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def now(self) -> float:
        """Return the time since the boot, to be taken before a renewal is asked for."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def extend(self, began: float) -> None:
        """The member's time was renewed, by a request that began then."""
        self._write(began + self._commands, began + self._commands + self._processes)

    def shorten(self, began: float) -> None:
        """The member leaves, by a request that begins then: the place may be gone earlier by a lease."""
        self._write(began, began + self._processes)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            os.close(self._file)
            self._file = -1

    def _write(self, *moments: float) -> None:
        numbers = b"".join(round(each * 1e9).to_bytes(8, "little") for each in moments)
        with self._lock:
            if self._file >= 0:
                os.pwrite(self._file, numbers, 0)  # once, so that a reader sees both numbers or neither


def remove_leash(home: Path) -> None:
    """Let the processes of a home run without a limit, since its gateway is in no cluster any more."""
    (home / LEASH_FILE).unlink(missing_ok=True)


# -- the places of chats as this member knows them: which have files here, and which have lost some -------


_KEPT = 20_000  # chats that are remembered


class ChatPlaces:
    """Remembers the places of chats, so that the database is asked once for each chat.

    It stays right as long as this process is a member: others take a chat from its place only when the place
    is gone. So `forget` is to be called when this process was out of the cluster.
    """

    def __init__(self, store: ClusterStore, here: Here) -> None:
        self._store = store
        self.here = here
        self._claimed: BoundedDict[ChatKey, None] = BoundedDict(_KEPT)
        self._whole: BoundedDict[ChatKey, None] = BoundedDict(_KEPT)  # chats that have lost nothing

    async def claim(self, chat_key: ChatKey, *, is_tied: bool = False) -> None:
        """Note that files of a chat are in this place, before there are any. Files in a folder that all
        members see tie no chat, unless it `is_tied` by something else, such as a background process.

        Raises `ToolError` if they are in another place, or if that cannot be found out.
        """
        key = asking_chat(chat_key)
        if key in self._claimed or (self.here.has_shared_files and not is_tied):
            return
        try:
            place = await self._store.place_chat(key, self.here.place)
        except StoreError as error:
            text = f"It cannot be noted now that files of this chat are on this machine: {error.user_text}"
            raise ToolError(text, "Try again in a moment.") from error
        if place and place != self.here.place:
            raise ToolError(
                "The files of this chat are on another machine, whose gateway has to answer.",
                "Try again in a moment, or when that gateway is back.",
            )
        if place:
            self._claimed[key] = None

    def note_accepted(self, chat_key: ChatKey, *, has_loss: bool) -> None:
        """The order that accepted a message of the chat has looked whether the chat lost something."""
        if has_loss:
            self._whole.pop(chat_key, None)
        else:
            self._whole[chat_key] = None

    async def find_loss(self, chat_key: ChatKey) -> ChatPlace | None:
        """Return what the chat has lost and its log does not tell yet. Raises `StoreError`."""
        if chat_key in self._whole:
            return None
        found = await self._store.chat_place(chat_key)
        if not found.lost:
            self._whole[chat_key] = None
        return found if found.lost else None

    async def forget_loss(self, chat_key: ChatKey, lost: str) -> None:
        """The log of the chat tells of the loss. Raises `StoreError`."""
        await self._store.forget_loss(chat_key, lost)
        self._whole[chat_key] = None

    def note_lost(self, chat_key: ChatKey) -> None:
        """This member has taken the chat over from a place that is gone."""
        self._whole.pop(chat_key, None)
        self._claimed.pop(asking_chat(chat_key), None)

    def forget(self) -> None:
        self._claimed.clear()
        self._whole.clear()
