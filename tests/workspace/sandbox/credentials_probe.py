"""Prints, as JSON, the credentials and mounts of a command in each sandbox, as the kernel shows them outside.

    python credentials_probe.py BASE

`BASE` is a folder that the user of this process can write.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from talaria.workspace.sandbox import group
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.command import Sandbox, SandboxCommand, SandboxError, hand_over, shell
from talaria.workspace.sandbox.landlock import LandlockSandbox, NoSandbox
from talaria.workspace.sandbox.process import open_process

FIELDS = (
    "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
)  # fmt: skip


def read_status(pid: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}
    return {name: found[name] for name in FIELDS}


def _is_answering(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes() == b"cat\0-u\0-\0"


async def probe(sandbox: Sandbox, folders: tuple[Path, Path, Path]) -> dict[str, Any]:
    """Run a command until it has answered, and read what it is from outside."""
    command = SandboxCommand(shell("exec cat -u -"), *folders, has_input=True)
    async with open_process(sandbox, command) as process:
        await process.write(b"answer\n")
        async for _ in process.output():
            break
        (pid,) = (each for each in group.below(process.pid) if _is_answering(each))
        mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        is_own = Path(f"/proc/{pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
        table = {words[4]: words[5].split(",")[0] for words in mounts}
        return {"status": read_status(pid), "mounts": table if is_own else None}


async def main(base: Path) -> dict[str, Any]:
    folders = base / "chat", base / "home", base / "tmp"
    for folder in folders:
        folder.mkdir()
    hand_over(folders)
    found: dict[str, Any] = {"gateway": {"status": read_status("self"), "chat": folders[0].stat().st_uid}}
    for sandbox in (BubblewrapSandbox(), LandlockSandbox(), NoSandbox()):
        try:
            found[sandbox.name] = await probe(sandbox, folders)
        except SandboxError as error:
            found[sandbox.name] = {"error": str(error)}
    return found


if __name__ == "__main__":
    os.umask(0o077)
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
