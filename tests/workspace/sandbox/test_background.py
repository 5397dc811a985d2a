"""Background processes in each sandbox of this machine: real shims, over kills and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import pytest

from contracts.process_suite import ProcessSuite, ended, printed, start
from support.waiting import until
from talaria.core.errors import ToolError
from talaria.core.ids import ChatAddress, SessionId
from talaria.core.limits import Limits, LimitSettings
from talaria.core.shells import ProcessState
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.workspace.folder import chat_folder
from talaria.workspace.places import SessionPlaces, session_places
from talaria.workspace.processes import BackgroundProcesses, SessionProcesses
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import Sandbox
from talaria.workspace.sandbox.group import start_time
from talaria.workspace.sandbox.landlock import NoSandbox
from talaria.workspace.sandbox.process import open_process
from talaria.workspace.sandbox.shim import HEADER
from talaria.workspace.shell import SessionCommands
from talaria.workspace.watched_process import WatchedProcess, read_record, read_ring
from workspace.sandbox.conftest import Holders, Places

KEY = ChatAddress("main", "test", "dm", "one").key()
SESSION = SessionId("ses_one")


@dataclass(frozen=True)
class Proved:
    """A `Sandboxes` whose choice is known."""

    sandbox: Sandbox

    async def get(self) -> Sandbox:
        return self.sandbox


@dataclass
class Home:
    """A gateway's home. `gateway` is another life of its processes."""

    path: Path
    sandbox: Sandbox
    lives: list[BackgroundProcesses] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def places(self, session_id: SessionId = SESSION) -> SessionPlaces:
        return session_places(self.path, session_id, KEY, chat_folder(self.path, KEY))

    async def gateway(self, **limits: int) -> BackgroundProcesses:
        for life in self.lives:
            await life.close()
        commands = SessionCommands(cast(Sandboxes, Proved(self.sandbox)))
        life = BackgroundProcesses(
            self.path, commands, Limits(msgspec.structs.replace(LimitSettings(), **limits))
        )
        life.on_end = lambda process: self.told.append(process.record.id)
        self.lives.append(life)
        await life.recover()
        return life

    def of(self, life: BackgroundProcesses, session_id: SessionId = SESSION) -> SessionProcesses:
        return life.of(session_id, self.places(session_id))


@pytest.fixture
async def home(tmp_path: Path, any_sandbox: Sandbox) -> AsyncIterator[Home]:
    """A home whose commands run in each backend in turn."""
    async with _home(tmp_path, any_sandbox) as made:
        yield made


@pytest.fixture
async def plain_home(tmp_path: Path) -> AsyncIterator[Home]:
    """A home whose commands run without a sandbox, for what is the same in all of them."""
    if sys.platform != "linux":
        pytest.skip("background processes are for Linux")
    async with _home(tmp_path, NoSandbox()) as made:
        yield made


@asynccontextmanager
async def _home(tmp_path: Path, sandbox: Sandbox) -> AsyncIterator[Home]:
    home = Home(tmp_path / "home", sandbox)
    home.path.mkdir()
    before = _children()
    yield home
    last = home.lives[-1]
    for session_id in {process.record.session_id for process in last}:
        await last.end(session_id)
    await last.close()
    assert _children() == before, "no process of a test is left"
    assert not list(home.path.glob("sessions/*/processes/*"))


def _children() -> set[int]:
    return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == os.getpid()}


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


class TestBackgroundContract(ProcessSuite):
    @pytest.fixture
    async def processes(self, home: Home) -> SessionProcesses:
        return home.of(await home.gateway())


class TestFakeContract(ProcessSuite):
    @pytest.fixture
    def processes(self, tmp_path: Path) -> object:
        return FakeWorkspaces(lambda key: tmp_path).open(SESSION, KEY).processes


