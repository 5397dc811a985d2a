"""A whole gateway with MCP servers: slow ones delay nobody, changed ones change no request of a session."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.processes import model_server
from support import mcp_server
from support.prefixes import PrefixWatch
from support.waiting import until
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.mcp import pins
from talaria.observe.health import GatewayPhase
from talaria.testing.clock import FakeClock
from talaria.testing.model_server import ModelServer
from trial.in_process.virtual_gateway import open_virtual, say

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
            await until(lambda: gateway.tool_runner.servers()["good"].state == "ready")
            chat = ChatAddress("main", "soak", "dm", "other").key()  # a new session has the tools
            await ask('[[call mcp_good_echo {"text": "from the server"}]] go on')
            assert gateway.tool_runner.servers()["good"].calls == 1
            assert gateway.tool_runner.servers()["good"].failed_calls == 0
            assert gateway.tool_runner.servers()["slow"].state == "starting"
        assert set(pins.read_pins(tmp_path / "home")) == {"good"}


async def test_a_server_that_changes_breaks_no_prefix_and_doubles_no_name(tmp_path: Path) -> None:
    """A session keeps the bytes of its tools while its server is down, lists other texts in another order, is
    approved, and while the gateway is started again. A new session has the approved tools."""
    home, own = tmp_path / "home", {"readable": [str(PROGRAM.parent)], "approvals": "never"}

    def tables() -> dict[str, Any]:
        server = {"command": [sys.executable, str(PROGRAM), "--twice"], **own}
        return {"mcp": {"servers": {"one": server}}, "tools": {"enabled": ["look"], "search_above": 1 << 30}}

    async def life(chat: str, *, changes: bool = False) -> None:
        async with open_virtual(home, model.base_url.removesuffix("/v1"), FakeClock(), tables()) as gateway:
            key = ChatAddress("main", "soak", "dm", chat).key()

            async def ask() -> None:
                text = f'<{chat}> [[call mcp_one_echo {{"text": "hi"}}]] go on'
                assert (
                    await say(gateway, Inbound(key, Sender("owner"), (Text(text),)))
                ).state is TurnState.DONE

            async with asyncio.timeout(30):
                while gateway.tool_runner.servers()["one"].state != "ready":
                    if (home / "mcp/pins.json").exists():
                        await ask()  # also before the server is up
                    await asyncio.sleep(0.005)
            await ask()
            if changes:
                shown = await say(gateway, Inbound(key, Sender("owner"), (Text("/tools"),)))
                assert "- mcp:one: 2 changes wait for approval." in (shown.reply or "")
                pins.approve(home, "one", pins.proposed(home, "one"))
                await ask()

    async with ModelServer() as model:
        await life("1")
        for name in ("pull", "shuffle"):
            (home / "mcp/servers/one" / name).touch()
        await life("1", changes=True)
        await life("1")
        before = len(model.bodies)
        await life("2")
        bodies = list(model.bodies)
    watch = PrefixWatch(lambda raw: "2" if b"<2>" in raw else "1")
    watch.see_all(bodies)
    assert watch.breaks == []
    names = [[tool["function"]["name"] for tool in msgspec.json.decode(raw)["tools"]] for raw in bodies]
    assert all(len(set(each)) == len(each) for each in names)
    assert "mcp_one_new" not in names[before - 1]
    assert "mcp_one_new" in names[-1]
