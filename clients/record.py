"""Recordings of what real clients send, which `tests/clients/test_recordings.py` replays.

`./dev clients --record` makes them anew. A request that differs from an earlier one in an id or a time alone
is left out.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from clients.servers import Servers
from clients.table import CLIENTS, Client, check

FOLDER = Path(__file__).parent / "recorded"
RECORDED = ("openai-agents", "AI SDK, openai", "AI SDK, compatible", "Codex", "Claude Code")
FEATURES = ("plain", "streamed", "tool loop", "streamed tool loop", "structured", "images")
KEPT = ("content-type", "accept", "anthropic-version", "anthropic-beta", "x-talaria-tools", "user-agent")
# What differs from run to run, and what belongs to the machine.
_VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16,64}|turn_\w{26}|\w+_\w{26}(_\d+)?"
    r'|(?<="created":)\d+|(?<=ed_at":)\d+'
    r"|cch=\w+|cc_version=[\w.]+|20\d\d-\d\d-\d\d(T[\d:.]+Z?)?|Wall time: [\d.]+|Chunk ID: \w+"
)
_PLACE = re.compile(r"/[\w/.-]*/talaria-coder-\w+")
_NAMED_PLACE = re.compile(r"-[\w-]*-talaria-coder-\w+")
_SYSTEM = re.compile(r"(?<=OS Version: )[^\\\n\"]+")


class Recording(NamedTuple):
    """A request of a client: the path with its query, the headers that matter, and the body."""

    path: str
    headers: dict[str, str]
    body: str


def read(name: str) -> Iterator[Recording]:
    """Yield the recorded requests of a client."""
    with lzma.open(FOLDER / f"{_file(name)}.jsonl.xz", "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield Recording(**json.loads(line))


def _file(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())


def varying(text: str) -> str:
    """Return a text without what differs from run to run."""
    return _VARIES.sub("~", text)


def record(servers: Servers) -> None:
    """Run the clients through a proxy that writes down what they send. Clients that are not installed keep
    their recordings."""
    FOLDER.mkdir(exist_ok=True)
    for client in CLIENTS:
        command = client.command() if client.name in RECORDED else None
        if command is not None:
            found = asyncio.run(_through_proxy(client, command, servers))
            lines = (json.dumps(each._asdict(), ensure_ascii=False) + "\n" for each in found)
            content = "".join(lines).encode()
            (FOLDER / f"{_file(client.name)}.jsonl.xz").write_bytes(lzma.compress(content, preset=9))
            print(f"{client.name}: {len(found)} requests, {len(content) >> 10} KiB")


async def _through_proxy(client: Client, command: list[str], servers: Servers) -> list[Recording]:
    seen: dict[str, Recording] = {}

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.method == "POST" and request.path.startswith("/v1/"):
            text = _PLACE.sub("/home/ada/work", body.decode())
            text = _SYSTEM.sub("Linux", _NAMED_PLACE.sub("-home-ada-work", text))
            headers = {name: request.headers[name] for name in KEPT if name in request.headers}
            recording = Recording(request.path_qs, headers, text)
            seen.setdefault(varying(f"{recording.path}{text}"), recording)
        kept: dict[str, Any] = {name: value for name, value in request.headers.items() if name != "Host"}
        async with session.request(
            request.method, servers.url + request.path_qs, headers=kept, data=body
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response

    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession(auto_decompress=True) as session:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            proxied = Servers(url, servers.token, servers.model_url)
            report = await asyncio.to_thread(check, client, command, proxied, FEATURES)
        finally:
            await runner.cleanup()
    if not report.is_good:
        raise SystemExit(f"{client.name}: {report.notes}")
    return list(seen.values())
