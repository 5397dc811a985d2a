"""Chats whose files and processes are in places: what a model is told of a lost place, and processes that the
cluster takes away.

When a place is gone, another member takes its chats over (`store.sql.homes`). The chat's row then says that
something was lost, until the log of the chat has the note. So a kill at any point neither loses the note nor
tells it twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from talaria.agent.warm import WarmAgent
from talaria.cluster.chat_places import ChatPlaces
from talaria.cluster.membership import Membership
from talaria.core.background import ProcessInfo, ProcessState
from talaria.core.clock import Clock
from talaria.core.cluster import ChatPlace
from talaria.core.entries import Note
from talaria.core.errors import StoreError
from talaria.core.ids import ChatKey, asking_chat
from talaria.core.sessions import Session
from talaria.core.tasks import run_loops, sleep_until_woken
from talaria.core.text import clean_line, list_some
from talaria.core.turns import Turn
from talaria.store.store import ClusterStore, Store
from talaria.turns.process_notes import ProcessNotes
from talaria.turns.settings import TurnSettings
from talaria.workspace.processes import BackgroundProcesses
from talaria.workspace.workspaces import ChatWorkspaces

_log = logging.getLogger("talaria.turns")
_SHOWN = 80  # characters of a command
_NAMED = 20  # processes
_LOOK_SECONDS = 5.0


def describe_loss(loss: ChatPlace, *, has_shared_files: bool, has_files: bool) -> str:
    """Return what the model is told of a place that is gone. `has_files`: the chat's folder here has some."""
    count = len(loss.processes)
    noun = "background process" if count == 1 else "background processes"
    named = list_some(loss.processes, _NAMED)
    processes = f"{count} {noun}: {named}" if count else "background processes, if there were any"
    if has_shared_files:
        lost, files = f"temporary files, and {processes}", "The files of the chat's folder are all here."
    else:
        lost = f"the files of the chat's folder, the state of the shell, and {processes}"
        files = "The folder is empty now."
        if has_files:
            files = "The folder here has older files, from a time when this chat was here before."
    return (
        "the machine that this conversation worked on is gone, and another one has taken it over. Lost are: "
        f"{lost}. {files} Look before you rely on anything that was made earlier, and tell the person what "
        "is lost if it matters."
    )


@asynccontextmanager
async def keep_places(
    cluster: Membership, store: Store, workspaces: ChatWorkspaces, notes: ProcessNotes
) -> AsyncIterator[LossNotes]:
    """Tie chats to this place, watch its processes, and yield the notes of what was lost elsewhere."""
    chats = cluster.chats
    watch = ProcessWatch(chats, store, cluster.store, workspaces.processes, notes.clock)
    notes.is_gone = watch.is_gone
    workspaces.use_places(chats)
    async with run_loops(notes.clock, {"places": watch.run}):
        yield LossNotes(chats, store, workspaces.folders, notes.settings, notes.clock)


class LossNotes(msgspec.Struct, eq=False):
    """The notes of chats that this member took over from a place that is gone. A `NoteSource`."""

    _places: ChatPlaces
    _store: Store
    _folder_of: Callable[[ChatKey], Path]
    _settings: TurnSettings
    _clock: Clock

    async def waiting(self, turn: Turn, agent: WarmAgent, *, is_first: bool) -> list[Note]:
        chat_key = turn.chat_key
        try:
            if (loss := await self._places.find_loss(chat_key)) is None:
                return []
            key = note_key(loss.lost)
            if any(note.key == key for note in await self._store.notes(turn.session_id)):
                await self._places.forget_loss(chat_key, loss.lost)  # a kill came right behind the note
                return []
        except StoreError as error:
            _log.warning("whether %s has lost files is looked at later: %s", chat_key, error)
            return []
        has_files = await asyncio.to_thread(_has_files, self._folder_of(chat_key))
        shared = self._places.here.has_shared_files
        text = describe_loss(loss, has_shared_files=shared, has_files=has_files)
        return [Note(key, f"[Note: {text}]", self._settings.stamp(self._clock.now()))]

    async def told(self, turn: Turn, notes: Sequence[Note]) -> None:
        for note in notes:
            if note.key.startswith(note_key("")):
                try:
                    await self._places.forget_loss(turn.chat_key, note.key.removeprefix(note_key("")))
                except StoreError as error:
                    _log.warning("the log of %s has the note of its loss already: %s", turn.chat_key, error)


def note_key(lost: str) -> str:
    return f"lost:{lost}"


def _has_files(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except OSError:
        return False


class ProcessWatch(msgspec.Struct, eq=False):
    """Compares the background processes of this place with the rows of their sessions and chats.

    Another member may have ended a session, or taken its chat over: then its processes here end. The chat's
    row gets the names of those that run, for the note of a loss.
    """

    _places: ChatPlaces
    _store: Store
    _cluster: ClusterStore
    _processes: BackgroundProcesses
    _clock: Clock
    _noted: dict[ChatKey, tuple[str, ...]] = {}
    _woken: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._processes.watchers.append(self._woken.set)

    async def run(self) -> None:
        """Look every few seconds, and when a process begins or ends, until cancelled."""
        while True:
            self._woken.clear()
            try:
                await self.look()
            except StoreError as error:
                _log.debug("the processes were not compared with their chats: %s", error)
            await sleep_until_woken(self._clock, _LOOK_SECONDS, self._woken)

    async def look(self) -> None:
        running: dict[ChatKey, list[str]] = {key: [] for key in self._noted}
        for session_id in {process.record.session_id for process in self._processes}:
            session = await self._store.session(session_id)
            if session is None or session.ended_at is not None or await self.is_gone(session):
                _log.info("the processes of %s end: it ended, or is elsewhere now", session_id)
                await self._processes.end(session_id)
                continue
            infos = [each.info() for each in self._processes.of_session(session_id)]
            shown = [_describe(info) for info in infos if info.state is ProcessState.RUNNING]
            running.setdefault(asking_chat(session.chat_key), []).extend(shown)
        for key, shown in running.items():
            if self._noted.get(key, ()) != (names := tuple(shown)):
                await self._cluster.note_processes(key, self._places.here.place, names)
                self._noted[key] = names
            if not names:
                self._noted.pop(key, None)

    async def is_gone(self, session: Session) -> bool:
        """Return whether the chat's files and processes are in another place now, or were taken from this
        one. Processes from before there was a cluster stay here. Raises `StoreError`."""
        key, here = asking_chat(session.chat_key), self._places.here.place
        place = (await self._cluster.chat_place(key)).place
        is_running = any(not each.gone.is_set() for each in self._processes.of_session(session.id))
        if not place and is_running:
            place = await self._cluster.place_chat(key, here)
        return place != here


def _describe(info: ProcessInfo) -> str:
    return f"{info.id} ({clean_line(info.command, _SHOWN)})"
