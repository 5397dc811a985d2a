"""Notes for sessions: background processes that ended, and files that a lost gateway had."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from talaria.agent.warm import WarmAgent
from talaria.cluster.membership import Membership
from talaria.cluster.places import ChatPlaces
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.cluster import ChatPlace
from talaria.core.entries import WAKING, Note
from talaria.core.errors import IdempotencyConflict, NotFound, StoreError, TalariaError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey, SessionId, asking_chat
from talaria.core.messages import Text
from talaria.core.problems import Action, Do
from talaria.core.sessions import Session
from talaria.core.shells import ProcessInfo, ProcessState
from talaria.core.tasks import Tasks, run_loops, sleep_until_woken, stop
from talaria.core.text import clean_line, list_some
from talaria.core.turns import Inbound, Turn
from talaria.store.store import ClusterStore, Store
from talaria.turns.intake import Draining
from talaria.turns.settings import TurnSettings
from talaria.workspace.processes import BackgroundProcesses
from talaria.workspace.watched_process import WatchedProcess
from talaria.workspace.workspaces import ChatWorkspaces

_log = logging.getLogger("talaria.turns")
_SHOWN = 200  # characters of a command
_RECENT = 20
_TRY_AGAIN = Backoff(0.5, 60.0)


def note_key(process_id: str) -> str:
    return f"process:{process_id}"


def describe_process(process: WatchedProcess, *, with_command: bool = True) -> str:
    """Return what the model reads about the end of a process."""
    info = process.info()
    command = f" ({clean_line(info.command, _SHOWN)})" if with_command else ""
    head = f"background process {info.id}{command}"
    hint = f"`process` with action poll and id {info.id} shows what it printed."
    if info.state is ProcessState.LOST:
        return f"{head} is lost. {info.why} {hint}"
    if info.why:
        return f"{head} was not run: {clean_line(info.why, _SHOWN)}. {hint}"
    if process.end is not None and process.end.is_cut_off:
        head = f"{head} was ended, because this machine was cut off from the database for too long. It"
    seconds = max(0.0, (info.ended_at or info.started_at) - info.started_at)
    return f"{head} ended with exit code {info.code} after {seconds:.0f} s. {hint}"


class ProcessNotes(msgspec.Struct, eq=False):
    """Tells sessions of their processes' ends. A `NoteSource`.

    A note joins the turn that runs before its next model call; without a turn it waits for the next one. If
    the model asked to be woken, the news is a message of its own, which joins a running turn or starts one.
    """

    _store: Store
    processes: BackgroundProcesses
    settings: TurnSettings
    clock: Clock
    _wake: Callable[[Inbound, SessionId], Awaitable[object]] | None = None
    _tasks: Tasks = msgspec.field(default_factory=Tasks)
    is_open: bool = False
    is_gone: Callable[[Session], Awaitable[bool]] | None = None

    def __post_init__(self) -> None:
        self.processes.on_end = self._note_end

    async def open(self, wake: Callable[[Inbound, SessionId], Awaitable[object]]) -> None:
        """Find the processes of earlier gateways again, and end those whose sessions have ended meanwhile, or
        whose chats are in another place now.

        `wake` accepts messages. To be called before turns run.
        """
        self._wake = wake
        for session_id in await self.processes.recover():
            session = await self._store.session(session_id)
            is_over = session is None or session.ended_at is not None
            if session is None or is_over or (self.is_gone and await self.is_gone(session)):
                await self.processes.end(session_id)
                continue
            untold = [each for each in self.processes.of_session(session_id) if not each.is_told]
            if untold:
                await self._compare(session_id, untold)
        for process in self.processes:
            if process.gone.is_set() and not process.is_told:
                self._note_end(process)
        self.is_open = True

    async def close(self) -> None:
        """Stop waking sessions. The next gateway goes on with it."""
        self._wake = None
        await stop(*self._tasks)

    async def _compare(self, session_id: SessionId, untold: Sequence[WatchedProcess]) -> None:
        """Mark those that the log tells of: an earlier gateway died right after that."""
        known = {note.key for note in await self._store.notes(session_id)}
        for process in untold:
            if note_key(process.record.id) in known:
                await self.processes.mark_told(process)

    async def waiting(self, turn: Turn, agent: WarmAgent, *, is_first: bool) -> list[Note]:
        return [
            self._note(process)
            for process in self.processes.of_session(turn.session_id)
            if process.gone.is_set() and not process.is_told and not process.is_waking
        ]

    def _note(self, process: WatchedProcess) -> Note:
        text = f"[Note: {describe_process(process)}]"
        at = process.end.at if process.end else self.clock.now()
        return Note(note_key(process.record.id), text, self.settings.stamp(at))

    async def told(self, turn: Turn, notes: Sequence[Note]) -> None:
        keys = {note.key for note in notes}
        for process in self.processes.of_session(turn.session_id):
            if note_key(process.record.id) in keys:
                await self.processes.mark_told(process)

    # -- turns of their own ---------------------------------------------------------------------------------

    def _note_end(self, process: WatchedProcess) -> None:
        if process.record.wakes and self._wake is not None and not process.is_waking:
            process.is_waking = True
            self._tasks.start(self._tell(process), f"wake for {process.record.id}")

    async def _tell(self, process: WatchedProcess) -> None:
        """Submit the news as a message until it is accepted. If the session is not where the chat is now, it
        becomes an ordinary note."""
        for pause in _TRY_AGAIN.pauses():
            try:
                await self._submit(process)
                hit(Failpoint.WOKEN)
                await self.processes.mark_told(process)
            except Draining:
                return
            except NotFound:
                process.is_waking = False
            except IdempotencyConflict:  # told in other words
                await self.processes.mark_told(process)
            except TalariaError as error:
                _log.warning("the end of process %s is reported later: %s", process.record.id, error)
                await self.clock.sleep(pause)
                continue
            return

    async def _submit(self, process: WatchedProcess) -> None:
        text = f"{WAKING}{describe_process(process, with_command=False)}]"
        session_id, key = process.record.session_id, note_key(process.record.id)
        inbound = await waking(self._store, session_id, text, key)
        if self._wake is None:
            raise Draining("The gateway is shutting down.")
        await self._wake(inbound, session_id)


async def waking(store: Store, session_id: SessionId, text: str, key: str) -> Inbound:
    """Return a message of the gateway that wakes the session; its reply goes where earlier ones went. Raises
    `NotFound` if the session is gone, and `StoreError`."""
    session = await store.session(session_id)
    recent = await store.recent_of_session(session_id, _RECENT)
    if session is None or not recent:
        action = Action(Do.NEW_SESSION, "Start a new one")
        raise NotFound(f"The session {session_id} is gone.", f"{action}.", action=action)
    addresses = (turn.inbound.address for turn in recent if turn.inbound.address)
    sender, address = recent[0].inbound.sender, next(addresses, None)
    return Inbound(session.chat_key, sender, (Text(text),), key, address=address)


# -- chats whose files and processes are in places --------------------------------------------------------
# When a place is gone, another member takes its chats over (`store.sql.homes`). The chat's row then says
# that something was lost, until the log of the chat has the note. So a kill at any point neither loses the
# note nor tells it twice.


_NAMES_SHOWN = 80  # characters of a command
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
            key = loss_key(loss.lost)
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
            if note.key.startswith(loss_key("")):
                try:
                    await self._places.forget_loss(turn.chat_key, note.key.removeprefix(loss_key("")))
                except StoreError as error:
                    _log.warning("the log of %s has the note of its loss already: %s", turn.chat_key, error)


def loss_key(lost: str) -> str:
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
    return f"{info.id} ({clean_line(info.command, _NAMES_SHOWN)})"
