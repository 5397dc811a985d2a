"""The background processes of sessions: started, found again by later gateways, ended with their session."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import ToolError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import SessionId
from talaria.core.limits import Limits
from talaria.core.shells import ProcessInfo, ProcessOutput, ProcessStart, ProcessState
from talaria.core.tasks import finish_in_task
from talaria.core.whole_files import replace_file
from talaria.workspace.places import SessionPlaces, kept_sessions, make_private, remove_tree, session_folder
from talaria.workspace.sandbox.command import SandboxError
from talaria.workspace.shell import SessionCommands
from talaria.workspace.watched_process import (
    POLLED,
    RING_BYTES,
    TOLD,
    ProcessFacts,
    ProcessRecord,
    RingPart,
    StartingShim,
    WatchedProcess,
    read_number,
    read_record,
    read_ring,
    without_cut_character,
    write_input,
)

# A record, the folder of the process, and whether its session was told of its end.
_Found: TypeAlias = tuple[ProcessRecord, Path, bool]

_log = logging.getLogger("talaria.processes")
ENDED_KEPT = 16  # of each session, so that their output can be read


class BackgroundProcesses:
    """All background processes of this home. Implements `Belongings`.

    `on_end` is called on the event loop for each process that has ended or is lost, and of which its session
    has not been told: also for those that ended while no gateway ran, by `recover`. `watchers` are called for
    each start and each end.
    """

    def __init__(
        self, home: Path, commands: SessionCommands, limits: Limits | None = None, clock: Clock | None = None
    ) -> None:
        self._home = Path(os.path.realpath(home))
        self._commands = commands
        self.threads = commands.threads
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._all: dict[SessionId, dict[str, WatchedProcess]] = {}
        self._starting: dict[SessionId, set[str]] = {}
        self.on_end: Callable[[WatchedProcess], None] = lambda process: None
        self.watchers: list[Callable[[], None]] = []
        self._limits.watch("processes", lambda: sum(self._count(each) for each in self._all))

    def of(
        self, session_id: SessionId, places: SessionPlaces, claim: Callable[[], Awaitable[None]] | None = None
    ) -> SessionProcesses:
        """Return those of a session. `claim` is awaited before one is started."""
        return SessionProcesses(session_id, places, self, claim)

    def infos(self) -> list[ProcessInfo]:
        """Return the processes that run, of all sessions."""
        return [process.info() for process in self if process.state is ProcessState.RUNNING]

    def __iter__(self) -> Iterator[WatchedProcess]:
        return iter([process for found in self._all.values() for process in found.values()])

    def of_session(self, session_id: SessionId) -> Sequence[WatchedProcess]:
        return tuple(self._all.get(session_id, {}).values())

    # -- the gateway's start and end ------------------------------------------------------------------------

    async def recover(self) -> Sequence[SessionId]:
        """Find the processes of earlier gateways again. Return the sessions that have any."""
        await self._find(await self.threads.run(self, _find_all, self._home))
        return tuple(self._all)

    async def _find(self, found: Sequence[_Found]) -> None:
        for record, folder, is_told in found:
            known = self._all.setdefault(record.session_id, {})
            if record.id not in known:
                known[record.id] = process = WatchedProcess(record, folder, is_told=is_told)
                process.watch(self._note_end)
                await process.buried()

    async def end(self, session_id: SessionId) -> None:
        """End the session's processes and remove their files. Processes that are started meanwhile stay."""
        if (processes := session_folder(self._home, session_id) / "processes").exists():
            begun = self._starting.get(session_id, set())
            await self._find(_find_in(processes, begun))  # `recover` may not have come to them yet
        doomed = self._all.pop(session_id, {})
        for process in doomed.values():
            process.is_told = True
        await asyncio.gather(*(process.kill() for process in doomed.values()))
        for process in doomed.values():
            await self.threads.run(session_id, remove_tree, process.folder)

    async def close(self) -> None:
        """Watch nothing any more. All processes go on."""
        for process in self:
            process.unwatch()
        self._all.clear()

    def _note_end(self, process: WatchedProcess) -> None:
        info = process.info()
        _log.info("process %s of %s %s: %s", info.id, info.session_id, info.state, info.code)
        if not process.is_told:
            self.on_end(process)
        for watcher in self.watchers:
            watcher()

    async def mark_told(self, process: WatchedProcess) -> None:
        """The session knows that the process has ended."""
        process.is_told = True
        with suppress(OSError):  # it is told again by the next gateway then, if the log does not have it
            await self.threads.run(process.record.session_id, (process.folder / TOLD).touch)

    # -- starting -------------------------------------------------------------------------------------------

    async def start(
        self, session_id: SessionId, places: SessionPlaces, order: ProcessStart
    ) -> WatchedProcess:
        if not order.text.strip():
            raise ToolError("The command is empty.", "Say what to run.")
        self._check_room(session_id)
        process_id = f"p{secrets.token_hex(4)}"
        self._starting.setdefault(session_id, set()).add(process_id)
        facts = ProcessFacts(
            id=process_id,
            session_id=session_id,
            turn_id=order.turn_id,
            command=order.text,
            started_at=self._clock.now(),
            wakes=order.wakes,
        )
        try:
            await self._forget_old(session_id)
            return await self._start(facts, places)
        finally:
            self._starting[session_id].discard(process_id)
            if not self._starting[session_id]:
                del self._starting[session_id]

    def _check_room(self, session_id: SessionId) -> None:
        limits = self._limits
        if self._count(session_id) >= limits.now.session_processes:
            text = f"{limits.now.session_processes} background processes of this session run already."
            raise ToolError(text, f"End one with process kill. {limits.refuse('session_processes')}")
        if sum(map(self._count, {*self._all, *self._starting})) >= limits.now.processes:
            text = "Too many background processes run on this machine."
            raise ToolError(text, f"Try again later. {limits.refuse('processes')}")

    def _count(self, session_id: SessionId) -> int:
        running = (each.state is ProcessState.RUNNING for each in self.of_session(session_id))
        return sum(running) + len(self._starting.get(session_id, ()))

    async def _forget_old(self, session_id: SessionId) -> None:
        over = [each for each in self.of_session(session_id) if each.gone.is_set() and each.is_told]
        for process in over[: max(0, len(over) - ENDED_KEPT + 1)]:
            del self._all[session_id][process.record.id]
            await self.threads.run(session_id, remove_tree, process.folder)

    async def _start(self, facts: ProcessFacts, places: SessionPlaces) -> WatchedProcess:
        folder = places.processes / facts.id
        sandbox, command = await self._commands.make_background(places, facts.command)
        try:
            make_private(folder)  # not in a thread, which would go on after a cancellation
            shim = StartingShim(sandbox.prepare(command), folder, facts, self._commands.leash)
        except SandboxError as error:
            remove_tree(folder)
            raise ToolError(error.user_text, error.hint) from error
        except OSError as error:
            remove_tree(folder)
            text = f"The background process cannot be started: {error.strerror}."
            raise ToolError(text, "Try again later.") from error
        process = None
        try:
            await shim.recorded()
            if (record := read_record(folder)) is None:
                raise ToolError("The background process was not recorded.", "Look at the gateway's disk.")
            hit(Failpoint.PROCESS_RECORDED)
            process = WatchedProcess(record, folder)
            process.watch(self._note_end)
            self._all.setdefault(facts.session_id, {})[facts.id] = process
            shim.go()
        finally:
            if process is None:
                await self._abandon(shim, folder)
        hit(Failpoint.PROCESS_STARTED)
        for watcher in self.watchers:
            watcher()
        return process

    async def _abandon(self, shim: StartingShim, folder: Path) -> None:
        """Clean up after a start that failed, whatever is cancelled meanwhile."""
        try:
            await finish_in_task(shim.abandon())
        finally:
            remove_tree(folder)


