"""Files, shells and background processes of chats on several gateways: real processes, real kills."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import Any

from scenarios.test_cluster import reply_of
from store.cutting_proxy import CuttingProxy, cutting_proxy
from support.gateways import Gateways, cluster
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from support.waiting import until
from talaria.config.shared_files import MARK
from talaria.testing.gateway_process import GatewayProcess

SETTINGS = {"TOOLS__ENABLED": "terminal,files", "NETWORK__COMMANDS": "off"}
TICKS = "while :; do date +%s%N >> ticks; sleep 0.1; done"


def call(tool: str, **arguments: object) -> str:
    return f"[[call {tool} {json.dumps(arguments)}]]"


async def say(gateway: GatewayProcess, chat: str, text: str) -> Any:
    return await reply_of(gateway, await gateway.begin(chat, text))


def ticks(folder: Path, chat: str) -> list[int]:
    """Return when a command wrote to its file, in nanoseconds."""
    texts = [found.read_text() for found in folder.glob(f"files/*{chat}/ticks")]
    return [int(word) for word in "".join(texts).split() if len(word) == 19]


async def ticking(folder: Path, chat: str) -> None:
    """Wait until a command has written."""
    await until(lambda: ticks(folder, chat))


def notes_of(world: Gateways, turn_id: str) -> list[str]:
    """Return the notes in the log that this turn belongs to."""
    rows = world.ask(
        "SELECT body FROM entries WHERE kind = 'note' "
        "AND session_id = (SELECT session_id FROM turns WHERE id = %s)",
        turn_id,
    )
    return [str(body) for (body,) in rows]


def begun_at(world: Gateways, turn_id: str) -> float:
    ((at,),) = world.ask("SELECT begun_at FROM turns WHERE id = %s", turn_id)
    return float(at)


async def test_a_chat_stays_where_its_files_and_processes_are(
    postgres_database: str,  # noqa: F811
) -> None:
    with cutting_proxy(postgres_database) as (proxy, url):
        settings = (SETTINGS | {"STORE__URL": url}, SETTINGS)
        async with cluster(postgres_database, *settings) as world:
            await check_restart(world)
            await check_loss(world)
            await check_lost_database(world, proxy)


async def check_restart(world: Gateways) -> None:
    """A message that the other gateway accepts meanwhile waits for the one that has the files. It waits for
    minutes, so a slow start is in time. The checks after this one need a shorter wait."""
    here, there = world.each
    await say(here, "stays", call("write_file", path="a.txt", content="kept by the first"))
    assert "kept by the first" in await say(there, "stays", call("terminal", command="cat a.txt"))
    await here.kill()
    turn_id = await there.begin("stays", call("terminal", command="cat a.txt"))
    for gateway in world.each:
        (gateway.home / "config.toml").write_text('[cluster]\ntakeover_after = "5s"\n')
    await here.start()
    assert "kept by the first" in await reply_of(there, turn_id)
    assert notes_of(world, turn_id) == []
    await there.kill()
    await there.start()


async def check_loss(world: Gateways) -> None:
    """A gateway that stays away is taken over from, after its processes have ended. The model hears of it."""
    here, there = world.each
    await say(here, "lost", call("write_file", path="a.txt", content="gone"))
    assert "Started" in await say(here, "lost", call("terminal", command=TICKS, background=True))
    await world.until("SELECT 1 FROM chats WHERE processes <> ''")
    await here.kill()
    turn_id = await there.begin("lost", call("terminal", command="ls"))
    assert "a.txt" not in await reply_of(there, turn_id)
    assert ticks(here.home, "lost")[-1] / 1e9 < begun_at(world, turn_id), "no process of both at a time"
    (note,) = notes_of(world, turn_id)
    assert "1 background process: " in note
    assert "while :; do date" in note
    assert "the files of the chat's folder" in note
    await here.start()
    count = len(ticks(here.home, "lost"))
    assert "gone" not in await say(here, "lost", call("terminal", command="cat a.txt"))
    assert len(notes_of(world, turn_id)) == 1, "it is told once"
    assert len(ticks(here.home, "lost")) == count
    assert world.ask("SELECT 1 FROM chats WHERE lost <> ''") == []


async def check_lost_database(world: Gateways, proxy: CuttingProxy) -> None:
    """A gateway that lives and has lost the database ends its processes before another takes over."""
    here, there = world.each
    assert "Started" in await say(here, "cut", call("terminal", command=TICKS, background=True))
    await ticking(here.home, "cut")
    proxy.lose()
    turn_id = await there.begin("cut", call("terminal", command=TICKS, background=True))
    assert "Started" in await reply_of(there, turn_id)
    assert len(notes_of(world, turn_id)) == 1
    await ticking(there.home, "cut")
    assert ticks(here.home, "cut")[-1] < ticks(there.home, "cut")[0], "no process of both at a time"
    proxy.is_gone = False
    assert "p" in await say(here, "cut", call("process", action="list"))
    assert world.ask("SELECT count(*) FROM chats WHERE processes <> ''") == [(1,)]
    await there.call("POST", "/api/sessions/cut/end")
    await world.until("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM chats WHERE processes <> '')")


async def test_with_shared_files_only_processes_tie_a_chat(postgres_database: str) -> None:  # noqa: F811
    with tempfile.TemporaryDirectory(prefix="talaria-shared-") as folder:
        settings = SETTINGS | {"STORE__FILES": folder}
        async with cluster(postgres_database, settings, settings) as world:
            await check_cut_off(world, Path(folder))
            members = world.ask("SELECT figures FROM members")  # which were renewed since the start
            mark = (Path(folder) / MARK).read_text().strip()
            assert [mark in figures for (figures,) in members] == [True, True]
            await check_move(world)


async def check_move(world: Gateways) -> None:
    here, there = world.each
    await say(here, "moves", call("terminal", command="echo everywhere > a.txt; mkdir b; cd b; export X=set"))
    await here.kill()
    assert "everywhere" in await say(there, "moves", call("terminal", command="cat ../a.txt; test $X = set"))
    upload = await there.call("POST", "/api/files?name=b.txt", data=b"uploaded")
    await there.call("POST", "/api/sessions/moves/messages", json={"text": "see", "files": [upload["id"]]})
    assert "uploaded" in await say(there, "moves", call("terminal", command="cat ../b.txt"))
    assert world.ask("SELECT 1 FROM chats WHERE place <> ''") == []


async def check_cut_off(world: Gateways, folder: Path) -> None:
    """The command of a gateway that is stopped ends before another gateway goes on with the chat."""
    here, there = world.each
    await here.begin("cut", call("terminal", command=TICKS))
    await world.until("SELECT 1 FROM steps WHERE state = 'started'")
    await ticking(folder, "cut")
    here.send_signal(signal.SIGSTOP)
    try:
        turn_id = await there.begin("cut", "/queue go on")
        assert "go on" in await reply_of(there, turn_id)
        assert ticks(folder, "cut")[-1] / 1e9 < begun_at(world, turn_id)
    finally:
        here.send_signal(signal.SIGCONT)
    await world.until_ready(here)
