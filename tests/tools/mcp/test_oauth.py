"""OAuth logins at remote servers: the login itself, tokens that are renewed once, and logins that end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.mcp_world import open_world
from support.oauth_server import OAuthServer, oauth_server
from support.postgres_server import emptied_database, postgres, postgres_url  # noqa: F401 - fixtures
from support.waiting import until
from talaria.access.oauth import LoginNeeded, OAuthLogins
from talaria.core.clock import SystemClock
from talaria.core.errors import TalariaError, ToolError
from talaria.core.redaction import SecretRegistry
from talaria.mcp.login import Callback, McpLogin
from talaria.mcp.part import McpServer
from talaria.mcp.probe import probe_server
from talaria.store.in_memory import MemoryStore
from talaria.store.postgres.store import PostgresStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

SECRETS = SecretRegistry()


@pytest.fixture
async def service() -> AsyncIterator[OAuthServer]:
    async with oauth_server() as service:
        yield service


async def browse(address: str) -> None:
    """Open an address as a browser does, and follow where it leads."""
    async with aiohttp.ClientSession() as browser, browser.get(address) as page:
        assert "You are logged in" in await page.text()


def guarded(service: OAuthServer) -> McpServer:
    return McpServer(url=f"{service.url}/mcp", auth="oauth")


async def log_in(home: Path, service: OAuthServer, store: Store) -> None:
    async with Callback() as callback:
        login = McpLogin(guarded(service), callback, browse)
        probed = await probe_server(
            home, "one", guarded(service), {}, is_own_secret=lambda name: False, auth=login.auth
        )
        assert [*probed.tools] == ["plain"]
        await store.oauth.save(guarded(service).login, *login.outcome())


def logins_of(store: Store) -> OAuthLogins:
    return OAuthLogins(store.oauth, store.clock.now, SECRETS)


async def check_one_renews(service: OAuthServer, clock: FakeClock, stores: Sequence[Store]) -> None:
    """Gateways with these stores want a token that ends, all at once and a few times each."""
    name = guarded(service).login
    first = await logins_of(stores[0]).token(name, "")
    clock.advance(service.seconds - 30)
    gateways = [logins_of(store) for store in stores]
    tokens = await asyncio.gather(*(each.token(name, "") for each in gateways for _ in range(5)))
    assert len({*tokens}) == 1
    assert tokens[0] != first
    assert service.renewals == 1
    assert SECRETS(f"it is {tokens[0]}") != f"it is {tokens[0]}", "and no log shows it"


async def test_a_login_is_used_renewed_when_it_is_refused_and_named_when_it_is_over(
    tmp_path: Path, service: OAuthServer
) -> None:
    async with MemoryStore(SystemClock()) as store:
        await log_in(tmp_path, service, store)
        async with open_world(tmp_path, {"one": guarded(service)}, store=store) as world:
            await world.ready()
            assert await world.ok("mcp_one_plain") == "reached"
            service.valid.clear()
            assert await world.ok("mcp_one_plain") == "reached"
            assert service.renewals == 1
            service.revoke()
            await world.error("mcp_one_plain")
            needed = "The login is over: the service says invalid_grant. Log in: `talaria mcp login one`."
            await until(lambda: needed in world.source.servers()["one"].trouble)


async def test_of_all_gateways_one_renews_a_token(tmp_path: Path, service: OAuthServer) -> None:
    clock = FakeClock(1_000_000_000.0)
    async with MemoryStore(clock) as store:
        await log_in(tmp_path, service, store)
        await check_one_renews(service, clock, [store] * 4)


async def test_of_two_gateways_on_one_database_one_renews_a_token(
    tmp_path: Path,
    service: OAuthServer,
    postgres_url: str,  # noqa: F811
) -> None:
    clock = FakeClock(1_000_000_000.0)
    async with (
        await PostgresStore.open(postgres_url, clock, connections=6) as one,
        await PostgresStore.open(postgres_url, clock, connections=6) as two,
    ):
        await log_in(tmp_path, service, one)
        await check_one_renews(service, clock, [one, two])


ELSEWHERE = "ELSEWHERE"  # clear text to another host than the server's, which answers


@pytest.mark.parametrize(
    ("attack", "shown"),
    [
        ({"resource": {"resource": "https://bank.example/mcp"}}, 0),
        ({"resource": {"authorization_servers": [ELSEWHERE]}}, 0),
        ({"metadata": {"issuer": "https://bank.example"}}, 0),
        ({"metadata": {"registration_endpoint": f"{ELSEWHERE}/register"}}, 0),
        ({"metadata": {"authorization_endpoint": f"{ELSEWHERE}/authorize"}}, 0),
        ({"metadata": {"token_endpoint": f"{ELSEWHERE}/token"}}, 1),
        ({"metadata": {"authorization_response_iss_parameter_supported": True}}, 1),
        ({"back": {"state": "of another login"}}, 1),
        ({"back": {"iss": "https://bank.example"}}, 1),
    ],
    ids=lambda attack: "-".join(str(attack)[:40].split("'")[1:4:2]),
)
async def test_a_login_that_somebody_leads_astray_ends_without_a_token(
    tmp_path: Path, service: OAuthServer, attack: dict[str, Any], shown: int
) -> None:
    for name, value in attack.items():
        text = json.dumps(value).replace(ELSEWHERE, service.url.replace("127.0.0.1", "localhost"))
        setattr(service, name, json.loads(text))
    opened = []

    async def visit(address: str) -> None:
        opened.append(address)
        await browse(address)

    async with Callback() as callback:
        login = McpLogin(guarded(service), callback, visit)
        with pytest.raises(TalariaError):
            await probe_server(
                tmp_path, "one", guarded(service), {}, is_own_secret=lambda name: False, auth=login.auth
            )
        with pytest.raises(ToolError, match="did not ask for a login"):
            login.outcome()
    assert len(opened) == shown
    assert not service.valid


async def test_a_service_that_is_busy_ends_no_login(tmp_path: Path, service: OAuthServer) -> None:
    async with MemoryStore(SystemClock()) as store:
        await log_in(tmp_path, service, store)
        name, logins = guarded(service).login, logins_of(store)
        old = await logins.token(name, "")
        service.is_busy = True
        with pytest.raises(ToolError, match="status 503"):
            await logins.token(name, "", refused=old)
        service.is_busy = False
        assert await logins.token(name, "", refused=old) != old


async def test_a_renewal_is_written_though_its_caller_is_cancelled(
    tmp_path: Path, service: OAuthServer
) -> None:
    async with MemoryStore(SystemClock()) as store:
        await log_in(tmp_path, service, store)
        name, logins = guarded(service).login, logins_of(store)
        old = await logins.token(name, "")
        call = asyncio.create_task(logins.token(name, "", refused=old))
        await until(lambda: service.renewals == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await logins.token(name, "") != old
        assert service.renewals == 1


async def test_nobody_has_logged_in(tmp_path: Path, service: OAuthServer) -> None:
    async with MemoryStore(SystemClock()) as store:
        with pytest.raises(LoginNeeded, match="Nobody has logged in"):
            await logins_of(store).token("mcp:x", "")
        async with open_world(tmp_path, {"one": guarded(service)}, store=store) as world:
            await until(lambda: "talaria mcp login one" in world.source.servers()["one"].trouble)


async def test_the_callback_takes_its_own_address_only() -> None:
    async with Callback() as callback:
        base = callback.url.rpartition("/")[0]
        for other in (f"{base}/?code=x", "not an address", f"{callback.url}?state=1", callback.url):
            assert not callback.paste(other)
        async with aiohttp.ClientSession() as browser, browser.get(f"{base}/?code=x") as page:
            assert page.status == 404
        assert callback.paste(f"{callback.url}?error=access_denied")
        with pytest.raises(ToolError, match="refused the login: access_denied"):
            await callback.wait()
