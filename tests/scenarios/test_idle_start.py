"""What a gateway that waits for its first message has in memory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from support.gateway import real_process
from talaria.testing.model_server import ModelServer


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_http_client_is_loaded_with_the_first_model_call(tmp_path: Path) -> None:
    async with (
        ModelServer(record=False) as model,
        real_process(tmp_path, model, {}, program=(sys.executable,)) as gateway,
    ):
        async with asyncio.timeout(30):
            while not (await gateway.call("GET", "/api/status"))["ready"]:
                await asyncio.sleep(0.02)
        maps = Path(f"/proc/{gateway.pid}/maps")
        assert "aiohttp" not in maps.read_text()
        assert (await gateway.say("a", "hello"))["reply"] == "You said: hello"
        assert "aiohttp" in maps.read_text(), "its parser is a shared library"
