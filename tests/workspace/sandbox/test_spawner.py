"""The spawner that starts all commands: deaths of its own, of its copies and of its gateway leave nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.waiting import until
from talaria.workspace.sandbox.command import Sandbox, SandboxCommand
from talaria.workspace.sandbox.group import below, start_time
from talaria.workspace.sandbox.process import SPAWNER, SpawnerLink, open_process, run
from workspace.sandbox.conftest import Holders, Places

HOLDING = "exec 9>held; (setsid sleep 1000 &); sleep 1000"


@contextmanager
def gateway(sandbox: Sandbox, command: SandboxCommand) -> Iterator[int]:
    """Run the command in a process with its own spawner, whose number is returned."""
    heard, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            SPAWNER.start()
            os.write(tells, str(SPAWNER.pid).encode())
            while True:
                asyncio.run(run(sandbox, command))
        finally:
            os._exit(1)
    os.close(tells)
    try:
        yield int(os.read(heard, 20))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(heard)


async def test_a_killed_spawner_takes_its_commands_along_and_the_next_command_has_another(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    with gateway(any_sandbox, places.command(HOLDING)) as spawner:
        await until(holders.alive)
        processes = [(pid, start) for pid in below(spawner) if (start := start_time(pid))]
        os.kill(spawner, signal.SIGKILL)
        await until(lambda: all(start_time(pid) != start for pid, start in processes))
        await until(holders.alive)  # the gateway has run the command again, in another spawner
    await until(lambda: not holders.alive())


async def test_a_command_whose_spawner_is_killed_tells_it_as_a_kill(
    any_sandbox: Sandbox, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner = SpawnerLink()
    monkeypatch.setattr("talaria.workspace.sandbox.process.SPAWNER", spawner)
    async with open_process(any_sandbox, places.command("echo begun; sleep 1000")) as process:
        async for _ in process.output():
            os.kill(spawner.pid, signal.SIGKILL)
        assert (await process.wait()).code == 128 + signal.SIGKILL
    spawner.close()


async def test_what_a_killed_supervisor_leaves_is_ended_by_the_spawner(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    """bubblewrap's namespace ends with it. Without one, the spawner inherits what is left."""
    async with open_process(any_sandbox, places.command(HOLDING)) as process:
        await until(holders.alive)
        await until(lambda: len(below(process.pid)) > 1)
        os.kill(process.pid, signal.SIGKILL)
        assert (await process.wait()).code == 128 + signal.SIGKILL
    await until(lambda: not holders.alive())


async def test_commands_of_one_spawner_do_not_hold_each_others_descriptors(
    any_sandbox: Sandbox, places: Places
) -> None:
    """Neither a command nor its supervisor keeps the pipes of another command open."""
    async with open_process(any_sandbox, places.command("echo up; cat", has_input=True)) as first:
        assert (await anext(first.output())).content == b"up\n"
        async with open_process(any_sandbox, places.command("echo up; exec sleep 1000")) as second:
            assert (await anext(second.output())).content == b"up\n"
            targets = {
                os.readlink(path)
                for pid in (second.pid, *below(second.pid))
                for path in Path(f"/proc/{pid}/fd").iterdir()
            }
            pipes = {os.readlink(path) for path in Path(f"/proc/{first.pid}/fd").iterdir()}
            assert not {each for each in pipes & targets if each.startswith(("pipe:", "socket:"))}
            first.close_input()
            assert (await first.wait()).code == 0


async def test_many_descriptors_are_sent_in_several_messages(
    any_sandbox: Sandbox, places: Places, tmp_path: Path
) -> None:
    folders = [tmp_path / "readable" / str(number) for number in range(450)]
    for folder in folders:
        folder.mkdir(parents=True)
    tmp_path.chmod(0o711)
    done = await run(any_sandbox, places.command("echo ran", readable=tuple(folders)))
    assert (done.out, done.ending.code) == (b"ran\n", 0), done.err
