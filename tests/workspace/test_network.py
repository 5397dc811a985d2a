"""The network of a session, with real namespaces, commands and servers."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support.waiting import until
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.net.host_rules import AskHost, HostAnswer, HostRequest, NetworkSettings
from talaria.workspace.network import SessionNetworks
from talaria.workspace.network_holder import find_holder
from talaria.workspace.places import SessionPlaces, make_private, session_places
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove
from talaria.workspace.sandbox.command import ProcessLimits, SandboxCommand, shell
from talaria.workspace.sandbox.landlock import LandlockSandbox, NoSandbox
from talaria.workspace.sandbox.process import Completed, open_process, run
from talaria.workspace.sandbox.shim import EXIT
from talaria.workspace.watched_process import ProcessFacts, StartingShim, read_ring

SANDBOX = BubblewrapSandbox()
PATIENT = ProcessLimits(seconds=100)


@pytest.fixture(scope="module")
def _has_bubblewrap() -> None:
    reason = asyncio.run(prove(SANDBOX, Path("/nowhere"))).why_not
    if reason:
        pytest.skip(reason)


@dataclass
class NetworkWorld:
    """A gateway's networks, and a server on the machine's loopback that `allow_private` names."""

    home: Path
    port: int
    networks: SessionNetworks
    settings: NetworkSettings

    def places(self, name: str = "ses_1") -> SessionPlaces:
        places = session_places(
            self.home, SessionId(name), ChatKey(f"api:{name}"), self.home / "files" / name
        )
        places.make()
        return places

    async def command(self, text: str, name: str = "ses_1", *, is_background: bool = False) -> SandboxCommand:
        places = self.places(name)
        access = await self.networks.access(places, SANDBOX, is_background=is_background)
        assert access is not None, self.networks.reading()
        return SandboxCommand(
            shell(text), places.folder, places.home, places.tmp, limits=PATIENT, network=access
        )

    async def run(self, text: str, name: str = "ses_1", *, is_background: bool = False) -> Completed:
        return await run(SANDBOX, await self.command(text, name, is_background=is_background))

    def restarted(self) -> SessionNetworks:
        """Return what a new gateway over the same home opens."""
        return SessionNetworks(self.home, lambda: self.settings)


@asynccontextmanager
async def _open_world(home: Path, ask: AskHost | None = None) -> AsyncIterator[NetworkWorld]:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = NetworkSettings(allow_private=(f"127.0.0.1:{port}",))
    made = NetworkWorld(home, port, SessionNetworks(home, lambda: made.settings, ask=ask), settings)
    try:
        yield made
    finally:
        await made.networks.close()
        server.close()
        await server.wait_closed()
    # A holder ends by itself when the last command of its session, and the guard of that command, have ended.
    await until(lambda: not any(find_and_forget(path) for path in home.glob("sessions/*/network")))


@pytest.fixture
async def world(tmp_path: Path, _has_bubblewrap: None) -> AsyncIterator[NetworkWorld]:
    async with _open_world(tmp_path) as made:
        yield made


def _fetch(world: NetworkWorld) -> str:
    return f"curl -sS --noproxy '' http://127.0.0.1:{world.port}/"


async def test_only_way_out_is_the_proxy(world: NetworkWorld) -> None:
    done = await world.run(f"{_fetch(world)}; echo; curl -sS --noproxy '*' http://127.0.0.1:{world.port}/")
    assert done.out == b"hello\n"
    assert done.ending.code == 7  # not connected
    assert world.networks.reading().sessions == 1


async def test_refused_host_is_told_to_the_command_and_in_the_note(world: NetworkWorld) -> None:
    done = await world.run("curl -sS http://unlisted.example/x; curl -sSI https://other.example/")
    assert b"unlisted.example:80 was not reached. It is not in network.allow" in done.out
    assert b"403 Refused by Talaria: other.example:443 was not reached." in done.out
    note = world.networks.note(SessionId("ses_1"))
    assert "unlisted.example:80 was not reached" in note
    assert "other.example:443 was not reached" in note
    assert world.networks.note(SessionId("ses_1")) == ""


async def test_background_process_asks_as_one(tmp_path: Path, _has_bubblewrap: None) -> None:
    asked: list[HostRequest] = []

    async def ask(request: HostRequest) -> HostAnswer:
        asked.append(request)
        return HostAnswer(False, "No.")

    async with _open_world(tmp_path, ask) as world:
        await world.run("curl -sS http://one.example/")
        await world.run("curl -sS http://two.example/", is_background=True)
    assert [(each.host, each.is_background) for each in asked] == [
        ("one.example", False),
        ("two.example", True),
    ]


async def test_sandboxes_of_a_session_share_localhost_and_those_of_another_do_not(
    world: NetworkWorld,
) -> None:
    serve = "import http.server as s; h = s.HTTPServer(('127.0.0.1', 8000), s.SimpleHTTPRequestHandler); "
    serving = await world.command(
        f'/usr/bin/env python3 -c "{serve} print(1, flush=True); h.serve_forever()"'
    )
    look = "curl -s http://localhost:8000/ | grep -c '<h1>'"
    async with open_process(SANDBOX, serving) as process:
        async for _ in process.output():
            break
        assert (await world.run(look)).out == b"1\n"
        assert (await world.run(look, "ses_2")).out == b"0\n"


async def test_no_escape_works_with_a_network(world: NetworkWorld) -> None:
    access = await world.networks.access(world.places(), SANDBOX)
    proof = await prove(SANDBOX, world.home, access)
    assert proof.holds, proof.sentence()
    assert len(proof.attempts) > 70


async def test_network_ends_with_its_session(world: NetworkWorld) -> None:
    await world.run("true")
    await world.run("true", "ses_2")
    holder = find_holder(world.places().network)
    assert holder is not None
    await world.networks.end(SessionId("ses_1"))
    assert not holder.is_alive
    holder.forget()
    assert not find_and_forget(world.places().network)
    assert (await world.run(_fetch(world), "ses_2")).out == b"hello"
    await world.networks.end(SessionId("unknown"))


async def test_network_is_made_again_if_its_files_were_deleted(world: NetworkWorld) -> None:
    """Somebody deletes `sessions` in the home of a running gateway."""
    assert (await world.run(_fetch(world))).out == b"hello"
    holder = find_holder(world.places().network)
    assert holder is not None
    shutil.rmtree(world.home / "sessions")
    assert (await world.run(_fetch(world))).out == b"hello"
    assert not holder.is_alive
    holder.forget()
    assert world.networks.reading().sessions == 1


async def test_network_outlives_the_gateway_with_its_processes_and_leads_to_the_next_one(
    world: NetworkWorld,
) -> None:
    folder = world.places().network
    waiting = await world.command("")
    fifo = world.places().folder / "go"
    os.mkfifo(fifo, 0o666)
    fifo.chmod(0o666)
    waiting = replace(waiting, argv=shell(f"echo started; read line <go; {_fetch(world)}"))
    async with open_process(SANDBOX, waiting) as process:
        output = process.output()
        assert (await anext(output)).content == b"started\n"
        await world.networks.close()  # as a restart does
        assert find_and_forget(folder)
        second = world.restarted()
        await second.resume()
        assert second.reading().sessions == 1
        fd = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # the command may not have opened it yet
        os.write(fd, b"go\n")
        assert b"".join([piece.content async for piece in output]) == b"hello"
        await process.wait()
        os.close(fd)
    await second.end(SessionId("ses_1"))
    assert not find_and_forget(folder)
    await second.close()


async def test_command_joins_the_network_although_the_gateway_has_died_meanwhile(world: NetworkWorld) -> None:
    command = await world.command("readlink /proc/self/ns/net; ls /proc/self/fd | wc -l", is_background=True)
    assert command.network is not None
    inside = [os.dup(fd) for fd in command.network.namespaces]
    expected = f"net:[{os.fstat(inside[-1]).st_ino}]"
    folder = world.places().processes / "p1"
    make_private(folder)
    dying = replace(command, network=replace(command.network, namespaces=tuple(inside)))
    facts = ProcessFacts(
        id="p1", session_id=SessionId("ses_1"), turn_id=TurnId("turn_1"), command="", started_at=1.0
    )
    shim = StartingShim(SANDBOX.prepare(dying), folder, facts)
    for fd in inside:  # a process that dies closes its descriptors
        os.close(fd)
    await shim.recorded()
    shim.go()
    await until((folder / EXIT).exists)
    found, count = read_ring(folder, None, 4096).content.decode().split()
    assert found == expected
    assert int(count) == 4, "the command has stdin, stdout, stderr, and the folder that `ls` reads"


async def test_network_of_a_killed_gateway_is_ended_by_the_next_one(world: NetworkWorld) -> None:
    await world.run("true")
    folder = world.places().network
    second = world.restarted()
    await second.end(SessionId("ses_1"))
    assert not find_and_forget(folder)
    await second.close()


async def test_holder_that_died_is_replaced(world: NetworkWorld) -> None:
    await world.run("true")
    holder = find_holder(world.places().network)
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    await until(lambda: not holder.is_alive)
    holder.forget()
    assert (await world.run(_fetch(world))).out == b"hello"


async def test_unused_network_is_given_up_and_made_again(world: NetworkWorld) -> None:
    world.networks = SessionNetworks(world.home, lambda: world.settings, idle_seconds=0)
    running = await world.command("echo started; sleep 1000")
    async with open_process(SANDBOX, running) as process:
        await anext(process.output())
        await world.networks.sweep()
        assert world.networks.reading().sessions == 1  # a command uses it
    await world.networks.sweep()
    assert world.networks.reading().sessions == 0
    assert not find_and_forget(world.places().network)
    assert (await world.run(_fetch(world))).out == b"hello"


async def test_many_sessions_keep_few_networks_and_those_in_use_stay(world: NetworkWorld) -> None:
    networks = SessionNetworks(world.home, lambda: world.settings, idle_seconds=0, most_kept=2)
    world.networks = networks
    running = await world.command("echo started; sleep 1000", "ses_busy")
    async with open_process(SANDBOX, running) as process:
        await anext(process.output())
        for n in range(4):
            await world.run("true", f"ses_{n}")
            assert networks.reading().sessions <= 3  # the one in use is found only when it is looked at
        assert find_and_forget(world.places("ses_busy").network)
        assert not find_and_forget(world.places("ses_0").network)
    await networks.sweep()


async def test_networks_are_made_beyond_a_thousand_descriptors(world: NetworkWorld) -> None:
    low, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if low < 1200:
        pytest.skip("this process may not open so many files")
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        assert (await world.run(_fetch(world))).out == b"hello"
    finally:
        for fd in held:
            os.close(fd)


async def test_without_a_namespace_commands_have_no_network_and_the_note_says_why(
    world: NetworkWorld,
) -> None:
    places = world.places()
    places.network.write_text("in the way")
    assert await world.networks.access(places, SANDBOX) is None
    assert "no network" in world.networks.note(SessionId("ses_1"))
    assert world.networks.reading().trouble


async def test_other_sandboxes_and_off_have_no_network(world: NetworkWorld) -> None:
    for sandbox in (LandlockSandbox(), NoSandbox()):
        assert await world.networks.access(world.places(), sandbox) is None
    world.settings = NetworkSettings(commands="off")
    assert await world.networks.access(world.places(), SANDBOX) is None
    assert world.networks.note(SessionId("ses_1")) == ""
    assert not world.places().network.exists()


def find_and_forget(folder: Path) -> bool:
    holder = find_holder(folder)
    if holder is not None:
        holder.forget()
    return holder is not None
