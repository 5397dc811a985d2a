"""A whole gateway with MCP servers: a slow one delays nobody, and a chat uses the other one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bench.processes import model_server
from soak.virtual_gateway import open_virtual, say
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.observe.health import GatewayPhase
from talaria.testing import mcp_server
from talaria.testing.clock import FakeClock
from talaria.tools.mcp import pins

PROGRAM = Path(mcp_server.__file__)


async def test_a_slow_server_delays_nobody_and_a_chat_uses_the_other_one(tmp_path: Path) -> None:
    own = {"readable": [str(PROGRAM.parent)], "approvals": "never"}
    servers = {
        "slow": {"command": [sys.executable, str(PROGRAM), "--start-seconds", "30"], **own},
        "good": {"command": [sys.executable, str(PROGRAM)], **own},
    }
    tables = {"mcp": {"servers": servers}, "tools": {"enabled": ["look"]}}
    with model_server() as model:
        async with open_virtual(tmp_path / "home", model.url, FakeClock(), tables) as gateway:
            chat = ChatAddress("main", "soak", "dm", "owner").key()

            async def ask(text: str) -> str:
                turn = await say(gateway, Inbound(chat, Sender("owner"), (Text(text),)))
                assert turn.state is TurnState.DONE
                return turn.reply or ""

            assert await ask("hello")
            assert gateway.health.readiness().phase is GatewayPhase.READY
            assert gateway.tool_runner.servers()["slow"].state == "starting"
            async with asyncio.timeout(30):
                while gateway.tool_runner.servers()["good"].state != "ready":
                    await asyncio.sleep(0.005)
            chat = ChatAddress("main", "soak", "dm", "other").key()  # a new session has the tools
            await ask('[[call mcp_good_echo {"text": "from the server"}]] go on')
            assert gateway.tool_runner.servers()["good"].calls == 1
            assert gateway.tool_runner.servers()["good"].failed_calls == 0
            assert gateway.tool_runner.servers()["slow"].state == "starting"
        assert set(pins.read_pins(tmp_path / "home")) == {"good"}
