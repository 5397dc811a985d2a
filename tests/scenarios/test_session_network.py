"""The network of a session in a whole gateway: over `kill -9`, and after the session's end."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.gateway import running_gateway
from support.waiting import until
from talaria.testing.gateway_process import GatewayProcess
from talaria.workspace.network_holder import NetworkHolder, find_holder
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove

if sys.platform != "linux":
    pytest.skip("sandboxes are for Linux", allow_module_level=True)


async def _run(gateway: GatewayProcess, command: str, **more: object) -> dict[str, Any]:
    text = f"[[call terminal {json.dumps({'command': command, **more})}]]"
    return await gateway.say("one", text)


def _lives(holder: NetworkHolder) -> bool:
    return holder.is_alive


async def test_a_network_outlives_a_kill_with_its_process_and_ends_with_its_session() -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        writer.close()

    if reason := (await prove(BubblewrapSandbox(), Path("/nowhere"))).why_not:
        pytest.skip(reason)
    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = (
        f'[network]\nallow_private = ["{target}"]\n[tools]\nenabled = ["terminal"]\nsandbox = "bubblewrap"\n'
    )
    fetch = f"curl -sS --noproxy '' http://{target}/"
    async with running_gateway(config=config) as (gateway, _):
        assert "hello" in (await _run(gateway, fetch))["reply"]
        waiting = f"until [ -e go ]; do sleep 0.02; done; {fetch} >got; mv got done; sleep 1000"
        started = await _run(gateway, waiting, background=True)
        (record,) = gateway.home.glob("sessions/*/network/holder.json")
        holder = find_holder(record.parent)
        assert holder is not None
        await gateway.kill()
        assert _lives(holder)
        await gateway.start()
        (folder,) = (gateway.home / "files").glob("*")
        (folder / "go").touch()
        await until((folder / "done").exists)
        assert (folder / "done").read_text() == "hello"
        await gateway.call("POST", f"/api/sessions/{started['session_id']}/end")
        await until(lambda: not (_lives(holder) or record.parent.exists()))
        holder.forget()
        assert (await gateway.call("GET", "/api/status"))["network"]["sessions"] == 0
    server.close()
    await server.wait_closed()
