"""The schemas of both engines: the same tables, columns, keys and indexes, in files with the same numbers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from store.cutting_proxy import cutting_proxy
from store.sql_statements import STATEMENTS
from support.postgres_server import PostgresServer, running_server
from talaria.core.clock import SystemClock
from talaria.core.cluster import Member
from talaria.core.errors import ForeignDatabase, StoreError
from talaria.core.ids import OwnerId, PlaceId
from talaria.store.copying import copy_store
from talaria.store.postgres import schema
from talaria.store.postgres.checks import check_postgres, read_members
from talaria.store.postgres.pipeline import numbered
from talaria.store.postgres.schema import migrate, read_version
from talaria.store.postgres.store import PostgresStore
from talaria.store.sql import locks
from talaria.store.sqlite.database import open_memory
from talaria.store.sqlite.schema import latest_version

TYPES = {"INTEGER": "bigint", "REAL": "double precision", "TEXT": "text", "BLOB": "bytea"}
# PostgreSQL alone: the numbers of orders, and the version, which SQLite has in its header. `counts` has
# several rows for a number there.
ONLY_POSTGRES = {"order_marks", "talaria_schema"}
OTHERWISE = {"counts"}

Table = tuple[dict[str, tuple[str, bool, str | None]], set[tuple[str, ...]], set[tuple[str, ...]]]


def _plain(sql: str) -> str:
    """An expression without what one engine adds to it: brackets, types, spaces."""
    return re.sub(r"[()\s\"]|::\w+", "", sql).lower()


def _sqlite_tables() -> dict[str, Table]:
    """Columns (type, whether NULL is refused, default), unique keys, other indexes with their conditions."""
    db = open_memory()
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    tables = {name: _sqlite_table(db, name) for name in names if not name.startswith("sqlite_")}
    db.close()
    return tables


def _sqlite_table(db: Any, name: str) -> Table:
    columns: dict[str, tuple[str, bool, str | None]] = {}
    unique, others = set[tuple[str, ...]](), set[tuple[str, ...]]()
    rows = db.execute(f"PRAGMA table_info({name})").fetchall()
    key = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
    for _, column, kind, is_required, default, _ in rows:
        is_number = key == [column] and kind == "INTEGER"  # SQLite counts by itself
        columns[column] = (TYPES[kind], bool(is_required) or is_number, default)
    unique.add(tuple(key))
    for _, index, is_unique, _, is_partial in db.execute(f"PRAGMA index_list({name})").fetchall():
        found = [row[2] for row in db.execute(f"PRAGMA index_info({index})")]
        if is_partial:
            (sql,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (index,)).fetchone()
            found.append(_plain(sql.partition("WHERE")[2]))
        (unique if is_unique else others).add(tuple(found))
    return columns, unique, others


def _postgres_tables(url: str) -> dict[str, Table]:
    with psycopg.connect(url) as db:
        names = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {name: _postgres_table(db, name) for (name,) in names}


def _postgres_table(db: psycopg.Connection[Any], name: str) -> Table:
    columns = {
        column: (kind, is_nullable == "NO", None if default is None else re.sub(r"::\w+", "", default))
        for column, kind, is_nullable, default in db.execute(
            "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_name = %s AND table_schema = 'public'",
            [name],
        )
    }
    unique, others = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for is_unique, found, condition in db.execute(
        "SELECT i.indisunique,"
        " ARRAY(SELECT pg_get_indexdef(i.indexrelid, k + 1, true) FROM generate_subscripts(i.indkey, 1) k),"
        " pg_get_expr(i.indpred, i.indrelid) FROM pg_index i WHERE i.indrelid = %s::regclass",
        [name],
    ):
        plain = tuple(map(_plain, found))
        row = plain if condition is None else (*plain, _plain(condition))
        (unique if is_unique else others).add(row)
    return columns, unique, others


def test_both_engines_have_the_same_tables(postgres_url: str) -> None:
    ours, theirs = _sqlite_tables(), _postgres_tables(postgres_url)
    assert set(theirs) - ONLY_POSTGRES == set(ours)
    for name in set(ours) - OTHERWISE:
        assert theirs[name] == ours[name], name


def test_both_engines_count_the_same_things(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as db:
        theirs = {row[0] for row in db.execute("SELECT name FROM counts")}
    assert theirs == {row[0] for row in open_memory().execute("SELECT name FROM counts")}


def test_both_engines_have_the_same_version() -> None:
    """A new file of SQLite's migrations needs one of the same number in store/postgres/migrations."""
    numbers = [number for number, _ in schema.migrations()]
    assert numbers == list(range(numbers[0], latest_version() + 1))


