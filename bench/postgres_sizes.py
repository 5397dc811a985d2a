"""What a turn costs on PostgreSQL with few and with many sessions in the database. The server syncs."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg

from bench.load import Client, fresh_names
from bench.postgres import count_trips
from bench.processes import gateway, model_server
from bench.table import Row, Wanted
from bench.turns import SESSIONS
from support.postgres_server import PostgresServer, running_server
from talaria.search.index import SIDE_FILE
from talaria.search.side_file import open_side_file

FEW, MANY = 1_000, 1_000_000
MOST_GROWTH = 1.2

# A filled table is synced instead of logged. Turns are logged and synced as everywhere.
SETTINGS = (
    "fsync=on",
    "synchronous_commit=on",
    "shared_buffers=128MB",
    "max_connections=100",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=4GB",
    "maintenance_work_mem=256MB",
)

# Sessions of the last twenty days, each with two turns of a question and an answer, in chats of their own.
_DAYS = 20
_TABLES = ("chats", "sessions", "turns", "entries", "steps", "usage")
_AT = f"extract(epoch FROM now()) - {_DAYS} * 86400.0 * (1 - n::float8 / %(many)s) - 600"
_SESSION = "'ses_' || lpad(n::text, 26, '0')"
_TURN = "'turn_' || lpad((2 * n + k)::text, 26, '0')"
_CHAT = "'agent:main:http:api:filled-' || n"
_WORDS = "'How are you today? I have ' || n || ' questions, and the first of them is about the weather.'"
_SERIES = "generate_series(1, %(many)s) AS n"
_PAIRS = f"{_SERIES}, generate_series(0, 1) AS k"
_FILL = (
    "INSERT INTO prefixes VALUES ('pre_bench', '{}', '[]') ON CONFLICT DO NOTHING",
    "INSERT INTO specs VALUES ('spec_bench', '{}', 'pre_bench') ON CONFLICT DO NOTHING",
    f"INSERT INTO chats (chat_key, session_id) SELECT {_CHAT}, {_SESSION} FROM {_SERIES}",
    f"""
    INSERT INTO sessions (id, chat_key, created_at, updated_at, epoch, seq, spec_id, title, ephemeral,
        lease_owner, lease_fence)
    SELECT {_SESSION}, {_CHAT}, {_AT}, {_AT}, 0, 5, 'spec_bench', {_WORDS}, 0, 'own_before', 2 FROM {_SERIES}
    """,
    f"""
    INSERT INTO turns (id, chat_key, session_id, state, inbound, accepted_at, command, started_at, ended_at,
        attempts, reply, usage, scope, digest, begun_by)
    SELECT {_TURN}, {_CHAT}, {_SESSION}, 'done', '{{"chat_key":"' || {_CHAT} || '","sender":{{"id":"api",'
        '"name":"API","is_operator":true}},"parts":[{{"type":"text","text":"' || {_WORDS} || '"}}]}}',
        {_AT}, '', {_AT}, {_AT}, 1, 'You said: ' || {_WORDS},
        '{{"input":3042,"cached":0,"output":8,"reasoning":0,"stored":0}}', '', '', 'own_before' FROM {_PAIRS}
    """,
    f"""
    INSERT INTO entries (session_id, seq, epoch, kind, turn_id, at, body)
    SELECT {_SESSION}, seq, 0, kind, CASE WHEN k >= 0 THEN {_TURN} END, {_AT}, CASE kind
        WHEN 'spec' THEN '{{"type":"spec","spec_id":"spec_bench"}}'
        WHEN 'user' THEN '{{"type":"user","parts":[{{"type":"text","text":"' || {_WORDS} || '"}}]}}'
        ELSE '{{"type":"assistant","text":"You said: ' || {_WORDS} || '","model":"scripted"}}' END
    FROM {_SERIES}, (VALUES (1, 'spec', -1), (2, 'user', 0), (3, 'assistant', 0), (4, 'user', 1),
        (5, 'assistant', 1)) AS e (seq, kind, k)
    """,
    f"""
    INSERT INTO steps (turn_id, n, kind, name, state, call_id, ended_at)
    SELECT {_TURN}, 1, 'model', 'scripted', 'ended', '', {_AT} FROM {_PAIRS}
    """,
    f"""
    INSERT INTO usage (turn_id, n, provider, model, input, cached, output, reasoning, at)
    SELECT {_TURN}, 1, 'bench', 'scripted', 3042, 0, 8, 0, {_AT} FROM {_PAIRS}
    """,
    "UPDATE counts SET n = %(many)s * CASE name WHEN 'sessions' THEN 1 ELSE 2 END"
    " WHERE part = 0 AND name IN ('sessions', 'done')",
)
_INDEXES = """
SELECT format('DROP INDEX %%I', indexname), indexdef FROM pg_indexes
WHERE tablename = ANY (%(tables)s) AND indexname NOT IN (SELECT conname FROM pg_constraint)
"""


def fill(url: str, many: int) -> None:
    """Put so many sessions into an empty database with the schema."""
    values = {"many": many, "tables": list(_TABLES)}
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET session_replication_role = replica")  # without the triggers that count
        with db.transaction():
            indexes = db.execute(_INDEXES.encode(), values).fetchall()
            db.execute(f"TRUNCATE {', '.join(_TABLES)}".encode())
            for drop, _ in indexes:
                db.execute(drop.encode())
            for statement in _FILL:
                db.execute(statement.encode(), values)
            for _, make in indexes:
                db.execute(make.encode())
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")


class SizeFigure(NamedTuple):
    """A figure of a turn: its name in the table, its unit, whether it is judged. Other work on the machine
    counts in those that are not."""

    name: str
    unit: str
    is_judged: bool = True


FIGURES = (
    SizeFigure("turn, alone: gateway", "ms CPU"),
    SizeFigure("turn, alone: server", "ms CPU"),
    SizeFigure("turn, alone: median", "ms", is_judged=False),
    SizeFigure(f"turn of {SESSIONS} sessions at once: gateway", "ms CPU"),
    SizeFigure(f"turn of {SESSIONS} sessions at once: server", "ms CPU"),
    SizeFigure(f"turn of {SESSIONS} sessions at once", "ms", is_judged=False),
    SizeFigure("turn: statements", ""),
    SizeFigure("turn: round trips", ""),
)


async def measure_sizes(sizes: tuple[int, int], turns: int, rounds: int) -> list[list[float]]:
    """Return the figures for each size. Rounds alternate; the best of each figure counts."""
    found: dict[int, list[list[float]]] = {size: [] for size in sizes}
    with model_server() as model, running_server(SETTINGS) as server:
        urls = {size: server.new_database() for size in sizes}
        for size, url in urls.items():
            fill(url, size)
        for _ in range(rounds):
            for size, url in urls.items():
                found[size].append(await _measure(model.url, server, url, turns))
    return [[min(each) for each in zip(*found[size], strict=True)] for size in sizes]


async def _measure(model_url: str, server: PostgresServer, url: str, turns: int) -> list[float]:
    with TemporaryDirectory(prefix="talaria-bench-") as folder:
        home = Path(folder)
        index = open_side_file(home / SIDE_FILE)  # an index that has the filled sessions already
        index.set_since(time.time())
        index.close()
        with gateway(model_url, settings={"TALARIA_STORE__URL": url}, home=home) as (served, token):
            client = Client(served.url, token)
            try:
                await client.run(fresh_names(SESSIONS), 10)
                marks = [(served.cpu(), server_cpu(server))]
                alone = await client.run(fresh_names(1), turns)
                marks.append((served.cpu(), server_cpu(server)))
                crowd = await client.run(fresh_names(SESSIONS), max(2, turns // 5))
                marks.append((served.cpu(), server_cpu(server)))
            finally:
                await client.close()
    figures = []
    for (before, after), load, seconds in zip(
        pairwise(marks), (alone, crowd), (alone.p50, 1 / crowd.per_second), strict=True
    ):
        cpu = [(after[i] - before[i]) / len(load.latencies) for i in (0, 1)]
        figures += [1000 * each for each in (*cpu, seconds)]
    trips = await count_trips(url, max(2, turns // 4))
    return [*figures, trips.statements, trips.round_trips]


def server_cpu(server: PostgresServer) -> float:
    """Return the CPU seconds of the server's processes so far, of those that have ended too."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in (str(server.pid), *children):
        with suppress(OSError):  # it has ended meanwhile
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return total


async def size_rows(scale: float) -> list[Row]:
    """Return the rows of the table for few and many sessions. Below a scale of 1 they are not judged."""
    sizes = FEW, max(FEW, round(MANY * scale))
    small, large = await measure_sizes(sizes, max(10, round(400 * scale)), 3 if scale >= 1 else 1)
    rows = []
    for figure, before, after in zip(FIGURES, small, large, strict=True):
        wanted = Wanted.AT_MOST if figure.is_judged and scale >= 1 else Wanted.FOR_COMPARISON
        rows += [
            Row(f"{figure.name}, {sizes[0]:,} sessions stored", before, figure.unit),
            Row(f"{figure.name}, {sizes[1]:,} sessions stored", after, figure.unit),
            Row("… growth", after / before, "×", wanted, MOST_GROWTH),
        ]
    return rows