@dataclass(slots=True, eq=False)
class SessionProcesses:
    """The background processes of one session. They outlive the handle and the gateway, and end with the
    session. Every method raises `ToolError` for an id that the session does not have."""

    session_id: SessionId
    _places: SessionPlaces
    _all: BackgroundProcesses
    _claim: Callable[[], Awaitable[None]] | None

    async def start(self, order: ProcessStart) -> ProcessInfo:
        """Start a command with the shell's working directory and environment. It is on record before it runs.

        On cancellation it does not run. Raises `ToolError` if it cannot be run, or if too many run.
        """
        if self._claim is not None:
            await self._claim()
        return (await self._all.start(self.session_id, self._places, order)).info()

    async def list(self) -> Sequence[ProcessInfo]:
        """Return the processes that run, and the last ones that have ended, in the order of their start."""
        return [process.info() for process in self._all.of_session(self.session_id)]

    async def poll(self, process_id: str) -> ProcessOutput:
        """Return the output since the last poll."""
        process = self._find(process_id)
        is_last = process.state is not ProcessState.RUNNING
        return await self._all.threads.run(self.session_id, _poll, process, is_last)

    async def log(self, process_id: str, offset: int | None, limit: int) -> ProcessOutput:
        """Return up to `limit` bytes of output from an offset on; the last ones if `offset` is None."""
        process = self._find(process_id)
        part = await self._all.threads.run(self.session_id, read_ring, process.folder, offset, limit)
        wanted = part.begin if offset is None else offset
        return _output(process, part, wanted, is_last=process.state is not ProcessState.RUNNING)

    async def write(self, process_id: str, text: str | None) -> int:
        """Write to the input of the process; None closes it. Return the number of bytes that were taken.

        That is less than all of them if the process does not read for some seconds. Raises `ToolError` if the
        process has ended or its input is closed.
        """
        process = self._find(process_id)
        if process.state is not ProcessState.RUNNING:
            raise ToolError(f"The process {process_id} has ended.", "Start it again.")
        if text is None:
            process.signal(signal.SIGUSR1)
            return 0
        try:
            return await write_input(process.folder, text.encode(errors="replace"))
        except OSError as error:
            text = f"The process {process_id} does not take input: {error.strerror}."
            raise ToolError(text, "Its input is closed, or it is about to end.") from error

    async def kill(self, process_id: str) -> ProcessInfo:
        """End the process: politely first, by force after some seconds. Returns when it is gone."""
        process = self._find(process_id)
        if process.state is ProcessState.RUNNING:
            await self._all.mark_told(process)
            await process.kill()
        return process.info()

    def _find(self, process_id: str) -> WatchedProcess:
        for process in self._all.of_session(self.session_id):
            if process.record.id == process_id:
                return process
        text = f"This session has no background process {process_id[:50]!r}."
        raise ToolError(text, "process list shows those that it has.")


