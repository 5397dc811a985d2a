"""Fuzzed requests, and slow and silent connections, while others chat over the same server.

Every request is drawn from a seed and sent in pieces, by callers of every role, with a wrong token and
without one. The gateway runs in a process of its own; the clients use raw sockets.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import median

from talaria.store.sqlite.faults import driver
from talaria.testing.gateway_process import GatewayProcess, running_gateway
from trial.attacks.fuzz_requests import INTRUDER, Caller, RequestFuzzer, Target, find_targets
from trial.measure import descriptors, left_over, memory
from trial.report import Check, Figure, Progress

_WORKERS = 12
_HELD = 1500  # silent connections at once: more than there may be
_SLACK_DESCRIPTORS = 16
_MOST_GROWTH = 120e6  # bytes of memory
_MOST_LINES = 40
_FLAT = 1.1  # the memory in the last fifth of the requests, by that in the second
_FEW = 5000  # requests: with fewer, the second fifth still loads what is needed
_ANSWER_SECONDS = 8.0
_MOST_KNOWN = 20
_ID = re.compile(rb"\b(?:turn|ses|file|resp)_[0-9a-z]{26,32}\b")
_AUDIT = "talaria.audit"  # tells of each call that operates
_CONFIG = """
[limits]
request_head = "2s"
request_body = "2s"
slow_reader = "2s"
"""


class HttpFuzzRun:
    """`requests` fuzzed requests and `silent` slow or silent connections while `chats` chats run."""

    def __init__(self, requests: int, silent: int, chats: int, progress: Progress, seed: int = 1) -> None:
        self._requests = requests
        self._silent = silent
        self._chats = chats
        self._progress = progress
        self._seed = seed
        self._held_seconds = 8.0 if silent > _HELD else 2.0
        self.statuses: Counter[str] = Counter()
        self.turns: Counter[str] = Counter()
        self.callers: Counter[str] = Counter()
        self.evidence: list[str] = []
        self._known: deque[str] = deque(maxlen=_MOST_KNOWN)
        self.memory: list[list[int]] = [[] for _ in range(5)]  # in each fifth of the requests
        self.own_turns = self.intruded = 0

    async def run(self) -> list[Figure]:
        async with running_gateway({"LOG__LEVEL": "warning"}, _CONFIG) as (gateway, _):
            await gateway.call("POST", "/api/sessions/warm/messages?wait=30", json={"text": "hello"})
            tokens, targets = (
                await _make_tokens(gateway),
                find_targets(await gateway.call("GET", "/openapi.json")),
            )
            before, resident = descriptors(gateway.pid), memory(gateway.pid)
            chats = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "trial.attacks.bystander", gateway.url, _token(gateway),
                str(self._chats), cwd=Path(__file__).parents[2], stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            collect = asyncio.create_task(self._collect(chats))
            try:
                await asyncio.gather(self._fuzz_all(gateway, tokens, targets), self._stay_silent(gateway))
            finally:
                with suppress(ProcessLookupError):
                    chats.kill()
                await chats.wait()
                await collect
            left = await left_over(lambda: descriptors(gateway.pid), before + _SLACK_DESCRIPTORS, 30.0)
            grown = max(0, memory(gateway.pid) - resident)
            self.own_turns, self.intruded = _count_turns(gateway)
            lines = [
                line for line in gateway.log.read_text(errors="replace").splitlines() if _AUDIT not in line
            ]
            self.evidence += [line[:2000] for line in lines if "Traceback" in line][:3]
        return self._figures(left, grown, lines)

    async def _collect(self, chats: asyncio.subprocess.Process) -> None:
        assert chats.stdout is not None
        while line := await chats.stdout.readline():
            _, seconds, state = line.decode().split()
            self.turns[state] += 1
            if state != "done":
                self.evidence.append(f"a turn after {seconds} s: {state}")

    def _figures(self, left: int, grown: int, lines: list[str]) -> list[Figure]:
        failed = self.turns.total() - self.turns["done"]
        internal = sum(count for status, count in self.statuses.items() if status.startswith("50"))
        internal -= self.statuses["502"] + self.statuses["503"]  # the model refused; deliberate
        name = f"{self._requests:,} fuzzed requests, {self._silent:,} silent connections: failed turns"
        # A large body that is being inflated is soon gone, so the median tells what stays.
        early, last = median(self.memory[1]), median(self.memory[-1])
        flat = early * _FLAT / 1e6 if self._requests >= _FEW else None
        return [
            Figure(name, failed, "", 0, found=tuple(self.evidence)),
            Figure("… turns meanwhile", self.turns.total()),
            Figure("… answers with a status of 500", internal, "", 0, found=tuple(self.evidence)),
            Figure("… tracebacks in the log", sum("Traceback" in line for line in lines), "", 0),
            Figure("… lines in the log", len(lines), "", _MOST_LINES),
            Figure("… descriptors left open", left, "", 0, Check.LEFTOVERS),
            Figure("… requests of callers who may start no turn", self._count_intruders()),
            Figure("… turns that they started", self.intruded, "", 0),
            Figure("… turns that fuzzed requests of other callers started", self.own_turns),
            Figure("… memory in the second fifth of the requests (median)", early / 1e6, "MB"),
            Figure("… in the last fifth", last / 1e6, "MB", flat, Check.MEMORY),
            Figure("… growth of memory", grown / 1e6, "MB", _MOST_GROWTH / 1e6, Check.MEMORY),
        ]

    def _count_intruders(self) -> int:
        return sum(self.callers[caller.name] for caller in Caller if caller.is_intruder)

    # -- fuzzed requests ------------------------------------------------------------------------------------

    async def _fuzz_all(
        self, gateway: GatewayProcess, tokens: Mapping[Caller, str], targets: Sequence[Target]
    ) -> None:
        numbers, host = iter(range(self._requests)), _host(gateway)

        async def work() -> None:
            for number in numbers:
                random = Random(f"{self._seed} {number}")
                fuzzer = RequestFuzzer(random, host, tokens, targets, self._known)
                self.callers[fuzzer.caller.name] += 1
                await self._fuzz(gateway, fuzzer.draw(), random)
                self._progress.tell("fuzzed requests", number + 1, self._requests)
                self.memory[number * 5 // self._requests].append(memory(gateway.pid))

        await asyncio.gather(*(work() for _ in range(_WORKERS)))

    async def _fuzz(self, gateway: GatewayProcess, data: bytes, random: Random) -> None:
        answer = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await _connect(gateway, random)
                try:
                    middle = random.randrange(len(data) + 1)
                    for piece in (data[:middle], data[middle:]):
                        writer.write(piece)
                        await writer.drain()
                    if random.random() < 0.1:
                        return
                    if random.random() < 0.15:
                        writer.write_eof()
                    answer = await reader.read(1000)
                finally:
                    writer.transport.abort()
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "none"
        if status in ("201", "202") or b"x-talaria-turn-id" in answer:  # never ids of the chats beside it
            self._known.extend(found.decode() for found in _ID.findall(answer))
        self.statuses[status] += 1
        if status.startswith("50") and status not in ("502", "503"):
            self.evidence.append(f"{data[:400]!r} -> {answer!r}")

    # -- silent connections ---------------------------------------------------------------------------------

    async def _stay_silent(self, gateway: GatewayProcess) -> None:
        numbers = iter(range(self._silent))

        async def work() -> None:
            for number in numbers:
                await self._stay_silent_once(gateway, Random(f"silent {self._seed} {number}"))

        await asyncio.gather(*(work() for _ in range(min(_HELD, self._silent))))

    async def _stay_silent_once(self, gateway: GatewayProcess, random: Random) -> None:
        """Hold a connection until the gateway closes it, or for a few seconds."""
        head = f"Host: {_host(gateway)}\r\nAuthorization: Bearer {_token(gateway)}\r\n"
        login = f"POST /api/login HTTP/1.1\r\nHost: {_host(gateway)}\r\nContent-Length: 50\r\n\r\n"
        half = f"POST /api/sessions/fuzz/messages HTTP/1.1\r\n{head}Content-Length: 90\r\n\r\n{{"
        unread = f"GET /api/status HTTP/1.1\r\n{head}\r\n" * 10
        kinds = ("", "GET /healthz HTTP/1.1\r\nHost:", login, half, unread)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(random.uniform(0.5, self._held_seconds)):
                reader, writer = await _connect(gateway, random)
                try:
                    kind = random.randrange(len(kinds))
                    writer.write(kinds[kind].encode())
                    if kind == len(kinds) - 1:
                        reader._transport.pause_reading()  # type: ignore[attr-defined]
                    while not reader.at_eof() and not writer.is_closing():
                        await asyncio.sleep(0.3)
                        if kind == 1:
                            writer.write(b"x")
                finally:
                    writer.transport.abort()


async def _connect(
    gateway: GatewayProcess, random: Random
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect from one of a few addresses of this machine, the chats' address among them."""
    source = random.choice(("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3"))
    port = int(gateway.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def _make_tokens(gateway: GatewayProcess) -> dict[Caller, str]:
    tokens = {Caller.HOME: _token(gateway)}
    for caller in (Caller.CHATTER, Caller.READER):
        body = {"name": f"fuzzed-{caller.value}", "role": caller.value}
        tokens[caller] = (await gateway.call("POST", "/api/tokens", json=body))["secret"]
    return tokens


def _count_turns(gateway: GatewayProcess) -> tuple[int, int]:
    """Return the turns of fuzzed requests by callers who may start turns, and by those who may not."""
    database = driver.connect(f"file:{gateway.home}/talaria.db?mode=ro", uri=True)
    try:

        def count(query: str, *values: str) -> int:
            return int(database.execute(query, values).fetchone()[0])

        others = "SELECT count(*) FROM turns WHERE chat_key NOT LIKE '%:bystander%' AND inbound NOT LIKE ?"
        reader = f"%fuzzed-{Caller.READER.value}%"
        said = count("SELECT count(*) FROM turns WHERE inbound LIKE ?", f"%{INTRUDER}%")
        kept = count("SELECT count(*) FROM entries WHERE body LIKE ?", f"%{INTRUDER}%")
        read = count("SELECT count(*) FROM turns WHERE inbound LIKE ?", reader)
        return count(others, f"%{INTRUDER}%"), said + kept + read
    finally:
        database.close()


def _host(gateway: GatewayProcess) -> str:
    return gateway.url.removeprefix("http://")


def _token(gateway: GatewayProcess) -> str:
    return (gateway.home / "http.token").read_text().strip()
