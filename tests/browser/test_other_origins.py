"""A page of another origin in Chromium: it calls the API with a token, if config.toml names its origin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

from support.gateway import running_gateway

PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
ASK = """async ([url, token, credentials]) => {
  try {
    const answer = await fetch(url + "/v1/chat/completions", {
      method: "POST",
      credentials,
      headers: { Authorization: "Bearer " + token, "X-Talaria-Session": "page", "X-Stainless-Lang": "js" },
      body: JSON.stringify({ messages: [{ role: "user", content: "hello" }], stream: true }),
    });
    let text = "";
    for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) text += piece;
    return { status: answer.status, text, turn: answer.headers.get("x-talaria-turn-id") };
  } catch (error) {
    return String(error);
  }
}"""


@asynccontextmanager
async def serving_a_page() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # Chromium opens spare connections
            await reader.readuntil(b"\r\n\r\n")
            writer.write(PAGE)
            await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_named_page_calls_with_a_token_and_another_page_cannot(browser: Any) -> None:
    async with serving_a_page() as port:
        named, other = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
        async with running_gateway({"HTTP__ORIGINS": named}) as (gateway, _):
            token = (gateway.home / "http.token").read_text().strip()
            page = await browser.new_page()
            page.set_default_timeout(30_000)
            await page.goto(named)
            asked = await page.evaluate(ASK, [gateway.url, token, "same-origin"])
            assert asked["status"] == 200
            assert "You said" in asked["text"]
            assert asked["turn"].startswith("turn_")
            refused = await page.evaluate(ASK, [gateway.url, "wrong-token-value", "same-origin"])
            assert refused["status"] == 401
            assert "Failed to fetch" in await page.evaluate(ASK, [gateway.url, token, "include"])
            await page.goto(other)
            assert "Failed to fetch" in await page.evaluate(ASK, [gateway.url, token, "same-origin"])
            await page.close()
