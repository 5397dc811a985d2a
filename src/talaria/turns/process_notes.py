"""The news of background processes that have ended, for their sessions: notes, or turns of their own.

The end of a process is owed to its session like a reply. Its files say that it has ended; the session's log,
or the turn that was accepted for it, says that the session was told. The mark in the process's folder only
saves looking there again. So a kill at any point neither loses the news nor tells it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from talaria.agent.warm import WarmAgent
from talaria.core.background import ProcessState
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.entries import WAKING, Note
from talaria.core.errors import IdempotencyConflict, NotFound, TalariaError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import SessionId
from talaria.core.messages import Text
from talaria.core.problems import Action, Do
from talaria.core.sessions import Session
from talaria.core.tasks import Tasks, stop
from talaria.core.text import clean_line
from talaria.core.turns import Inbound, Turn
from talaria.store.store import Store
from talaria.turns.intake import Draining
from talaria.turns.settings import TurnSettings
from talaria.workspace.processes import BackgroundProcesses
from talaria.workspace.watched_process import WatchedProcess

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
                _log.warning("the end of process %s is told later: %s", process.record.id, error)
                await self.clock.sleep(pause)
                continue
            return

    async def _submit(self, process: WatchedProcess) -> None:
        record = process.record
        session = await self._store.session(record.session_id)
        recent = await self._store.recent_of_session(record.session_id, _RECENT)
        if session is None or not recent or self._wake is None:
            action = Action(Do.NEW_SESSION, "Start a new one")
            raise NotFound(f"The session {record.session_id} is gone.", f"{action}.", action=action)
        addresses = (turn.inbound.address for turn in recent if turn.inbound.address)
        inbound = Inbound(
            session.chat_key,
            recent[0].inbound.sender,
            (Text(f"{WAKING}{describe_process(process, with_command=False)}]"),),
            note_key(record.id),
            address=next(addresses, None),
        )
        await self._wake(inbound, record.session_id)
