"""A server that dies at every call, over a thousand turns: it is started again by the rule of pauses only, no
process is left, and other chats and servers notice nothing.

The gateway before this one started its servers again with each failed turn, at 91 % of a processor for hours.
The clock is virtual; the processes are real, in the real sandbox.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from bench.processes import model_server
from support import mcp_server
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.gateway import Gateway
from talaria.mcp.supervisor import BREAKER, PAUSES
from talaria.observe.health import read_rss
from talaria.testing.clock import FakeClock
from trial.in_process.virtual_gateway import open_virtual, say
from trial.measure import children
from trial.report import Check, Figure, Progress

LARGE = 1 << 30  # bytes of the largest answer
_PROGRAM = Path(mcp_server.__file__)
_SERVERS = {
    name: {
        "command": [sys.executable, str(_PROGRAM)],
        "readable": [str(_PROGRAM.parent)],
        "approvals": "never",
        # A call would wait for a start that is near, on the real clock.
        "timeout": timedelta(seconds=0.5 if name == "dying" else 120),
    }
    for name in ("dying", "good")
}
_RSS_LIMIT = 64.0  # MB: what an answer may hold, decoded, and the noise of the allocator


class DyingServer:
    """So many `turns`, one each virtual second, and at the end one answer of `large` bytes."""

    def __init__(self, turns: int, progress: Progress, *, large: int = LARGE, kills: bool = True) -> None:
        """With `kills` a gateway is killed afterwards."""
        self._turns = turns
        self._progress = progress
        self._large = large
        self._kills = kills
        self.starts: list[float] = []
        self.early = 0
        self.left = 0
        self.unserved = 0
        self.grown = 0.0

    async def run(self) -> list[Figure]:
        tables = {"mcp": {"servers": _SERVERS}, "tools": {"enabled": ["look"]}}
        clock = FakeClock(time.time())
        with tempfile.TemporaryDirectory(prefix="talaria-soak-") as name, model_server() as model:
            async with open_virtual(Path(name), model.url, clock, tables) as gateway:
                await _until(lambda: _states(gateway) == {"ready"})
                await self._live(gateway, clock)
                await self._answer_at_length(gateway)
        return [*self.figures(), *(await _kill() if self._kills else ())]

    async def _live(self, gateway: Gateway, clock: FakeClock) -> None:
        """Let the server die at each call, and count what the rule does not allow."""
        self.starts.append(clock.elapsed())
        died_at = 0.0
        for number in range(self._turns):
            was_up = gateway.tool_runner.servers()["dying"].state == "ready"
            turn = await _say(gateway, "dying", "[[call mcp_dying_crash {}]] go on")
            other = await _say(gateway, "good", '[[call mcp_good_echo {"text": "x"}]] go on')
            self.unserved += (turn.state, other.state) != (TurnState.DONE, TurnState.DONE)
            if was_up:
                await _until(lambda: gateway.tool_runner.servers()["dying"].state != "ready")
                died_at = clock.elapsed()
            self.left += max(0, len(servers()) - 1)
            clock.advance(1.0)
            await clock.settle()  # a start that is due begins
            await _until(lambda: gateway.tool_runner.servers()["dying"].state != "starting")
            if gateway.tool_runner.servers()["dying"].starts > len(self.starts):
                self.early += clock.elapsed() - died_at < least_pause(len(self.starts))
                self.starts.append(clock.elapsed())
            self._progress.tell("dying server", number + 1, self._turns)

    async def _answer_at_length(self, gateway: Gateway) -> None:
        before, most = read_rss(), 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, read_rss())
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        await _say(gateway, "good", f'[[call mcp_good_big {{"bytes": {self._large}}}]] go on')
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        self.grown = max(0, most - before) / (1 << 20)

    def figures(self) -> list[Figure]:
        return [
            Figure("turns with a server that dies at each call", self._turns),
            Figure("… starts of it", len(self.starts), limit=most_starts(self._turns)),
            Figure("… starts before the pause was over", self.early, limit=0),
            Figure("… turns, of this chat and another, that did not end well", self.unserved, limit=0),
            Figure(
                "… processes beyond those of the other server, after a turn",
                self.left,
                "",
                0,
                Check.LEFTOVERS,
            ),
            Figure(
                f"memory for an answer of {self._large >> 20} MiB", self.grown, "MB", _RSS_LIMIT, Check.MEMORY
            ),
        ]


def least_pause(failures: int) -> float:
    """Return the shortest pause that the rule allows after so many failures in a row."""
    if failures < BREAKER.threshold:
        return PAUSES.pause(failures)
    return BREAKER.rests.pause(failures - BREAKER.threshold + 1) / 2


def most_starts(seconds: int) -> int:
    """Return how many starts the rule allows in so many seconds, in which each fails at once."""
    count, at = 1, 0.0
    while (at := at + max(1.0, least_pause(count))) <= seconds:
        count += 1
    return count


async def _say(gateway: Gateway, who: str, text: str) -> Turn:
    chat = ChatAddress("main", "soak", "dm", who).key()
    return await say(gateway, Inbound(chat, Sender(who), (Text(text),)))


def _states(gateway: Gateway) -> set[str]:
    return {reading.state for reading in gateway.tool_runner.servers().values()}


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.002)


def servers() -> list[int]:
    """Return the processes of servers that this one has started and that have not ended."""
    return [each for each in children(os.getpid()) if b"mcp_server" in _command(each)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def _kill() -> list[Figure]:
    """Kill a gateway with two servers. Tell how many processes are left, and how long the others took."""
    tests = Path(__file__).parents[2] / "tests"
    with tempfile.TemporaryDirectory(prefix="talaria-soak-") as folder:
        program = [sys.executable, "-m", "support.mcp_gateway", folder, "auto"]
        gateway = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=tests)
        assert gateway.stdout is not None
        pids = [int(each) for each in gateway.stdout.readline().split()]
        gateway.stdout.close()
        gateway.send_signal(signal.SIGKILL)
        began = time.monotonic()
        gateway.wait()
        while (left := [each for each in pids if _is_alive(each)]) and time.monotonic() < began + 10:
            await asyncio.sleep(0.01)
        return [
            Figure("processes of a gateway that was killed, and its servers", len(pids)),
            Figure("… left of them", len(left), "", 0, Check.LEFTOVERS),
            Figure("… seconds until the last of them was gone", time.monotonic() - began, "s", 2.0),
        ]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
