"""A gateway in a process of its own, with a tool that holds the event loop.

`held_gateway.py HOME LEASE WEDGED` prints its address when it is ready. The tool `hold` holds the loop
for some seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from talaria.app import open_gateway
from talaria.channels.http.http_channel import HttpChannel
from talaria.channels.supervisor import open_channels
from talaria.cli.options import run_loop
from talaria.cluster.leases import LeaseTiming
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.settings import NoSettings
from talaria.core.tools import ToolSpec
from talaria.parts import PARTS
from talaria.tools.part import ToolPart
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import Family


class Hold(Tool):
    spec = ToolSpec("hold", "Holds the loop.", '{"type":"object","properties":{"seconds":{"type":"number"}}}')

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        time.sleep(float(arguments["seconds"]))
        return "held"


HOLD = ToolPart(
    name="hold",
    settings=NoSettings,
    open=lambda scope, settings: nullcontext(Family("hold", (Hold(),), is_builtin=False)),
)


async def main(home: Path, timing: LeaseTiming) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    parts = (HOLD, *PARTS)
    loaded = load(home, os.environ, parts)
    async with (
        open_gateway(Home(home), loaded, os.environ, parts=parts, timing=timing) as gateway,
        open_channels(gateway, parts),
    ):
        http = gateway.channels["http"]
        assert isinstance(http, HttpChannel)
        print(http.server.address, flush=True)
        await stop.wait()


if __name__ == "__main__":
    run_loop(main(Path(sys.argv[1]), LeaseTiming(float(sys.argv[2]), float(sys.argv[3]))))
