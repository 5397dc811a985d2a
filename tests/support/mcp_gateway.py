"""A process with MCP servers that prints the ids of all processes below it, and waits to be killed.

Its arguments are a folder and the sandbox for the servers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from support.mcp_world import open_world, scripted
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import SandboxKind


def below(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    try:
        found = [int(each) for task in tasks.iterdir() for each in (task / "children").read_text().split()]
    except OSError:
        return []
    return found + [inner for each in found for inner in below(each)]


async def main() -> None:
    folder = Path(sys.argv[1])
    sandboxes = Sandboxes(msgspec.convert(sys.argv[2], SandboxKind), folder / "home")
    network = "open" if (await sandboxes.get()).name == "bubblewrap" else "off"
    servers = {"one": scripted("--children", "2"), "two": scripted(network=network)}
    async with open_world(folder, servers, sandboxes=sandboxes) as world:
        await world.ready("one", "two")
        print(*below(os.getpid()), flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
