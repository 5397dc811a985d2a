"""A gateway that cannot serve a database beside others is refused at its start, and told of by the doctor."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psycopg
import pytest

from support.gateway import without_http
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.channels.http.http_channel import HttpChannel
from talaria.channels.http.part import HTTP
from talaria.cli.gateway_checks import check_cluster
from talaria.cluster.following import PeerUnreachable
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.member_checks import read_boot
from talaria.cluster.membership import ClusterSettings, join_cluster
from talaria.config.load import load
from talaria.core.clock import SystemClock
from talaria.core.cluster import Member, MemberFigures
from talaria.core.errors import ConfigError
from talaria.core.ids import OwnerId, PlaceId
from talaria.core.problems import Severity
from talaria.gateway import Gateway
from talaria.parts import PARTS
from talaria.store.postgres.store import PostgresStore

OTHER = Member(
    OwnerId("own_other"),
    PlaceId("plc_other"),
    boot=read_boot(),
    host="web-2",
    url="http://127.0.0.1:1",  # where nothing listens
    version="1.0",
    schema=24,
    started_at=1.0,
)
FAR = msgspec.structs.replace(OTHER, boot="another machine")
TOKEN = {"TALARIA_CLUSTER_TOKEN": "a-token-of-the-cluster"}


def environ_of(url: str, **more: str) -> dict[str, str]:
    given = {"STORE__URL": url, "SHUTDOWN__DEADLINE": "100ms", "HTTP__PORT": "0", "HTTP_TOKEN": "t" * 32}
    return {f"TALARIA_{name}": value for name, value in (given | more).items()}


@asynccontextmanager
async def serving(home: Path, environ: dict[str, str]) -> AsyncIterator[Gateway]:
    async with without_http(home, environ=environ, channels=(HTTP,)) as gateway:
        yield gateway


async def status_of(gateway: Gateway) -> Any:
    http = gateway.channels["http"]
    assert isinstance(http, HttpChannel)
    headers = {"Authorization": f"Bearer {'t' * 32}"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{http.server.address}/api/status") as answer,
    ):
        return await answer.json()


async def join(url: str, member: Member) -> None:
    async with await PostgresStore.open(url, SystemClock()) as store:
        await store.cluster.join(member, 600.0)


def living(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as db:
        rows = db.execute(
            "SELECT owner FROM members WHERE expires_at > extract(epoch FROM clock_timestamp())"
        )
        return [owner for (owner,) in rows]


async def test_a_gateway_that_cannot_serve_beside_another_is_refused(
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    environ = environ_of(postgres_database)
    async with serving(tmp_path, environ) as gateway:
        assert gateway.overview is not None
        assert gateway.overview.troubles() == (), "a gateway alone needs no token"
        await join(postgres_database, FAR)
        await gateway.overview.look()
        token, address = gateway.overview.troubles()
        assert "no cluster token" in token
        assert "cannot reach this gateway at http://127.0.0.1" in address
        status = await status_of(gateway)
        assert [member["state"] for member in status["cluster"]["members"]] == ["alive", "alive"]
        assert len(status["cluster"]["troubles"]) == 2
        assert status["ready"], "its own turns run all the same"
    for more, said in (({}, "has no cluster token"), (TOKEN, "cannot reach this gateway")):
        with pytest.raises(ConfigError, match=said):
            async with serving(tmp_path, environ | more):
                pass
        assert living(postgres_database) == [FAR.owner], "it has left"
    short = {**environ, "TALARIA_CLUSTER_TOKEN": "short"}
    with pytest.raises(ConfigError, match="has 5 characters"):
        async with serving(tmp_path, short):
            pass
    found = [each async for each in check_cluster(load(tmp_path, short, PARTS).settings, short, None)]
    assert "has 5 characters" in found[0].text
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o700)
    near = {**environ, **TOKEN, "TALARIA_STORE__FILES": str(folder)}
    apart = msgspec.structs.replace(
        OTHER,
        owner=OwnerId("own_apart"),
        has_shared_files=True,
        figures=MemberFigures(files="another-folder"),
    )
    await join(postgres_database, apart)  # in the place of the other, which ends
    with pytest.raises(ConfigError, match="is another folder"):
        async with serving(tmp_path / "home", near):
            pass
    await join(postgres_database, msgspec.structs.replace(FAR, owner=OwnerId("own_far")))
    found = [each async for each in check_cluster(load(tmp_path, environ, PARTS).settings, environ, None)]
    assert [each.severity for each in found] == [Severity.OK, Severity.OK, Severity.PROBLEM]
    assert "cannot reach this gateway at http://127.0.0.1" in found[-1].text
    good = {**environ, **TOKEN, "TALARIA_CLUSTER__ADVERTISE_URL": "http://10.0.0.1:8765"}
    async with serving(tmp_path, good) as gateway:
        assert gateway.overview is not None
        await gateway.overview.look()
        await gateway.overview.greet()
        (lost,) = gateway.overview.troubles()
        assert "cannot be reached, so what runs there is shown late" in lost
        status = await status_of(gateway)
        assert status["ready"], "a split between gateways stops no turns"
        others = [member for member in status["cluster"]["members"] if not member["is_here"]]
        (other,) = [member for member in others if member["state"] != "gone"]
        assert "cannot be reached" in other["unreachable"]
        found = [each async for each in check_cluster(load(tmp_path, good, PARTS).settings, good, status)]
        assert "2 gateways serve the database" in found[0].text
        page = gateway.metrics.render().decode()
        assert f'member="{gateway.overview.me.place}"' in page
        assert 'talaria_members{state="alive"} 2.0' in page
        assert f'talaria_members_unreachable{{member="{gateway.overview.me.place}"}} 1.0' in page


async def test_a_member_that_leaves_closes_its_connections_to_the_others(
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    clock, settings = SystemClock(), ClusterSettings()
    async with await PostgresStore.open(postgres_database, clock) as store:
        keeper = LeaseKeeper(store, clock, OwnerId("own_me"), 30.0)
        async with join_cluster(store, clock, keeper, settings, tmp_path, environ=TOKEN) as scope:
            with pytest.raises(PeerUnreachable):
                await scope.peers.greet(OTHER)
        del scope
        gc.collect()  # an open client session would say so here
