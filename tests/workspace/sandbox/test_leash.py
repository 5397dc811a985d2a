"""Commands and background processes end with the leash of their place, whatever has become of the gateway."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from contracts.process_suite import ended, printed, start
from support.waiting import until
from talaria.cluster.places import Leash, remove_leash
from talaria.core.ids import ChatAddress, SessionId
from talaria.core.shells import ProcessState, ShellCommand
from talaria.turns.notes import describe_process
from talaria.workspace.folder import chat_folder
from talaria.workspace.places import SessionPlaces, session_places
from talaria.workspace.processes import BackgroundProcesses
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import Sandbox
from talaria.workspace.shell import SessionCommands, SessionShell
from workspace.sandbox.test_background import Proved

KEY = ChatAddress("main", "test", "dm", "one").key()
SESSION = SessionId("ses_one")


@pytest.fixture
def commands(tmp_path: Path, any_sandbox: Sandbox) -> SessionCommands:
    return SessionCommands(cast(Sandboxes, Proved(any_sandbox)), leash=tmp_path / "leash")


def places(home: Path) -> SessionPlaces:
    return session_places(home, SESSION, KEY, chat_folder(home, KEY))


async def test_a_command_ends_with_the_leash_and_a_renewal_lets_it_go_on(
    tmp_path: Path, commands: SessionCommands
) -> None:
    leash = Leash(tmp_path, lease_seconds=0.9, takeover_seconds=600)
    shell, said = SessionShell(places(tmp_path), commands), asyncio.Event()

    async def hear(content: bytes) -> None:
        leash.extend(leash.now())
        said.set()

    leash.extend(leash.now() + 30)
    command = ShellCommand("for i in 1 2 3 4 5; do echo $i; sleep 0.3; done", 20.0)
    assert (await shell.run(command, hear)).code == 0, "it runs for longer than a lease"
    end = await shell.run(replace(command, text="echo on; sleep 600 & sleep 600; echo no"), hear)
    assert end.code in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    assert not end.timed_out
    assert (await shell.run(replace(command, text="sleep 600"), hear)).code != 0, "the leash has ended"
    leash.close()


async def test_a_process_ends_with_the_leash_while_no_gateway_looks(
    tmp_path: Path, commands: SessionCommands
) -> None:
    leash = Leash(tmp_path, lease_seconds=0.9, takeover_seconds=0.6)
    leash.extend(leash.now() + 1)
    life = BackgroundProcesses(tmp_path, commands)
    await start(life.of(SESSION, places(tmp_path)), "while :; do date +%s%N >> ticks; sleep 0.1; done")
    ticks = chat_folder(tmp_path, KEY) / "ticks"
    await until(ticks.exists)
    await life.close()  # as a gateway that is gone
    life = BackgroundProcesses(tmp_path, commands)
    await life.recover()
    (process,) = life
    async with asyncio.timeout(20):
        await process.gone.wait()
    assert process.state is ProcessState.ENDED
    assert process.end is not None
    assert process.end.is_cut_off
    assert "cut off from the database" in describe_process(process)
    await life.end(SESSION)
    leash.close()


async def test_a_gateway_that_leaves_the_cluster_frees_its_processes(
    tmp_path: Path, commands: SessionCommands
) -> None:
    leash = Leash(tmp_path, lease_seconds=3, takeover_seconds=600)
    leash.extend(leash.now())
    life = BackgroundProcesses(tmp_path, commands)
    processes = life.of(SESSION, places(tmp_path))
    info = await start(processes, "read line; echo $line")
    leash.close()
    remove_leash(tmp_path)
    await processes.write(info.id, "hi\n")  # the shim looks at its leash when there is output
    assert await printed(processes, info.id, "hi") == "hi\n"
    assert (await ended(processes, info.id)).code == 0
    await life.end(SESSION)