async def test_a_later_gateway_finds_it_again_with_its_output_and_input(home: Home) -> None:
    first = home.of(await home.gateway())
    info = await start(first, "echo begun; cat; exit 4", wakes=True)
    await printed(first, info.id, "begun")
    second = home.of(await home.gateway())
    (found,) = await second.list()
    assert (found.id, found.state, found.wakes) == (info.id, ProcessState.RUNNING, True)
    assert (await second.poll(info.id)).text == "", "what was polled before is not new"
    await second.write(info.id, "still here\n")
    await printed(second, info.id, "still here")
    await second.write(info.id, None)
    assert (await ended(second, info.id)).code == 4
    assert home.told == [info.id]


async def test_one_that_ends_while_no_gateway_runs_is_told_of_by_the_next(plain_home: Home) -> None:
    life = await plain_home.gateway()
    first = plain_home.of(life)
    info = await start(first, "cat; exit 7")
    (process,) = life
    await life.close()
    assert plain_home.told == []
    os.kill(process.record.pid, signal.SIGUSR1)  # as the gateway closes its input
    await until((process.folder / "exit").exists)
    again = await plain_home.gateway()
    assert (await ended(plain_home.of(again), info.id)).code == 7
    assert plain_home.told == [info.id]
    await again.mark_told(next(iter(again)))
    await plain_home.gateway()
    assert plain_home.told == [info.id], "not again"


async def test_the_death_of_its_keeper_ends_it_and_it_is_declared_lost_once(home: Home) -> None:
    life = await home.gateway()
    processes = home.of(life)
    info = await start(processes, "sleep 1000 & sleep 1001 & echo up; wait")
    await printed(processes, info.id, "up")
    (process,) = life
    record = read_record(process.folder)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    lost = await ended(processes, info.id)
    assert (lost.state, lost.code) == (ProcessState.LOST, None)
    assert home.told == [info.id]
    assert not start_time(record.launch) and not start_time(record.first), "nothing of it runs"
    await life.mark_told(process)
    again = home.of(await home.gateway())
    assert (await again.list())[0].state is ProcessState.LOST
    assert home.told == [info.id], "not again"


async def test_the_death_of_its_keeper_leaves_no_process_however_the_gateway_hears_of_it(home: Home) -> None:
    """The launcher ends the command when its keeper dies. The gateway must not kill the launcher first."""
    life = await home.gateway()
    processes = home.of(life)
    home.places().make()
    path = home.places().folder / "held"
    os.mkfifo(path)
    path.chmod(0o666)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for _ in range(8):
            info = await start(processes, "exec 9>held; sleep 1000 & sleep 1001 & echo up; wait")
            await printed(processes, info.id, "up")
            os.kill(_find(life, info.id).record.pid, signal.SIGKILL)
            assert (await ended(processes, info.id)).state is ProcessState.LOST
            assert not Holders(path, fd).alive()
            await life.mark_told(_find(life, info.id))
    finally:
        os.close(fd)


async def test_the_death_of_its_keeper_ends_it_without_a_gateway_too(home: Home) -> None:
    life = await home.gateway()
    info = await start(home.of(life), "echo up; sleep 1000")
    await printed(home.of(life), info.id, "up")
    (process,) = life
    record = read_record(process.folder)
    assert record is not None
    await life.close()
    os.kill(record.pid, signal.SIGKILL)
    await until(lambda: not start_time(record.launch) and not start_time(record.first))
    await home.gateway()
    assert home.told == [info.id]


@pytest.mark.parametrize("field", ["boot", "start"])
async def test_one_of_another_boot_or_start_is_lost_whatever_has_its_pid_now(
    plain_home: Home, field: str
) -> None:
    life = await plain_home.gateway()
    info = await start(plain_home.of(life), "echo up; cat")
    await printed(plain_home.of(life), info.id, "up")
    (process,) = life
    await life.close()
    kept = (process.folder / "record").read_text()
    changed = (
        json.loads(kept) | {"boot": {"boot": "another"}, "start": {"start": 1, "launch_start": 1}}[field]
    )
    (process.folder / "record").write_text(json.dumps(changed))
    again = await plain_home.gateway()
    assert (await plain_home.of(again).list())[0].state is ProcessState.LOST
    assert start_time(process.record.pid), "a process that only has the same pid is left alone"
    (process.folder / "record").write_text(kept)
    assert (await plain_home.of(await plain_home.gateway()).kill(info.id)).code == 143


