"""Search providers behind real HTTP, each as strict as the real one: SearXNG, Brave and Tavily."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

from aiohttp import web

_TITLE = "Result {number} for <b>{query}</b> &amp; more"


class SearchServer:
    """Serves inside its `async with` block. `base_url` has a path for each provider below it.

    Hits are made up from the query. With `status` every request fails with it. `queries` are those that were
    answered, `body` is sent instead of an answer.
    """

    def __init__(self, key: str = "search-key-0123456789", count: int = 3) -> None:
        self.key = key
        self.count = count
        self.status = 0
        self.body: bytes | None = None
        self.queries: list[tuple[str, str]] = []
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/searxng/search", self._searxng)
        app.router.add_get("/brave/web/search", self._brave)
        app.router.add_post("/tavily/search", self._tavily)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self._url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def base_url(self, provider: str) -> str:
        return f"{self._url}/{provider}"

    async def _searxng(self, request: web.Request) -> web.Response:
        if request.query.get("format") != "json" or "q" not in request.query:
            return web.Response(status=400)
        hits = self._hits(request.query["q"], "content")
        return self._answer("searxng", request.query["q"], {"query": request.query["q"], "results": hits})

    async def _brave(self, request: web.Request) -> web.Response:
        if request.headers.get("X-Subscription-Token") != self.key:
            error = {"code": "SUBSCRIPTION_TOKEN_INVALID", "detail": "The provided token is invalid."}
            return web.json_response({"type": "ErrorResponse", "error": error}, status=422)
        if not request.query.get("q") or not 1 <= int(request.query.get("count", "20")) <= 20:
            return web.json_response({"type": "ErrorResponse", "error": {"code": "VALIDATION"}}, status=422)
        hits = self._hits(request.query["q"], "description")
        return self._answer("brave", request.query["q"], {"type": "search", "web": {"results": hits}})

    async def _tavily(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            detail = {"error": "Unauthorized: missing or invalid API key."}
            return web.json_response({"detail": detail}, status=401)
        body = await request.json()
        if not body.get("query") or not 0 <= body.get("max_results", 5) <= 20:
            return web.json_response({"detail": {"error": "Invalid request."}}, status=400)
        hits = self._hits(body["query"], "content")
        return self._answer("tavily", body["query"], {"query": body["query"], "results": hits})

    def _hits(self, query: str, excerpt_key: str) -> list[dict[str, Any]]:
        return [
            {
                "title": _TITLE.format(number=number, query=query),
                "url": f"https://example.org/{number}",
                excerpt_key: f"About {query}, part {number}.",
            }
            for number in range(1, self.count + 1)
        ]

    def _answer(self, provider: str, query: str, answer: dict[str, Any]) -> web.Response:
        if self.status:
            return web.json_response({"error": f"status {self.status} for {self.key}"}, status=self.status)
        self.queries.append((provider, query))
        body = json.dumps(answer).encode() if self.body is None else self.body
        return web.Response(body=body, content_type="application/json")
