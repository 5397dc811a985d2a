"""The gateway's CPU for a streamed piece of an answer under `/v1`, from the model's server to the client."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from bench.processes import Metered

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
STREAMS = 60
PAUSE = 0.03  # seconds between the pieces of one answer, so that they are not joined
_MARKS = {CHAT: b'"delta":{"content":', RESPONSES: b"event: response.output_text.delta"}


async def piece_costs(served: Metered, token: str, pieces: int, rounds: int) -> dict[str, float]:
    """Return CPU seconds for a piece by path, the best of the rounds. The paths take turns."""
    best: dict[str, float] = {}
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        for path in _MARKS:
            await _run(session, served.url, path, 3)  # everything is loaded and connected
        for _ in range(rounds):
            for path in _MARKS:
                before = served.cpu()
                seen = await _run(session, served.url, path, pieces)
                cost = (served.cpu() - before) / seen
                best[path] = min(best.get(path, cost), cost)
    return best


async def _run(session: aiohttp.ClientSession, url: str, path: str, pieces: int) -> int:
    """Stream many answers side by side. Returns how many pieces came."""
    text = f"[[chunks {pieces}]] [[words {2 * pieces}]] [[chunk-delay {PAUSE}]]"
    body: dict[str, Any] = {"model": "main", "stream": True}
    body |= {"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]}

    async def stream() -> int:
        async with session.post(url + path, json=body) as answer:
            said = await answer.read()
        if answer.status != 200:
            raise SystemExit(f"a call failed: {answer.status} {said!r}")
        return said.count(_MARKS[path])

    return sum(await asyncio.gather(*(stream() for _ in range(STREAMS))))
