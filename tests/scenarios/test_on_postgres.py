"""A real gateway on a real PostgreSQL: it answers what was accepted, over its own death and the server's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from scenarios.test_kill import check_kill
from support.gateway import running_gateway
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.testing.gateway_process import GatewayProcess


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


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_messages_that_a_backup_found_unanswered_are_answered_after_a_restore(
    engine: str,
    postgres: PostgresServer,  # noqa: F811
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A turn runs and another one waits while the backup is made. The gateway that made it is lost."""
    settings = {"STORE__URL": postgres_database, "CLUSTER__LEASE": "6s"}
    async with running_gateway(settings) as (gateway, server):
        texts = ("[[first 1 hang]] first", "second")
        path = "/api/sessions/chat/messages"
        tickets = [await gateway.call("POST", path, json={"text": text}) for text in texts]
        await server.until(lambda: server.answering == 1)
        archive = tmp_path / "a.tar.gz"
        done = _talaria(gateway, postgres_database, "backup", str(archive))
        assert done.returncode == 0, done.stderr
        await gateway.kill()

        target = postgres.new_database("template0") if engine == "postgresql" else ""
        home = tmp_path / "home"
        words = ["restore", str(archive), "--home", str(home), *(["--to", target] if target else [])]
        command = [sys.executable, "-m", "talaria", *words]
        restored = subprocess.run(command, capture_output=True, text=True, check=False, env={})
        assert restored.returncode == 0, restored.stderr
        given = {
            "MODEL__PROVIDER": "scripted",
            "PROVIDERS__SCRIPTED__BASE_URL": server.base_url,
            "LOG__LEVEL": "error",
            "CLUSTER__LEASE": "6s",
        }
        async with GatewayProcess(home, tmp_path / "log", given) as other:
            await other.start()
            for ticket, reply in zip(tickets, ("You said: first", "You said: second"), strict=True):
                turn = await other.ended_turn(ticket["turn_id"])
                assert turn["state"] == "done" and reply in turn["reply"], turn
        if target:
            postgres.drop(target)
