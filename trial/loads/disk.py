"""Faults of a real disk under a gateway at work: full, read-only, frozen, slow, and the database deleted.

The home is on an ext4 file system of its own (`loop_disk`). Chats send messages before, during and after
the fault. Each fault must be named within two seconds in `/readyz`, `/api/status` and the log; no message
that was answered with 202 may be lost; and the event loop must go on, which the answers of `/healthz` show.

The disk is slowed down by freezing and thawing it again and again, so that each write waits up to 1.5 s.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from talaria.store.sqlite.database import open_reader
from talaria.store.sqlite.rescue import find_rescued, restore_command
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from trial.loop_disk import LoopDisk
from trial.report import Figure, Progress

CHATS = 16
_MEGABYTES = 48
_ROOT = Path(__file__).parents[2]
_NAMED_SECONDS, _STALL_SECONDS = 2.0, 0.2
_TEXT = "x" * 2000  # so that the database grows, and a full disk is met soon
_SETTLE_SECONDS = 60.0
_NEVER = 999.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`word` is what the gateway calls it. After a fault that `needs_restart`, `mend` is called when the
    gateway has ended, and the gateway is started again."""

    name: str
    word: str
    inject: Callable[[LoopDisk, Path], None]
    mend: Callable[[LoopDisk, Path], None]
    needs_restart: bool = False


def _delete(disk: LoopDisk, database: Path) -> None:
    database.unlink()


def _restore(disk: LoopDisk, database: Path) -> None:
    (rescued,) = find_rescued(database)
    subprocess.run(["sh", "-c", restore_command(rescued, database)], check=True)


def _on_disk(act: Callable[[LoopDisk], None]) -> Callable[[LoopDisk, Path], None]:
    return lambda disk, _: act(disk)


FULL = Fault("full", "is full", _on_disk(LoopDisk.fill), _on_disk(LoopDisk.make_room))
READ_ONLY = Fault("read-only", "only be read", _on_disk(LoopDisk.fail), _on_disk(LoopDisk.repair), True)
FROZEN = Fault("frozen", "does not answer", _on_disk(LoopDisk.freeze), _on_disk(LoopDisk.thaw))
DELETED = Fault("deleted", "was deleted", _delete, _restore, True)
SLOW = Fault(
    "slow", "The disk of the database", _on_disk(lambda disk: disk.slow_down(1.5)), _on_disk(LoopDisk.thaw)
)
FAULTS = (FULL, READ_ONLY, FROZEN, DELETED, SLOW)


@dataclass(slots=True)
class DiskResults:
    """What one fault did. Times are seconds after the fault began, or for `ready` after it was mended."""

    fault: Fault
    named: dict[str, float] = field(default_factory=dict)
    accepted: int = 0
    refused: int = 0
    lost: int = 0
    unsettled: int = 0
    stall: float = 0.0
    stall_at_rest: float = 0.0
    ready: float = _NEVER

    def figures(self) -> list[Figure]:
        missing = _NEVER
        named = max(self.named.get(place, missing) for place in ("/readyz", "/api/status", "log"))
        places = ", ".join(f"{place} {seconds:.2f}" for place, seconds in sorted(self.named.items()))
        name = self.fault.name
        return [
            Figure(f"{name}: named ({places})", named, "s", _NAMED_SECONDS),
            Figure(f"… messages answered 202 and lost, of {self.accepted:,}", self.lost, "", 0),
            Figure("… turns that did not end", self.unsettled, "", 0),
            Figure("… longest stall of /healthz", self.stall, "s", _STALL_SECONDS),
            Figure("… longest stall of /healthz before", self.stall_at_rest, "s"),
            Figure("… messages refused", self.refused),
            Figure("… ready again", self.ready, "s"),
        ]


class DiskRun:
    """Each fault in turn, on a gateway and a file system of its own. `seconds` is how long a fault lasts."""

    def __init__(self, faults: tuple[Fault, ...], progress: Progress, seconds: float = 5.0) -> None:
        self._faults = faults
        self._progress = progress
        self._seconds = seconds
        self.results: list[DiskResults] = []

    async def run(self) -> list[Figure]:
        for number, fault in enumerate(self._faults, 1):
            with LoopDisk(_MEGABYTES) as disk:
                self.results.append(await _Trial(disk, fault, self._seconds).run())
            self._progress.tell("disks", number, len(self._faults))
        return [figure for results in self.results for figure in results.figures()]


