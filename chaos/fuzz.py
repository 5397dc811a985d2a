"""Fuzzed requests, and slow and silent connections, while others chat over the same server.

Every request is drawn from a seed: a plausible request with hostile values, whose bytes may be damaged and
which is sent in pieces. The gateway runs in a process of its own; the clients use raw sockets.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from urllib.parse import quote

from soak.report import Figure, Progress
from talaria.testing.gateway_process import GatewayProcess, running_gateway

_WORKERS = 12
_HELD = 1500  # silent connections at once: more than there may be
_SLACK_DESCRIPTORS = 16
_MOST_GROWTH = 120e6  # bytes of memory
_MOST_LINES = 40
_ANSWER_SECONDS = 8.0
_AUDIT = "talaria.audit"  # tells of each call that operates
_CONFIG = """
[limits]
request_head = "2s"
request_body = "2s"
slow_reader = "2s"
"""
_METHODS = (
    "GET",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "CONNECT",
    "TRACE",
    "get",
    "",
    "A" * 300,
)
_PATHS = (
    "/api/sessions/{x}/messages", "/api/sessions/fuzz/messages", "/v1/chat/completions", "/api/turns/{x}",
    "/api/turns/{x}/events", "/api/turns/{x}/cancel", "/api/sessions", "/api/sessions/{x}",
    "/api/sessions/{x}/entries", "/api/sessions/{x}/end", "/api/files", "/api/files/{x}", "/v1/models",
    "/api/login", "/api/login/codes", "/api/logout", "/api/pairings", "/api/pairings/approve",
    "/api/pairings/revoke", "/api/pool", "/api/status", "/healthz", "/readyz", "/metrics", "/", "/assets/{x}",
    "*", "{x}", "//{x}", "/api/../{x}", "/hooks/telegram",
)  # fmt: skip
_POSTED = ("messages", "completions", "cancel", "end", "files", "log", "pairings/", "hooks")
_TEXTS = (
    "fuzz", "ses_0", "turn_0", "file_" + "0" * 32, "..", "%00", "%ff%fe", "%2e%2e%2f", "a" * 200, "ü", "\x00",
    "0", "-1", "9" * 5000, "0" * 5000 + "1", "1e400", "nan", "٣", "", "%", "a b", "'\"><script>", "\r\n",
)  # fmt: skip
_VALID_FIELDS = (
    "Last-Event-ID: {x}", "Idempotency-Key: {x}", "X-Talaria-Session: {x}", "Origin: {x}",
    "Range: bytes={x}-", "Cookie: talaria_login={x}; {x}={x}", "Expect: 100-continue", "Connection: close",
    "Content-Type: {x}", "X-File-Name: {x}", "Sec-Fetch-Site: cross-site", "Content-Encoding: gzip",
    "Accept: {x}", "X: {x}",
)  # fmt: skip
_FIELDS = (
    *_VALID_FIELDS, "Content-Length: {n}", "Transfer-Encoding: chunked", "Transfer-Encoding: {x}",
    "Host: {x}", "Connection: Upgrade", "Upgrade: websocket", "Authorization: Bearer {x}",
    "Authorization: {x}", "{x}", " folded: {x}", "Origin: null",
)  # fmt: skip
_FIELD_CHARACTERS = " :;=/<>'\"%,"


# -- requests ---------------------------------------------------------------------------------------------


class RequestFuzzer:
    """Draws requests. The same seed draws the same ones."""

    def __init__(self, random: Random, host: str, token: str) -> None:
        self._random = random
        self._host = host
        self._token = token

    def draw(self) -> bytes:
        """Return a request. Most are valid HTTP, so that they reach the handlers."""
        return self._draw_valid() if self._random.random() < 0.6 else self._draw_any()

    def _draw_valid(self) -> bytes:
        random, body = self._random, self._body()
        path = quote(self._path(), safe="/?=%", errors="surrogatepass")
        is_post = any(word in path for word in _POSTED)
        method = random.choice(("POST" if is_post else "GET",) * 8 + ("GET", "POST", "HEAD", "DELETE"))
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        if random.random() < 0.9:
            lines.append(f"Authorization: Bearer {self._token}")
        if random.random() < 0.9:
            lines.append(f"Content-Length: {len(body)}")
        else:
            lines.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        for field in random.sample(_VALID_FIELDS, random.choice((0, 1, 3))):
            lines.append(quote(self._fill(field), safe=_FIELD_CHARACTERS, errors="surrogatepass"))
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _draw_any(self) -> bytes:
        random, body = self._random, self._body()
        method = random.choice(_METHODS) if random.random() < 0.3 else random.choice(("GET", "POST"))
        lines = [f"{method} {self._path()} HTTP/{random.choice(('1.1', '1.1', '1.1', '1.0', '2.0', '9'))}"]
        lines += [f"Host: {self._host}"] * random.choice((1, 1, 1, 1, 0, 2))
        if random.random() < 0.7:
            lines.append(f"Authorization: Bearer {self._token}")
        if body and random.random() < 0.9:
            lines.append(f"Content-Length: {len(body)}")
        lines += [self._fill(random.choice(_FIELDS)) for _ in range(random.choice((0, 0, 1, 2, 40)))]
        data = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body
        return self._damage(data) if random.random() < 0.5 else data

    def _path(self) -> str:
        random, path = self._random, self._fill(self._random.choice(_PATHS))
        if random.random() < 0.4:
            name = random.choice(("limit", "after", "wait", "name", "x"))
            path += f"?{name}={'0' if name == 'wait' and random.random() < 0.5 else self._fill('{x}')}"
        return path

    def _fill(self, text: str) -> str:
        random = self._random
        text = text.replace("{n}", str(random.choice((0, 1, 5, 2**31, 2**64, -1, "0x5", "5, 5", "9" * 30))))
        while "{x}" in text:
            text = text.replace("{x}", random.choice(_TEXTS), 1)
        return text

    def _body(self) -> bytes:
        random = self._random
        match random.randrange(8):
            case 0 | 1:
                return json.dumps({"text": "hello " * random.choice((1, 1, 100)), "model": None}).encode()
            case 2:
                return json.dumps(
                    {"messages": self._value(2), "model": "scripted/scripted", "n": self._value(1)}
                ).encode()
            case 3:
                return json.dumps({"messages": [{"role": "user", "content": self._value(3)}]}).encode()
            case 4:
                return random.randbytes(random.choice((1, 100, 5000)))
            case 5:
                return random.choice(
                    (b"[" * 50_000, b'{"text": "' + b"\\u0000" * 20_000 + b'"}', b"0," * 60_000)
                )
            case 6:
                return json.dumps(self._value(4)).encode()
        return b""

    def _value(self, depth: int) -> object:
        random = self._random
        if depth and random.random() < 0.7:
            size = random.choice((0, 1, 3))
            if random.random() < 0.5:
                return [self._value(depth - 1) for _ in range(size)]
            names = ("text", "role", "content", "files", "code", "type", "image_url", "tool_calls", "id", "x")
            return {random.choice(names): self._value(depth - 1) for _ in range(size)}
        values = (
            None,
            True,
            0,
            -1,
            1e308,
            10**30,
            "user",
            "assistant",
            "tool",
            "text",
            "a" * 2000,
            "\ud800",
            "",
        )
        return random.choice(values)

    def _damage(self, data: bytes) -> bytes:
        random, damaged = self._random, bytearray(data)
        for _ in range(random.choice((1, 1, 3, 20))):
            at = random.randrange(len(damaged) + 1)
            match random.randrange(4):
                case 0:
                    damaged[at:at] = random.randbytes(random.choice((1, 1, 8)))
                case 1:
                    del damaged[at : at + random.choice((1, 4, 100))]
                case 2 if at < len(damaged):
                    damaged[at] = random.randrange(256)
                case _:
                    damaged[at:at] = random.choice((b"\r\n", b"\n", b"\r", b"\x00", b":", b" ", b"\r\n\r\n"))
        return bytes(damaged)


# -- the run ----------------------------------------------------------------------------------------------


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
        self.evidence: list[str] = []

    async def run(self) -> list[Figure]:
        async with running_gateway({"LOG__LEVEL": "warning"}, _CONFIG) as (gateway, _):
            await gateway.call("POST", "/api/sessions/warm/messages?wait=30", json={"text": "hello"})
            before, memory = _descriptors(gateway.pid), _memory(gateway.pid)
            chats = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "chaos.bystander", gateway.url, _token(gateway), str(self._chats),
                cwd=Path(__file__).parent.parent, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            collect = asyncio.create_task(self._collect(chats))
            try:
                await asyncio.gather(self._fuzz_all(gateway), self._stay_silent(gateway))
            finally:
                with suppress(ProcessLookupError):
                    chats.kill()
                await chats.wait()
                await collect
            left = await _left_over(gateway, before)
            grown = max(0, _memory(gateway.pid) - memory)
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
        return [
            Figure(name, failed, "", 0),
            Figure("… turns meanwhile", self.turns.total()),
            Figure("… answers with a status of 500", internal, "", 0),
            Figure("… tracebacks in the log", sum("Traceback" in line for line in lines), "", 0),
            Figure("… lines in the log", len(lines), "", _MOST_LINES),
            Figure("… descriptors left open", left, "", 0),
            Figure("… growth of memory", grown / 1e6, "MB", _MOST_GROWTH / 1e6),
        ]

    # -- fuzzed requests ------------------------------------------------------------------------------------

    async def _fuzz_all(self, gateway: GatewayProcess) -> None:
        numbers = iter(range(self._requests))
        host, token = _host(gateway), _token(gateway)

        async def work() -> None:
            for number in numbers:
                random = Random(f"{self._seed} {number}")
                await self._fuzz(gateway, RequestFuzzer(random, host, token).draw(), random)
                self._progress.tell("fuzzed requests", number + 1, self._requests)

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
                    if random.random() < 0.5:
                        writer.write_eof()
                    answer = await reader.read(200)
                finally:
                    writer.transport.abort()
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "none"
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


def _host(gateway: GatewayProcess) -> str:
    return gateway.url.removeprefix("http://")


def _token(gateway: GatewayProcess) -> str:
    return (gateway.home / "http.token").read_text().strip()


def _descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def _left_over(gateway: GatewayProcess, before: int) -> int:
    left = 0
    for _ in range(100):  # a broken connection is closed a moment later
        left = max(0, _descriptors(gateway.pid) - before - _SLACK_DESCRIPTORS)
        if not left:
            break
        await asyncio.sleep(0.1)
    return left