def test_text_is_compared_byte_by_byte(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as db:
        others = db.execute(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'public' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'"
        ).fetchall()
    assert others == []


LOCKS = {
    name: sql for name, sql in vars(locks).items() if isinstance(sql, str) and sql.strip()[:6] == "SELECT"
}


def test_every_statement_can_be_prepared(postgres_url: str) -> None:
    assert len(LOCKS) > 10
    with psycopg.connect(postgres_url, autocommit=True) as db:
        for i, sql in enumerate((*STATEMENTS.values(), *LOCKS.values())):
            db.execute(f"PREPARE s{i} AS {numbered(sql)}".encode())


def test_a_database_of_another_program_is_left_alone(postgres: PostgresServer) -> None:
    url = postgres.new_database("template1")
    try:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE sessions (id INTEGER)")
            with pytest.raises(ForeignDatabase, match="another program"):
                migrate(db)
    finally:
        postgres.drop(url)


def test_a_newer_database_is_left_alone(postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as db:
        db.execute("UPDATE talaria_schema SET version = 9999, compatible_from = 9998")
        with pytest.raises(StoreError, match="newer Talaria"):
            read_version(db)


async def test_a_newer_database_that_this_program_can_follow_is_used_but_not_copied(
    postgres_database: str, tmp_path: Path
) -> None:
    latest = latest_version()
    with psycopg.connect(postgres_database, autocommit=True) as db:
        db.execute("UPDATE talaria_schema SET version = %s, compatible_from = %s", [latest + 1, latest])
        migrate(db)
        assert read_version(db) == latest + 1
    with pytest.raises(StoreError, match="does not know"):
        await copy_store(postgres_database, f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "b.db", print)


def test_an_upgrade_that_older_gateways_cannot_follow_waits_for_their_end(postgres_database: str) -> None:
    old = 22  # the step after it is not compatible
    with psycopg.connect(postgres_database, autocommit=True) as db:
        db.execute("UPDATE talaria_schema SET version = %s", [old])
        db.execute(
            "INSERT INTO members (owner, place, boot, host, url, version, schema, started_at, expires_at,"
            " figures) VALUES ('o', 'p', 'b', 'anna', 'u', '0.9', %s, 0, 1e12, '{}')",
            [old],
        )
        with pytest.raises(StoreError, match=rf"cannot follow: anna \(Talaria 0.9, schema {old}\)"):
            migrate(db)
        assert read_version(db) == old


def test_doctor_looks_at_the_database(postgres: PostgresServer, postgres_url: str) -> None:
    texts = [finding.text for finding in check_postgres(postgres_url, 8)]
    assert texts[0].startswith("PostgreSQL ") and texts[0].endswith(f"schema {latest_version()}.")
    assert any("fsync = off" in text for text in texts)
    assert any("100 for all" in finding.text for finding in check_postgres(postgres_url, 90))
    (gone,) = check_postgres("postgresql://u@127.0.0.1:1/x", 8)
    assert "cannot be reached" in gone.text
    (missing,) = check_postgres(postgres.url("nowhere"), 8)
    assert "does not exist" in missing.text


def test_doctor_tells_of_a_pooler(postgres_url: str) -> None:
    with cutting_proxy(postgres_url) as (proxy, url):
        assert not any("pooler" in finding.text for finding in check_postgres(url, 8))
        proxy.is_pooler = True
        assert any("pooler" in finding.text for finding in check_postgres(url, 8))


async def test_doctor_counts_the_gateways_and_looks_at_the_rights_of_the_user(
    postgres: PostgresServer, postgres_database: str
) -> None:
    member = Member(OwnerId("own_a"), PlaceId("plc_a"), "boot", "web-1", "http://10.0.0.1:1", "1.0", 22, 1.0)
    async with await PostgresStore.open(postgres_database, SystemClock()) as store:
        assert read_members(postgres_database) == []
        await store.cluster.join(member, 600.0)
        other = msgspec.structs.replace(member, owner=OwnerId("own_b"), place=PlaceId("plc_b"))
        await store.cluster.join(other, 600.0)
        await store.cluster.join(
            msgspec.structs.replace(other, owner=OwnerId("own_c"), place=PlaceId("plc_c")), 0.0
        )
    assert [each.owner for each in read_members(postgres_database)] == ["own_a", "own_b"]
    texts = [finding.text for finding in check_postgres(postgres_database, 50)]
    assert any("2 gateways may open 77 connections each, and the server has 100" in text for text in texts)
    assert read_members("postgresql://u@127.0.0.1:1/x") == []
    with psycopg.connect(postgres_database, autocommit=True) as db:
        db.execute("CREATE ROLE reader LOGIN")
        try:
            db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
            texts = [
                finding.text
                for finding in check_postgres(postgres_database.replace("talaria@", "reader@"), 8)
            ]
            assert any("reader may not read and write all tables" in text for text in texts)
            db.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO reader")
            texts = [
                finding.text
                for finding in check_postgres(postgres_database.replace("talaria@", "reader@"), 8)
            ]
            assert any("reader does not own the tables" in text for text in texts)
        finally:
            db.execute("DROP OWNED BY reader")
            db.execute("DROP ROLE reader")


async def test_a_database_that_cannot_serve_is_refused_in_plain_words(postgres: PostgresServer) -> None:
    postgres.execute("CREATE ROLE poor LOGIN")
    postgres.execute("CREATE DATABASE latin ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    refused = {
        postgres.url("postgres").replace("talaria@", "poor@"): "permission denied for schema public",
        postgres.url("latin"): "holds texts as LATIN1",
        "postgresql://u:se%zzcret@127.0.0.1/d": "not an address that PostgreSQL's library can read",
    }
    for url, why in refused.items():
        with pytest.raises(StoreError, match=why) as raised:
            await PostgresStore.open(url, SystemClock())
        assert "zzcret" not in "".join(traceback.format_exception(raised.value)).replace(url, "")
    postgres.execute("DROP DATABASE latin")


async def test_starts_at_once_overrule_the_defaults_of_a_database(postgres: PostgresServer) -> None:
    """Read-only, or at an isolation at which the second start would not see the first one's tables."""
    url = postgres.new_database("template1")
    name = url.rpartition("/")[2]
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    for store in await asyncio.gather(*(PostgresStore.open(url, SystemClock()) for _ in range(4))):
        await store.probe()
        await store.close()
    postgres.drop(url)


async def test_a_standby_is_told_of_and_serves_when_it_is_promoted(postgres: PostgresServer) -> None:
    assert postgres.pid, "a machine without PostgreSQL skips this"
    with running_server(("fsync=off", "hot_standby=on"), is_standby=True) as standby:
        url = standby.url("postgres")
        with pytest.raises(StoreError, match="standby mode"):
            await PostgresStore.open(url, SystemClock())
        (finding,) = check_postgres(url, 8)
        assert "standby mode" in finding.text
        standby.execute("SELECT pg_promote()")
        async with await PostgresStore.open(url, SystemClock()) as store:
            await store.probe()


def test_psycopg_is_not_imported_with_sqlite() -> None:
    code = (
        "import sys, talaria.parts, talaria.app, talaria.store.part\n"
        "sys.exit(any(name.startswith(('psycopg', 'talaria.store.postgres')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
