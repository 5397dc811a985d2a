"""Child processes of tools: how many there are, what they may use, and when they end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from talaria.core.errors import ToolError
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import ToolCall
from talaria.parts import builtin_tools
from talaria.tools.search import search
from talaria.tools.settings import ToolSettings
from talaria.tools.workers import ToolWorkers
from tools.conftest import bound, context

BURNING = """
import asyncio, sys
from pathlib import Path
from tools.conftest import context
from talaria.tools.search import search
asyncio.run(search(context(Path(sys.argv[1])), "(a+)+$", ".", 60.0))
"""


def children(pid: int | None = None) -> set[str]:
    pid = pid or os.getpid()
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


async def test_many_searches_in_one_answer_have_few_children(tmp_path: Path) -> None:
    (tmp_path / "bait.txt").write_text("needle\n" + "a" * 5000)
    limits = Limits(LimitSettings(children=4))
    tools = bound(builtin_tools(ToolSettings()), tmp_path, limits=limits)
    before, most = children(), 0

    async def one(n: int) -> str:
        arguments = msgspec.json.encode({"pattern": "n.edle"}).decode()
        return (await tools.run(ToolCall(f"c{n}", "search_files", arguments))).text

    running = asyncio.gather(*(one(n) for n in range(12)))
    while not running.done():
        most = max(most, len(children() - before))
        await asyncio.sleep(0)
    assert set(await running) == {"bait.txt:1: needle"}
    assert most == 2  # half of all, for one chat
    assert children() == before


async def test_a_child_is_limited_in_memory_and_computing_time(tmp_path: Path) -> None:
    (tmp_path / "bait.txt").write_text("a" * 5000 + "!")
    before = children()
    burning = asyncio.create_task(search(context(tmp_path), "(a+)+$", ".", 60.0))
    limits: dict[str, str] = {}
    while "512" not in limits.get("Max address space", ""):
        for child in children() - before:
            lines = Path(f"/proc/{child}/limits").read_text().splitlines()
            limits = {line[:26].strip(): line[26:] for line in lines}
            if str(512 << 20) in limits["Max address space"]:
                limits["Max address space"] = "512"
        await asyncio.sleep(0)
    assert limits["Max cpu time"].split()[:2] == ["20", "20"]
    burning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await burning
    assert children() == before


async def test_a_wait_for_a_child_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    workers = ToolWorkers(Limits(LimitSettings(children=1)))
    resources = context(tmp_path, workers).resources
    async with resources.child("/bin/cat"):
        second = asyncio.create_task(search(context(tmp_path, workers, "ses_2"), "a", ".", 60.0))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    async with resources.child("/bin/cat") as child:
        assert child.returncode is None
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_burns_dies_with_its_gateway(tmp_path: Path) -> None:
    (tmp_path / "bait.txt").write_text("a" * 5000 + "!")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    gateway = subprocess.Popen([sys.executable, "-c", BURNING, str(tmp_path)], env=environ)
    try:
        burning: str = ""
        while not burning:
            for child in children(gateway.pid):
                times = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                if int(times[11]) > 5:  # hundredths of a second: more than the start takes
                    burning = child
        watched = os.pidfd_open(int(burning))
    finally:
        gateway.kill()
        gateway.wait()
    try:
        assert select.select([watched], [], [], 10)[0], "the child goes on without its gateway"
    finally:
        os.close(watched)


async def test_a_turn_whose_searches_burn_has_no_more_of_them(tmp_path: Path) -> None:
    (tmp_path / "bait.txt").write_text("a" * 5000 + "!")
    limits = Limits(LimitSettings(turn_children=timedelta(milliseconds=100)))
    call = context(tmp_path, ToolWorkers(limits))
    with pytest.raises(ToolError, match="took longer"):
        await search(call, "(a+)+$", ".", 0.2)
    with pytest.raises(ToolError, match="ran for") as refused:
        await search(call, "h.rmless", ".", 60.0)
    assert "limits.turn_children" in refused.value.hint
    assert limits.readings()["turn_children"].refused == 1
