"""The figures of a gateway on a home that has lived: its start, a turn, memory, lists, and a backup of it."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.load import Client, fresh_names
from bench.processes import Metered, gateway, model_server
from talaria.store.sqlite.faults import driver

SEARCHED = "lighthouse7"
_ASKED = 21
_REST_SECONDS = 300
_REST_CPU = 0.03  # seconds in one second
_KEPT = {"TALARIA_RETENTION__JOB_SESSIONS": "365d"}  # as while the home lived: old runs are not pruned now


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """How much is measured. Of the starts and the rounds the best counts: other work can only add to it."""

    starts: int = 3
    rounds: int = 5
    turns: int = 100


@dataclass(frozen=True, slots=True)
class HomeFigures:
    """CPU seconds of a start and of a turn, resident bytes afterwards, and milliseconds of a list of sessions
    and of a search."""

    start: float
    turn: float
    rss: int
    sessions: float
    search: float


async def probe(home: Path, size: ProbeSize) -> HomeFigures:
    """Start the gateway on the home, let it answer, and stop it."""
    with model_server() as model:
        with gateway(model.url, home=home, settings=_KEPT) as (served, token):
            await _fill_index(served.url, token)
        starts = []
        for _ in range(size.starts - 1):
            with gateway(model.url, home=home, settings=_KEPT) as (served, _):
                starts.append(served.cpu())
        with gateway(model.url, home=home, settings=_KEPT) as (served, token):
            starts.append(served.cpu())
            client = Client(served.url, token)
            try:
                await client.run(fresh_names(4), size.turns // 4)
                await _rest(served)
                turn = min([await _turn_cpu(client, served, size.turns) for _ in range(size.rounds)])
                return HomeFigures(
                    start=min(starts),
                    turn=turn,
                    rss=served.rss(),
                    sessions=await _milliseconds(served.url, token, "/api/sessions"),
                    search=await _milliseconds(served.url, token, f"/api/search?q={SEARCHED}"),
                )
            finally:
                await client.close()


async def _fill_index(url: str, token: str) -> None:
    """Wait until searches are complete: the virtual months leave the index behind, and it is filled now."""
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(url, headers=headers, raise_for_status=True) as session:
        for _ in range(_REST_SECONDS):
            async with session.get("/api/search", params={"q": SEARCHED}) as answer:
                if (await answer.json())["is_complete"]:
                    return
    raise SystemExit("the index of searches is not filled in time")


async def _rest(served: Metered) -> None:
    """Wait until the process does nothing by itself."""
    for _ in range(_REST_SECONDS):
        before = served.cpu()
        await asyncio.sleep(1)
        if served.cpu() - before < _REST_CPU:
            return


async def _turn_cpu(client: Client, served: Metered, turns: int) -> float:
    before = served.cpu()
    await client.run(fresh_names(1), turns)
    return (served.cpu() - before) / turns


async def _milliseconds(url: str, token: str, path: str) -> float:
    """Return the median time of a call, after one that nobody counts."""
    times = []
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as session:
        for _ in range(_ASKED + 1):
            began = time.perf_counter()
            async with session.get(url + path) as answer:
                await answer.read()
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times[1:])


async def back_up(home: Path, folder: Path) -> bool:
    """Save the home while its gateway answers messages, and restore it elsewhere. Return whether the copy is
    whole: undamaged, and with every message that was there before."""
    before = count_messages(home)
    archive, copy = folder / "home.tar.gz", folder / "restored"
    with model_server() as model, gateway(model.url, home=home, settings=_KEPT) as (served, token):
        client = Client(served.url, token)
        saving = asyncio.create_task(_talaria(home, "backup", str(archive)))
        try:
            while not saving.done():
                await client.run(fresh_names(2), 5)
            await saving
        finally:
            await client.close()
    await _talaria(copy, "restore", str(archive))
    with closing(driver.connect(copy / "talaria.db")) as database:
        is_whole = [row[0] for row in database.execute("PRAGMA integrity_check(1)")] == ["ok"]
    return is_whole and count_messages(copy) >= before


async def _talaria(home: Path, *words: str) -> None:
    environ = {**os.environ, "TALARIA_HOME": str(home)}
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "talaria", *words, env=environ, stdout=subprocess.DEVNULL
    )
    if status := await command.wait():
        raise SystemExit(f"talaria {words[0]} ended with {status}")


MESSAGES = "kind IN ('user', 'assistant', 'tool_results')"


def count_messages(home: Path) -> int:
    """Of a home whose gateway does not run."""
    with closing(driver.connect(home / "talaria.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM entries WHERE {MESSAGES}").fetchone()[0])