class _Trial:
    def __init__(self, disk: LoopDisk, fault: Fault, seconds: float) -> None:
        self._disk = disk
        self._fault = fault
        self._seconds = seconds
        self._home = disk.path / "home"
        self._database = self._home / "talaria.db"
        self._log = disk.path.with_name("log")
        self._results = DiskResults(fault)
        self._accepted: list[str] = []
        self._looks: list[tuple[float, float, str, str]] = []

    async def run(self) -> DiskResults:
        self._home.mkdir(mode=0o700)
        async with ModelServer(record=False) as model:
            # Unlike `scripted`, a provider of another name is asked for its models, and the list is written.
            settings = {
                "MODEL__PROVIDER": "mine",
                "MODEL__NAME": "m",
                "PROVIDERS__MINE__BASE_URL": model.base_url,
                "LOG__LEVEL": "warning",
            }
            async with GatewayProcess(self._home, self._log, settings) as gateway:
                try:
                    await gateway.start()
                    await self._strike(gateway)
                finally:
                    self._disk.thaw()  # a process that waits for a frozen disk cannot be killed
        self._count_lost()
        return self._results

    async def _strike(self, gateway: GatewayProcess) -> None:
        fault, seconds = self._fault, self._seconds
        async with self._probing(gateway), self._sending(gateway):
            await asyncio.sleep(seconds / 4)  # the first turns load what the start did not need
            began = time.monotonic()
            await asyncio.sleep(seconds / 4)
            struck = time.monotonic()
            fault.inject(self._disk, self._database)
            await self._until_logged(struck)
            await asyncio.sleep(max(0.0, struck + seconds - time.monotonic()))
            mended = time.monotonic()
            if not fault.needs_restart:
                fault.mend(self._disk, self._database)
                await self._until_ready(mended)
                await asyncio.sleep(seconds / 2)
        self._judge(began, struck, mended)
        if fault.needs_restart:
            await gateway.kill(signal.SIGTERM)
            fault.mend(self._disk, self._database)
            mended = time.monotonic()
            await gateway.start()
            self._results.ready = time.monotonic() - mended
        await self._until_settled(gateway)
        await gateway.kill(signal.SIGKILL)

    # -- load

    @asynccontextmanager
    async def _sending(self, gateway: GatewayProcess) -> AsyncIterator[None]:
        token = (self._home / "http.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=30.0)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
            url = gateway.url
            tasks = [asyncio.create_task(self._chat(client, url, f"chat{n}")) for n in range(CHATS)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _chat(self, client: aiohttp.ClientSession, url: str, name: str) -> None:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with client.post(f"{url}/api/sessions/{name}/messages", json={"text": _TEXT}) as answer:
                    if answer.status == 202:
                        self._accepted.append((await answer.json())["turn_id"])
                    else:
                        self._results.refused += 1
            await asyncio.sleep(0.25)

    # -- looking

    @asynccontextmanager
    async def _probing(self, gateway: GatewayProcess) -> AsyncIterator[None]:
        token = (self._home / "http.token").read_text().strip()
        probe = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trial.loads.disk_probe", gateway.url, token, cwd=_ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        reading = asyncio.create_task(self._read_looks(probe))
        try:
            yield
        finally:
            assert probe.stdin is not None
            probe.stdin.close()
            await probe.wait()
            await reading

    async def _read_looks(self, probe: asyncio.subprocess.Process) -> None:
        assert probe.stdout is not None
        while line := await probe.stdout.readline():
            began, seconds, path, told = line.decode().rstrip("\n").split(" ", 3)
            self._looks.append((float(began), float(seconds), path, told))

    async def _until_logged(self, struck: float) -> None:
        while time.monotonic() < struck + self._seconds:
            if self._fault.word in self._log.read_text():
                self._results.named["log"] = time.monotonic() - struck
                return
            await asyncio.sleep(0.02)

    async def _until_ready(self, mended: float) -> None:
        deadline = mended + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            good = [at for at, _, path, told in self._looks if path == "/readyz" and told == "200"]
            if good and good[-1] > mended:
                self._results.ready = next(at for at in good if at > mended) - mended
                return
            await asyncio.sleep(0.02)

    async def _until_settled(self, gateway: GatewayProcess) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            with suppress(aiohttp.ClientError):
                status = await gateway.call("GET", "/api/status")
                self._results.unsettled = status["owed"]["turns"]
                if not self._results.unsettled:
                    return
            await asyncio.sleep(0.1)

    # -- judging

    def _judge(self, began: float, struck: float, mended: float) -> None:
        results, word = self._results, self._fault.word
        for at, seconds, path, told in self._looks:
            if path == "/healthz" and at >= struck:
                results.stall = max(results.stall, seconds)
            elif path == "/healthz" and at >= began:
                results.stall_at_rest = max(results.stall_at_rest, seconds)
            is_named = told == "503" if path == "/readyz" else path == "/api/status" and word in told
            if is_named and struck <= at < mended:
                results.named.setdefault(path, at + seconds - struck)

    def _count_lost(self) -> None:
        """Read the database when the gateway has been killed."""
        connection = open_reader(self._database)
        try:
            known = {row[0] for row in connection.execute("SELECT id FROM turns")}
        finally:
            connection.close()
        self._results.accepted = len(self._accepted)
        self._results.lost = len(set(self._accepted) - known)
