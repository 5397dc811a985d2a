"""Calls of webhooks in every wrong way: forged, replayed, stale, huge, slow, in wrong encodings.

The gateway runs in a process of its own. Each variant is drawn from a seed. A genuine event must become one
turn, whatever else is sent around it; everything else must become none.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from io import BytesIO
from random import Random
from typing import Any, Final

import aiohttp
from multidict import CIMultiDict

from support.webhook_calls import SECRET, STANDARD_SECRET, sign
from talaria.store.sqlite.faults import driver
from talaria.testing.gateway_process import GatewayProcess, running_gateway
from trial.report import Figure, Progress, none_of

KINDS: Final = ("github", "hmac-sha256", "standard", "stripe", "token")
_MAX_BODY: Final = 16 << 10
_WORKERS: Final = 8
_KNOWN: Final = 50
_CONFIG: Final = '[limits]\nrequest_body = "1s"\nchat_queue = 10000\n' + "".join(
    f'[webhooks.{kind}]\nsignature = "{kind}"\n'
    f'secret = "{STANDARD_SECRET if kind == "standard" else SECRET}"\n'
    f'prompt = "[[reply ok]] {{body[mark]}}"\nmax_body = {_MAX_BODY}\nrate = 6000\n'
    for kind in KINDS
)
Headers = CIMultiDict[str]
Known = tuple[str, bytes, Headers, str]  # kind, body, headers, turn id


class WebhookRun:
    """`count` variants of calls, in a row of `_WORKERS`."""

    def __init__(self, count: int, progress: Progress, seed: int = 1) -> None:
        self._count = count
        self._progress = progress
        self._seed = seed
        self._genuine: set[str] = set()
        self._known: list[Known] = []
        self.ways: Counter[str] = Counter()
        self.evidence: list[str] = []

    async def run(self) -> list[Figure]:
        async with running_gateway({"LOG__LEVEL": "warning"}, _CONFIG) as (gateway, _):
            numbers = iter(range(self._count))
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as client:

                async def work() -> None:
                    for number in numbers:
                        random = Random(f"{self._seed} {number}")
                        variant = _Variant(self, gateway.url, client, random, f"m{number}.")
                        await variant.play()
                        self._progress.tell("calls of webhooks", number + 1, self._count)

                await asyncio.gather(*(work() for _ in range(_WORKERS)))
            wrong = self._judge(gateway)
            traces = gateway.log.read_text(errors="replace").count("Traceback")
        name = f"{self._count:,} variants of webhook calls: wrong turns"
        return [
            Figure(name, wrong, "", 0),
            Figure("… genuine events", len(self._genuine)),
            none_of("… unexpected answers", self.evidence),
            Figure("… tracebacks in the log", traces, "", 0),
        ]

    def _judge(self, gateway: GatewayProcess) -> int:
        """Return how many events have another number of turns than they should have."""
        found: Counter[str] = Counter()
        database = driver.connect(gateway.home / "talaria.db")
        for (inbound,) in database.execute("SELECT inbound FROM turns"):
            text = json.loads(inbound)["parts"][0]["text"]
            found[text.rpartition("⟦")[2].partition("⟧")[0]] += 1
        database.close()
        wrong = [mark for mark in self._genuine if found.pop(mark, 0) != 1]
        self.evidence += [f"{mark}: not one turn" for mark in wrong]
        self.evidence += [f"{mark}: {count} turns of a call that is none" for mark, count in found.items()]
        return len(wrong) + sum(found.values())

    # -- what variants share --------------------------------------------------------------------------------

    def keep(self, mark: str, known: Known) -> None:
        self._genuine.add(mark)
        self._known.append(known)
        del self._known[:-_KNOWN]

    def pick(self, random: Random) -> Known | None:
        return random.choice(self._known) if self._known else None


class _Variant:
    def __init__(
        self, run: WebhookRun, url: str, client: aiohttp.ClientSession, random: Random, mark: str
    ) -> None:
        self._run = run
        self._url = url
        self._client = client
        self._random = random
        self._mark = mark
        self._kind = random.choice(KINDS)
        self._body = json.dumps(
            {"mark": mark, "id": f"evt_{mark}", "text": "ä" * random.randrange(50)}
        ).encode()
        self._headers = Headers(sign(self._kind, self._body, event_id=f"e-{mark[:-1]}", at=time.time()))

    async def play(self) -> None:
        ways: Mapping[str, Callable[[], Awaitable[None]]] = {
            "genuine": self._send_genuine,
            "at once": self._send_at_once,
            "replayed": self._replay,
            "renamed": self._replay_renamed,
            "forged": self._forge,
            "stale": self._be_stale,
            "huge": self._be_huge,
            "slow": self._be_slow,
            "encoded": self._encode,
            "misplaced": self._misplace,
        }
        weights = [3, 1, 2, 2, 6, 2, 2, 1, 4, 2]
        way = self._random.choices(list(ways), weights)[0]
        self._run.ways[way] += 1
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            await ways[way]()

    async def _post(
        self,
        headers: Headers,
        body: Any,
        *expected: int,
        kind: str = "",
        path: str = "",
        method: str = "POST",
    ) -> tuple[int, Any]:
        url = self._url + (path or f"/hooks/{kind or self._kind}")
        async with self._client.request(method, url, data=body, headers=headers) as answer:
            told = await answer.read()
        if answer.status not in expected:
            self._run.evidence.append(f"{url} {dict(headers)} {body!r:.200}: {answer.status} {told[:200]!r}")
        with suppress(ValueError):
            return answer.status, json.loads(told)
        return answer.status, None

    async def _send_genuine(self) -> None:
        _, told = await self._post(self._headers, self._body, 202)
        self._run.keep(self._mark, (self._kind, self._body, self._headers, told["turn_id"]))

    async def _send_at_once(self) -> None:
        calls = (self._post(self._headers, self._body, 200, 202) for _ in range(4))
        answers = await asyncio.gather(*calls)
        told = {answer["turn_id"] for _, answer in answers}
        if len(told) != 1 or sum(status == 202 for status, _ in answers) != 1:
            self._run.evidence.append(f"{self._mark} at once: {answers}")
        self._run.keep(self._mark, (self._kind, self._body, self._headers, told.pop()))

    async def _replay(self) -> None:
        if (known := self._run.pick(self._random)) is not None:
            await self._repeat(known, known[2])

    async def _replay_renamed(self) -> None:
        """The same body under another id: only the body is signed there."""
        known = self._run.pick(self._random)
        if known is None or known[0] not in ("github", "hmac-sha256", "token"):
            return
        headers = Headers(known[2])
        headers["X-GitHub-Delivery" if known[0] == "github" else "X-Event-Id"] = self._mark
        await self._repeat(known, headers)

    async def _repeat(self, known: Known, headers: Headers) -> None:
        kind, body, _, turn_id = known
        _, told = await self._post(headers, body, 200, kind=kind)
        if told.get("turn_id") != turn_id:
            self._run.evidence.append(f"a repeat of {turn_id}: {told}")

    async def _forge(self) -> None:
        other = sign(self._kind, self._body + b" ", event_id=f"e-{self._mark[:-1]}", at=time.time())
        theirs = sign(self._kind, self._body, event_id="x", at=time.time(), secret=f"another {SECRET}")
        name = {"github": "X-Hub-Signature-256", "hmac-sha256": "X-Signature-256"}.get(
            self._kind,
            {"standard": "webhook-signature", "stripe": "Stripe-Signature"}.get(self._kind, "Authorization"),
        )
        given = self._headers[name]
        at = self._random.randrange(len(given))
        flipped = given[:at] + chr(ord(given[at]) ^ 1) + given[at + 1 :]
        forms = [flipped, given[:-1], given.swapcase(), "", "sha256=", given.replace("sha256", "sha1"), "v1,"]
        forged = [Headers({**self._headers, name: form}) for form in forms if form != given]
        forged += [Headers(theirs), Headers({k: v for k, v in self._headers.items() if k != name}), Headers()]
        if self._kind == "token":
            forged += [Headers({name: f"Basic {SECRET}"}), Headers({name: SECRET})]
        else:
            forged.append(Headers(other))
        await self._post(self._random.choice(forged), self._body, 401, 400)

    async def _be_stale(self) -> None:
        if self._kind not in ("standard", "stripe"):
            return
        away = self._random.choice([301, 3600, 10**6, 10**9]) * self._random.choice([-1, 1])
        headers = sign(self._kind, self._body, event_id="e", at=max(0, time.time() + away))
        if self._random.random() < 0.3:
            headers = {name: value.replace(str(int(time.time()))[:4], "x") for name, value in headers.items()}
        await self._post(Headers(headers), self._body, 401)

    async def _be_huge(self) -> None:
        body = json.dumps(
            {"mark": self._mark, "id": self._mark, "text": "x" * self._random.choice([20_000, 3 << 20])}
        )
        data = body.encode()
        headers = Headers(sign(self._kind, data, event_id="h", at=time.time()))

        async def pieces() -> Any:
            for start in range(0, len(data), 8192):
                yield data[start : start + 8192]

        await self._post(headers, pieces() if self._random.random() < 0.5 else BytesIO(data), 413)

    async def _be_slow(self) -> None:
        """Half of a body, and then nothing: the connection is closed, or the gateway's patience ends."""
        host = self._url.partition("//")[2]
        reader, writer = await asyncio.open_connection(*host.split(":"))
        try:
            head = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
            writer.write(
                f"POST /hooks/{self._kind} HTTP/1.1\r\nHost: {host}\r\n{head}"
                f"Content-Length: {len(self._body)}\r\n\r\n".encode()
                + self._body[:-5]
            )
            await writer.drain()
            if self._random.random() < 0.5:
                answer = await reader.read(100)
                if answer and b" 408 " not in answer and b" 400 " not in answer:
                    self._run.evidence.append(f"a slow body: {answer!r}")
        finally:
            writer.transport.abort()

    async def _encode(self) -> None:
        text = self._body.decode()
        body, more, status = self._random.choice(
            [
                (text.encode("utf-16"), {}, 400),
                (text.replace('"text": "', '"text": "ä').encode("latin-1"), {}, 400),
                (self._body[:-2], {}, 400),
                (b"[" * 5_000, {}, 400),
                (self._body, {"Content-Encoding": "gzip"}, 415),
                (self._body, {"Content-Encoding": "br"}, 415),
                (b'{"mark": ' + b"[1," * 3_000, {}, 400),
                (b"\x00" + self._body[:50] + b"\xff", {}, 400),
            ]
        )
        headers = Headers(sign(self._kind, body, event_id="c", at=time.time()))
        headers.update(more)
        await self._post(headers, body, status)

    async def _misplace(self) -> None:
        others = [kind for kind in KINDS if kind != self._kind]
        if self._random.random() < 0.4:
            await self._post(self._headers, self._body, 401, kind=self._random.choice(others))
        elif self._random.random() < 0.5:
            method = self._random.choice(["GET", "PUT", "DELETE", "PATCH"])
            await self._post(self._headers, self._body, 405, method=method)
        else:
            path = self._random.choice(
                ["/hooks/none", f"/hooks/{self._kind}/", "/hooks/", f"/hooks/{self._kind}%00"]
            )
            await self._post(self._headers, self._body, 401, 404, path=path)