def _poll(process: WatchedProcess, is_last: bool) -> ProcessOutput:
    """Return what was printed since the last poll, and keep how far that is. Blocks."""
    mark = process.folder / POLLED
    wanted = read_number(mark)
    output = _output(process, read_ring(process.folder, wanted, RING_BYTES), wanted, is_last=is_last)
    with suppress(OSError):
        replace_file(mark, str(output.end).encode(), is_durable=False)
    return output


def _output(process: WatchedProcess, part: RingPart, wanted: int, *, is_last: bool) -> ProcessOutput:
    content = part.content if is_last else without_cut_character(part.content)
    text = content.decode(errors="replace")
    return ProcessOutput(process.info(), text, wanted, part.begin, part.begin + len(content))


def _find_all(home: Path) -> list[_Found]:
    """Return what earlier gateways left, oldest first. Blocks."""
    found = []
    for session_id in kept_sessions(home):
        found += _find_in(session_folder(home, session_id) / "processes")
    return sorted(found, key=lambda each: each[0].started_at)


def find_running(home: Path) -> list[ProcessRecord]:
    """Return the processes of all sessions that run now. Only reads files, so a gateway may run. Blocks."""
    found = []
    for folder in home.resolve().glob("sessions/*/processes/*"):
        record = read_record(folder)
        if record is not None and (shim := record.open_shim()) is not None:
            os.close(shim)
            found.append(record)
    return found


async def end_all(home: Path) -> None:
    """End the processes of all sessions, which outlive their gateway. `home` has no link in its path, and no
    gateway may run on it."""
    processes = [WatchedProcess(record, folder) for record, folder, _ in _find_all(home)]
    for process in processes:
        process.watch(lambda ended: None)
    await asyncio.gather(*(process.kill() for process in processes))


def _find_in(processes: Path, begun: Container[str] = ()) -> list[_Found]:
    """Return what a session has, but for those that are being started. Blocks.

    A folder without a record is of a command that never ran: its gateway died before, and so its shim does
    not run it.
    """
    found = []
    with suppress(FileNotFoundError):
        for folder in processes.iterdir():
            if folder.name in begun:
                continue
            if (record := read_record(folder)) is not None:
                found.append((record, folder, (folder / TOLD).exists()))
            else:
                remove_tree(folder)
    return found
