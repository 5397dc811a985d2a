"""The cost of a turn in a gateway with many tools of other people, against one without them."""

from __future__ import annotations

import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from bench.processes import model_server
from talaria.app import open_gateway
from talaria.config.home import Home
from talaria.config.load import Loaded
from talaria.config.settings import Settings
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.settings import NoSettings, Parts
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender
from talaria.gateway import Gateway
from talaria.models.settings import ModelSettings, ProviderSettings
from talaria.parts import PARTS
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.part import ToolPart
from talaria.tools.tool import ToolContext
from talaria.tools.toolset import Family

FOREIGN_TOOLS = 200
_WARM_UP = 30
_SENDER = Sender("bench")


async def measure_many_tools(turns: int, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds of a turn without and with `FOREIGN_TOOLS` tools of two servers: the best of the
    rounds, in which both take turns."""
    none, many = [], []
    with model_server() as model:
        for _ in range(rounds):
            none.append(await _measure(model.url, PARTS, turns))
            many.append(await _measure(model.url, (*PARTS, _part()), turns))
    return min(none), min(many)


async def _measure(url: str, parts: Parts, turns: int) -> float:
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as folder:
        settings = Settings(
            model=ModelSettings("bench", "scripted"), providers={"bench": ProviderSettings(f"{url}/v1")}
        )
        home = Path(folder) / "home"
        async with open_gateway(Home(home), Loaded(settings, (), None), {}, parts=parts) as gateway:
            await _talk(gateway, _WARM_UP)
            before = time.process_time()
            await _talk(gateway, turns)
            return (time.process_time() - before) / turns


async def _talk(gateway: Gateway, turns: int) -> None:
    for number in range(turns):
        key = ChatAddress("main", "bench", "dm", str(number % 4)).key()
        message = Inbound(key, _SENDER, (Text("How are you today?"),))
        await gateway.turns.wait(await gateway.turns.submit(message))


def _part() -> ToolPart[NoSettings]:
    tools = tuple(_tool(number) for number in range(FOREIGN_TOOLS))
    source = Family("servers", tools, is_builtin=False)
    return ToolPart(name="servers", settings=NoSettings, open=lambda scope, settings: nullcontext(source))


def _tool(number: int) -> FunctionTool:
    """A tool of about a kilobyte, as those of MCP servers are."""
    keys = {f"field_{n}": text("What the call is about, in the words of its server. " * 2) for n in range(6)}
    origin = f"mcp:server{number % 2}"
    about = "Does one of the many things that a server can do, and tells in detail what it did. "
    spec = ToolSpec(f"mcp_server{number % 2}_do_{number}", about * 3, parameters(keys), origin=origin)
    return FunctionTool(spec, _answer)


async def _answer(arguments: Arguments, context: ToolContext) -> str:
    return "done"
