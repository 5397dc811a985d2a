"""A remote MCP server with an authorization server beside it, as strict as they are: PKCE, one use of each
code and refresh token, and a refresh token that comes twice ends the login."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from urllib.parse import urlencode

from aiohttp import web


class OAuthServer:
    """`valid` are the access tokens that the MCP server takes, `renewals` counts refresh tokens that came.
    `resource`, `metadata` and `back` are said in place of what is true: about the MCP server, about the
    authorization server, and in the address that a browser is sent back to."""

    def __init__(self) -> None:
        self.url = ""
        self.valid: set[str] = set()
        self.renewals = 0
        self.is_busy = False
        self.seconds = 3600
        self.resource: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.back: dict[str, str] = {}
        self.registered: list[dict[str, Any]] = []
        self._numbers = count(1)
        self._codes: dict[str, tuple[str, str]] = {}  # the challenge and the address of the callback
        self._refresh: set[str] = set()
        self._used: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/oauth-protected-resource{tail:.*}", self._resource)
        app.router.add_get("/.well-known/oauth-authorization-server{tail:.*}", self._metadata)
        app.router.add_post("/register", self._register)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        app.router.add_route("*", "/mcp", self._mcp)
        return app

    async def _resource(self, request: web.Request) -> web.Response:
        told = {"resource": f"{self.url}/mcp", "authorization_servers": [self.url]}
        return web.json_response(told | self.resource)

    async def _metadata(self, request: web.Request) -> web.Response:
        places = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in (
            ("authorization", "authorize"), ("token", "token"), ("registration", "register"),
        )}  # fmt: skip
        told = {"issuer": self.url, "response_types_supported": ["code"], **places}
        methods = {
            "code_challenge_methods_supported": ["S256"],
            "grant_types_supported": ["authorization_code"],
        }
        methods["token_endpoint_auth_methods_supported"] = ["none"]
        return web.json_response({**told, **methods, **self.metadata})

    async def _register(self, request: web.Request) -> web.Response:
        self.registered.append(await request.json())
        return web.json_response({**self.registered[-1], "client_id": "client-1"}, status=201)

    async def _authorize(self, request: web.Request) -> web.Response:
        query = request.query
        assert (query["client_id"], query["response_type"]) == ("client-1", "code")
        assert (query["code_challenge_method"], query["resource"]) == ("S256", f"{self.url}/mcp")
        assert query["redirect_uri"] in self.registered[-1]["redirect_uris"]
        code = f"code-{next(self._numbers)}"
        self._codes[code] = (query["code_challenge"], query["redirect_uri"])
        back = urlencode({"code": code, "state": query["state"], **self.back})
        raise web.HTTPFound(f"{query['redirect_uri']}?{back}")

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert (form["client_id"], form["resource"]) == ("client-1", f"{self.url}/mcp")
        if form["grant_type"] == "authorization_code":
            challenge, place = self._codes.pop(str(form["code"]))
            digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge
            assert form["redirect_uri"] == place
            return self._issue()
        self.renewals += 1
        if self.is_busy:
            return web.json_response({"error": "temporarily_unavailable"}, status=503)
        await asyncio.sleep(0)
        given = str(form["refresh_token"])
        if given in self._used:  # somebody has a copy of it
            self.revoke()
        if given not in self._refresh:
            return web.json_response({"error": "invalid_grant"}, status=400)
        self._refresh.discard(given)
        self._used.add(given)
        return self._issue()

    def _issue(self) -> web.Response:
        access, refresh = f"access-{next(self._numbers)}-of-this-test", f"refresh-{next(self._numbers)}"
        self.valid.add(access)
        self._refresh.add(refresh)
        told = {"access_token": access, "refresh_token": refresh, "expires_in": self.seconds}
        return web.json_response({**told, "token_type": "Bearer"})

    def revoke(self) -> None:
        """End every login."""
        self.valid.clear()
        self._refresh.clear()

    async def _mcp(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.valid:
            place = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return web.Response(status=401, headers={"WWW-Authenticate": place})
        message = await request.json() if request.method == "POST" else {}
        if "id" not in message:
            return web.Response(status=202 if request.method == "POST" else 405)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": message.get("params", {}).get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "guarded", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "reached"}]},
        }
        found = results.get(message["method"])
        told = (
            {"error": {"code": -32601, "message": "Method not found"}} if found is None else {"result": found}
        )
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **told})


@asynccontextmanager
async def oauth_server() -> AsyncIterator[OAuthServer]:
    server = OAuthServer()
    runner = web.AppRunner(server.app())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