async def test_a_program_that_ignores_sigterm_is_killed(home: Home) -> None:
    processes = home.of(await home.gateway())
    info = await start(processes, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    await printed(processes, info.id, "deaf")
    assert (await processes.kill(info.id)).code == 137


async def test_the_end_of_a_session_leaves_nothing_and_no_other_session_notices(home: Home) -> None:
    life = await home.gateway()
    other = SessionId("ses_other")
    doomed = await start(home.of(life), "sleep 1000")
    spared = await start(home.of(life, other), "cat")
    (process,) = life.of_session(SESSION)
    await life.end(SESSION)
    assert not start_time(process.record.pid) and not start_time(process.record.launch)
    assert not process.folder.exists()
    assert home.told == [], f"nobody is told of {doomed.id}"
    assert (await home.of(life, other).list())[0].id == spared.id


async def test_what_is_started_while_a_session_ends_stays(plain_home: Home) -> None:
    life = await plain_home.gateway()
    await start(plain_home.of(life), "trap 'sleep 0.2; exit' TERM; echo; sleep 1000 & wait")
    ending = asyncio.create_task(life.end(SESSION))
    await asyncio.sleep(0)
    info = await start(plain_home.of(life), "cat")
    await ending
    assert [each.id for each in await plain_home.of(life).list()] == [info.id]
    assert (await plain_home.of(life).poll(info.id)).info.state is ProcessState.RUNNING


async def test_a_start_that_is_cancelled_leaves_nothing(plain_home: Home) -> None:
    life = await plain_home.gateway()
    ran = chat_folder(plain_home.path, KEY) / "ran"
    for rounds in range(12):
        starting = asyncio.create_task(start(plain_home.of(life), "touch ran; sleep 1000"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        starting.cancel()
        try:
            info = await starting
        except asyncio.CancelledError:
            assert not life.of_session(SESSION)
            assert not list(plain_home.places().processes.glob("*"))
        else:
            await plain_home.of(life).kill(info.id)
            await life.end(SESSION)
            ran.unlink(missing_ok=True)
    assert not ran.exists()


async def test_the_number_of_processes_is_limited(plain_home: Home) -> None:
    life = await plain_home.gateway(session_processes=2, processes=3)
    mine, other = plain_home.of(life), plain_home.of(life, SessionId("ses_other"))
    first = await start(mine, "cat")
    both = await asyncio.gather(*(start(mine, "cat") for _ in range(3)), return_exceptions=True)
    assert sum(isinstance(each, ToolError) for each in both) == 2
    await start(other, "cat")
    with pytest.raises(ToolError, match=r"limits\.processes"):
        await start(other, "cat")
    await mine.kill(first.id)
    await start(other, "cat")
    with pytest.raises(ToolError, match=r"limits\.processes"):
        await start(mine, "cat")


async def test_a_flood_of_output_keeps_its_last_megabyte(plain_home: Home) -> None:
    processes = plain_home.of(await plain_home.gateway())
    info = await start(processes, "seq 400000")
    info = await ended(processes, info.id)
    output = await processes.poll(info.id)
    assert info.written == sum(len(str(number)) + 1 for number in range(1, 400_001))
    assert (output.end, output.end - output.begin, output.wanted) == (info.written, 1 << 20, 0)
    assert output.text.endswith("399999\n400000\n")
    (process,) = list(plain_home.lives[-1])
    assert (process.folder / "output").stat().st_size < (1 << 20) + 100


def _ring_bytes(process: WatchedProcess) -> tuple[int, bool]:
    """Return the size of the file with the output, and whether it takes as much of the disk."""
    found = (process.folder / "output").stat()
    return found.st_size, found.st_blocks * 512 < found.st_size + (16 << 10)


@pytest.mark.parametrize("text", ["true", "echo done", "echo done; sleep 1000"])
async def test_a_process_that_has_ended_or_is_lost_takes_no_more_disk_than_its_output(
    plain_home: Home, text: str
) -> None:
    """As long as a process runs, the space for its output is reserved as a whole."""
    life = await plain_home.gateway()
    processes = plain_home.of(life)
    info = await start(processes, text)
    (process,) = life
    if "sleep" in text:
        await printed(processes, info.id, "done")
        os.kill(process.record.pid, signal.SIGKILL)
    state = (await ended(processes, info.id)).state
    assert state is (ProcessState.LOST if "sleep" in text else ProcessState.ENDED)
    output = (await processes.log(info.id, 0, 100)).text
    assert output == ("done\n" if "echo" in text else "")
    assert _ring_bytes(process) == (HEADER + len(output), True)


async def test_a_process_that_has_ended_without_a_gateway_is_cut_to_its_output_by_the_next(
    plain_home: Home,
) -> None:
    life = await plain_home.gateway()
    info = await start(plain_home.of(life), "echo done; cat")
    (process,) = life
    await printed(plain_home.of(life), info.id, "done")
    assert _ring_bytes(process)[0] == HEADER + (1 << 20)
    await life.close()
    os.kill(process.record.pid, signal.SIGUSR1)
    await until((process.folder / "exit").exists)
    again = plain_home.of(await plain_home.gateway())
    await ended(again, info.id)
    assert _ring_bytes(process) == (HEADER + 5, True)
    assert (await again.log(info.id, 0, 100)).text == "done\n"


async def test_input_that_is_not_read_is_taken_in_part_and_holds_nobody_up(
    plain_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talaria.workspace.watched_process._INPUT_SECONDS", 0.05)
    processes = plain_home.of(await plain_home.gateway())
    info = await start(processes, "sleep 1000")
    taken = await processes.write(info.id, "x" * 200_000)
    assert 0 < taken < 200_000


async def test_ended_ones_are_kept_for_a_while(plain_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talaria.workspace.processes.ENDED_KEPT", 2)
    life = await plain_home.gateway()
    for number in range(4):
        info = await start(plain_home.of(life), f"echo {number}")
        await ended(plain_home.of(life), info.id)
        await life.mark_told(_find(life, info.id))
    listed = await plain_home.of(life).list()
    assert [each.command for each in listed] == ["echo 2", "echo 3"]
    assert len(list(plain_home.places().processes.iterdir())) == 2


def _find(life: BackgroundProcesses, process_id: str) -> WatchedProcess:
    return next(process for process in life if process.record.id == process_id)


def test_a_ring_that_is_overwritten_while_it_is_read_gives_whole_bytes(tmp_path: Path) -> None:
    from talaria.workspace.sandbox.shim import OUTPUT, RESERVED_AT, Ring

    ring = Ring(str(tmp_path / OUTPUT), 10)
    ring.write(b"0123456789abcde")
    assert read_ring(tmp_path, 0, 100)[:2] == (5, b"56789abcde")
    with open(tmp_path / OUTPUT, "r+b") as file:  # the writer died in the middle of the next three bytes
        file.seek(RESERVED_AT)
        file.write((18).to_bytes(8, "little"))
    assert read_ring(tmp_path, 0, 100)[:2] == (8, b"89abcde")


async def test_a_command_that_is_ended_while_it_starts_leaves_nothing(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    """bubblewrap's first process once waited for ever for a launcher that was killed at the wrong moment."""
    command = places.command(f"exec 9>{holders.path}; sleep 1000")
    for rounds in range(0, 400, 10):
        async with asyncio.timeout(30), open_process(any_sandbox, command):
            for _ in range(rounds):
                await asyncio.sleep(0)
    assert not holders.alive()
