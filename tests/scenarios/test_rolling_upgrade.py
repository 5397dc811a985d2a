"""Gateways of two versions on one database, for one step of its schema."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psycopg
import pytest

import talaria
from support.earlier_version import earlier_version  # noqa: F401 - a fixture
from support.gateway import real_process
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.core.errors import StoreError
from talaria.store.copying import copy_store
from talaria.store.postgres import schema
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

ADDS = """
ALTER TABLE turns ADD COLUMN mood TEXT COLLATE "C" NOT NULL DEFAULT 'calm';
CREATE TABLE moods (name TEXT);
"""


def make_program(folder: Path, migrations: Mapping[str, str]) -> Path:
    """Make a source tree of this program with more migrations. All other files are links to this one's."""
    real = Path(talaria.__file__).parent
    made = folder / "talaria"
    for part in ("", "store", "store/postgres"):
        (made / part).mkdir(parents=True)
        for path in (real / part).iterdir():
            if path.name not in ("store", "postgres", "migrations"):
                (made / part / path.name).symlink_to(path)
    (made / "store/postgres/migrations").mkdir()
    for path in (real / "store/postgres/migrations").iterdir():
        (made / "store/postgres/migrations" / path.name).symlink_to(path)
    for name, text in migrations.items():
        (made / "store/postgres/migrations" / name).write_text(text)
    return folder


def gateway_on(
    url: str, folder: Path, model: ModelServer, name: str, source: Path | None = None
) -> AbstractAsyncContextManager[GatewayProcess]:
    settings = {"STORE__URL": url, "CLUSTER__LEASE": "2s", "CLUSTER_TOKEN": "one-token-for-all-gateways"}
    return real_process(folder, model, settings, name=name, starts=False, source=source)


async def say(gateway: GatewayProcess, chat: str, text: str) -> str:
    return str((await gateway.say(chat, text))["reply"])


def read_row(url: str, sql: str) -> tuple[object, ...]:
    return read_rows(url, sql)[0]


def read_rows(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql.encode()).fetchall()


@pytest.mark.long
async def test_gateways_of_two_versions_serve_one_database_for_one_step(
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    url, latest = postgres_database, schema.latest_version()
    adds = {f"{latest + 1:04}_moods.sql": f"-- compatible_from: {latest}\n{ADDS}"}
    breaks = {**adds, f"{latest + 2:04}_gone.sql": "ALTER TABLE turns DROP COLUMN mood;\n"}
    newer = make_program(tmp_path / "newer", adds)
    newest = make_program(tmp_path / "newest", breaks)
    async with ModelServer(record=False) as model:
        async with gateway_on(url, tmp_path, model, "old") as old:
            await old.start()
            assert await say(old, "a", "one") == "You said: one"
            async with gateway_on(url, tmp_path, model, "new", newer) as new:
                await new.start()
                assert read_row(url, "SELECT version, compatible_from FROM talaria_schema") == (
                    latest + 1,
                    latest,
                )
                assert await say(old, "a", "two") == "You said: two", "its statements go on"
                assert await say(new, "a", "three") == "You said: three"
                await old.kill()
                await old.start()  # onto a database that is newer than it
                assert await say(old, "b", "four") == "You said: four"
                async with gateway_on(url, tmp_path, model, "newest", newest) as refused:
                    with pytest.raises(RuntimeError, match="older gateways cannot follow"):
                        await refused.start()
                await new.kill(signal.SIGTERM)
            await old.kill(signal.SIGTERM)
        with pytest.raises(StoreError, match="which this program does not know"):
            await copy_store(url, f"sqlite:///{tmp_path / 'copy.db'}", tmp_path / "x.db", lambda *_: None)
        async with gateway_on(url, tmp_path, model, "newest", newest) as last:
            await last.start()
            assert await say(last, "a", "five") == "You said: five"
            async with gateway_on(url, tmp_path, model, "old") as old:
                with pytest.raises(RuntimeError, match="written by a newer Talaria"):
                    await old.start()
    assert read_row(url, "SELECT count(*) FROM turns WHERE state = 'done'") == (5,)


async def test_the_version_before_serves_beside_this_one(
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
    earlier_version: Path,  # noqa: F811
) -> None:
    url = postgres_database
    async with (
        ModelServer(record=False) as model,
        gateway_on(url, tmp_path, model, "old", earlier_version) as old,
        gateway_on(url, tmp_path, model, "new") as new,
    ):
        await old.start()
        assert await say(old, "a", "one") == "You said: one"
        await new.start()
        schemas = {row[0] for row in read_rows(url, "SELECT schema FROM members")}
        assert schemas == {24, schema.latest_version()}
        for number, gateway in enumerate(
            (new, old, new, old)
        ):  # the chats are at both, and asked for at both
            assert await say(gateway, "a", f"a{number}") == f"You said: a{number}"
            assert await say(gateway, f"b{number % 2}", f"b{number}") == f"You said: b{number}"
        status = await new.call("GET", "/api/status")
        assert status["ready"]
        assert status["cluster"]["troubles"] == []
        status = await old.call("GET", "/api/status")
        assert status["cluster"]["troubles"] == [], "its token is accepted"
        await old.kill(signal.SIGTERM)
        assert await say(new, "a", "last") == "You said: last"


def test_each_migration_says_which_programs_go_on() -> None:
    """A file that only adds names an older schema, but none that a file before it has ended."""
    oldest = 0
    for number, file in schema.migrations():
        assert oldest <= schema.compatible_from(number, file) <= number, file
        oldest = schema.compatible_from(number, file)
    first, *_ = schema.migrations()
    assert schema.compatible_from(*first) == first[0]
