"""`talaria mcp login`: an OAuth login at a remote server, by the authorization code with PKCE.

The official SDK finds the authorization server, registers the program there, and checks what comes back. What
the login gave is kept by `access.oauth`, which renews it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from talaria.core.access import OAuthClient, OAuthTokens
from talaria.core.errors import ToolError
from talaria.mcp.part import McpServer
from talaria.mcp.texts import clean_line

_PAGE = b"<!doctype html><title>Talaria</title><p>You are logged in. You can close this page.</p>"
_MAX_HEAD = 16 << 10


class Callback:
    """The page on this machine to which the service sends the browser back. `paste` takes the address of that
    page instead, from a browser on another machine."""

    def __init__(self) -> None:
        self._path = f"/{secrets.token_urlsafe(12)}"
        self._result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> Callback:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_HEAD)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._path}"
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._result.cancel()

    async def wait(self) -> AuthorizationCodeResult:
        return await self._result

    def paste(self, address: str) -> bool:
        """Return whether the address is that of the callback, with an answer of the service."""
        parts = urlsplit(address.strip())
        found = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != self._path or not {"code", "error"} & found.keys():
            return False
        if self._result.done():
            return True
        if "error" in found:
            self._result.set_exception(ToolError(f"The service refused the login: {found['error'][:100]}."))
        else:
            result = AuthorizationCodeResult(
                code=found["code"], state=found.get("state"), iss=found.get("iss")
            )
            self._result.set_result(result)
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                words = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
            is_ours = len(words) > 1 and self.paste(words[1].decode("latin-1"))
            body = _PAGE if is_ours else b""
            status = b"200 OK" if is_ours else b"404 Not Found"
            head = b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nContent-Length: %d\r\n" % (status, len(body))
            writer.write(head + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


class _Memory:
    """The tokens of one login. Implements the SDK's `TokenStorage`."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class _CheckedProvider(OAuthClientProvider):
    """The SDK's login, which sends nothing to an address that a server must not name."""

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = super()._auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                check_place(self.context.server_url, str(outgoing.url))
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


def check_place(server: str, address: str) -> None:
    """Raise `ToolError` unless a server may send a login to an address: by https anywhere, else only to its
    own host. Otherwise a remote server could send the codes of logins over the network in clear text, or
    requests to other services of this machine."""
    parts = urlsplit(address)
    if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname != urlsplit(server).hostname):
        place = clean_line(f"{parts.scheme}://{parts.netloc}", 200)
        raise ToolError(
            f"The server sends logins to {place}, which is neither https nor the server's own host.",
            "Report this to the people who run the server.",
        )


class McpLogin:
    """Logs in at a server, with the first request that needs it and has `auth`."""

    def __init__(self, server: McpServer, callback: Callback, show: Callable[[str], Awaitable[None]]) -> None:
        """`show` is given the address that the person has to open."""
        self._memory = _Memory()
        metadata = OAuthClientMetadata(
            client_name="Talaria",
            redirect_uris=[AnyUrl(callback.url)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",  # noqa: S106 - a program on a machine keeps no secret
        )
        url = server.address.target("")

        async def show_checked(address: str) -> None:
            check_place(url, address)
            await show(address)

        self._provider = _CheckedProvider(url, metadata, self._memory, show_checked, callback.wait)

    @property
    def auth(self) -> httpx2.Auth:
        return self._provider

    def outcome(self) -> tuple[OAuthClient, OAuthTokens]:
        """Return what the login gave. Raises `ToolError` if nobody had to log in."""
        tokens, client, context = self._memory.tokens, self._memory.client, self._provider.context
        if tokens is None or client is None:
            raise ToolError("The server did not ask for a login.", "It works without one.")
        found = context.oauth_metadata
        base = context.get_authorization_base_url(context.server_url)
        method = client.token_endpoint_auth_method or "none"
        kept = OAuthClient(
            str(found.token_endpoint) if found is not None else f"{base}/token",
            client.client_id or "",
            client.client_secret or "",
            sends_basic=method == "client_secret_basic",
            resource=context.get_resource_url() if context.protected_resource_metadata is not None else "",
        )
        seconds = None if tokens.expires_in is None else float(tokens.expires_in)
        return kept, OAuthTokens(tokens.access_token, tokens.refresh_token or "", seconds)
