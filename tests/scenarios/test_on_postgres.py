"""A real gateway on a real PostgreSQL: it answers what was accepted, over its own death and the server's."""

from __future__ import annotations

import signal
import subprocess
import sys

import aiohttp
import pytest

from postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from scenarios.test_kill import check_kill
from talaria.testing.gateway_process import GatewayProcess, running_gateway


async def test_what_was_accepted_is_answered_over_a_kill_and_a_crash_of_the_server(
    postgres: PostgresServer,  # noqa: F811
    postgres_database: str,  # noqa: F811
) -> None:
    async with running_gateway({"STORE__URL": postgres_database}) as (gateway, server):
        await check_kill(gateway, server, 3)
        assert not (gateway.home / "talaria.db").exists()
        await _lose_the_server(gateway, postgres)
        _refuse(gateway, postgres_database)
        await gateway.kill(signal.SIGTERM)
        assert await gateway.wait() == 0
        _copy(gateway, postgres_database)


async def _lose_the_server(gateway: GatewayProcess, server: PostgresServer) -> None:
    """A message is refused with the reason while the server is gone, and the next one is served."""
    server.stop("immediate")
    try:
        with pytest.raises(aiohttp.ClientResponseError) as refused:
            await gateway.call("POST", "/api/sessions/chat-0/messages", json={"text": "lost"})
        assert refused.value.status == 503
        with pytest.raises(aiohttp.ClientResponseError) as unready:
            await gateway.call("GET", "/readyz")
        assert unready.value.status == 503
    finally:
        server.start()
    ticket = None
    while ticket is None:
        try:
            ticket = await gateway.call("POST", "/api/sessions/chat-0/messages", json={"text": "back"})
        except aiohttp.ClientResponseError as error:
            assert error.status == 503
    assert (await gateway.ended_turn(ticket["turn_id"]))["reply"] == "You said: back"


def _talaria(gateway: GatewayProcess, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "talaria", *words, "--home", str(gateway.home)]
    environ = {"TALARIA_STORE__URL": url}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def _refuse(gateway: GatewayProcess, url: str) -> None:
    """The database of a running gateway is not copied by `store copy`."""
    told = _talaria(gateway, url, "store", "copy", "--to", "sqlite:copy.db")
    assert told.returncode != 0
    assert "is using the home" in told.stderr


def _copy(gateway: GatewayProcess, url: str) -> None:
    told = _talaria(gateway, url, "store", "copy", "--to", "sqlite:copy.db")
    assert told.returncode == 0, told.stderr
    assert "compared each of them" in told.stdout
    assert (gateway.home / "copy.db").exists()
