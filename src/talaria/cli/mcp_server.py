"""The gateway as an MCP server, over stdio or HTTP. Imported only by `talaria mcp serve`.

Over stdio the calls have the token of this home's owner. Over HTTP each call has the token that its client
sent, which the gateway checks; there is no call without one.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import mcp_types as types
import msgspec
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from talaria.channels.http.part import HttpSettings
from talaria.cli.gateway_tools import CallPlace, GatewayTool, ToolAnswer, gateway_tools
from talaria.console.gateway_client import GatewayAddress, GatewayClient, GatewayGone
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.program import spoken, this_version
from talaria.operations.sessions import SessionsQuery, list_sessions
from talaria.operations.table import OPERATIONS, Operations

MCP_PATH = "/mcp"
_MAX_SESSIONS = 100
_MAX_CONNECTIONS = 200
_DRAIN_SECONDS = 5
_UNAUTHORIZED = "unauthorized"
_HOW = "Send `Authorization: Bearer TOKEN`; `talaria token add` makes one."
_INSTRUCTIONS = "Agents that keep their conversations. The same session name continues a session."
Find = Callable[[], GatewayAddress | None]
OpenGateway = Callable[[str | None], AbstractAsyncContextManager[GatewayClient]]


def gateway_opener(find: Find) -> OpenGateway:
    """Return a function that gives a client of the running gateway, for a token or, without one, for the
    home's own. `find` is called each time: the gateway may have been restarted meanwhile."""

    @asynccontextmanager
    async def open_gateway(token: str | None) -> AsyncIterator[GatewayClient]:
        def with_token() -> GatewayAddress | None:
            found = find()
            return found if found is None or token is None else GatewayAddress(found.url, token)

        address = with_token()
        if address is None:
            raise GatewayGone("No gateway runs on this home.", "Start it with `talaria serve`.")
        async with GatewayClient(address, with_token) as client:
            yield client

    return open_gateway


def make_server(open_gateway: OpenGateway, operations: Operations = OPERATIONS) -> Server[Any]:
    tools = {tool.name: tool for tool in gateway_tools(operations)}

    async def list_tools(context: object, params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool) for tool in tools.values()])

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if (tool := tools.get(params.name)) is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name!r}.")
        numbers = count(1)

        async def report(said: str) -> None:
            await context.session.report_progress(next(numbers), None, said)

        try:
            async with open_gateway(_token_of(context)) as gateway:
                answer = await tool.call(CallPlace(gateway, report), params.arguments or {})
        except TalariaError as error:
            answer = ToolAnswer(spoken(f"{error.user_text}\n{error.hint}".strip()), is_error=True)
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=answer.text)]
        data = answer.data or None
        return types.CallToolResult(content=content, structured_content=data, is_error=answer.is_error)

    return Server(
        "talaria",
        version=this_version(),
        title="Talaria",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: tools[name].schema if name in tools else None,
    )


def _describe(tool: GatewayTool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.is_read_only, destructive_hint=False, open_world_hint=not tool.is_read_only
    )
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.schema,
        output_schema=tool.output,
        annotations=hints,
    )


def _token_of(context: ServerRequestContext[Any, Any]) -> str | None:
    """Return the token of a call over HTTP; None over stdio. The gate has let it in."""
    return None if context.request is None else _bearer(context.request.headers)


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def serve_stdio(open_gateway: OpenGateway) -> None:
    """Serve one client until it closes stdin."""
    server = make_server(open_gateway)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


# -- over HTTP --------------------------------------------------------------------------------------------


async def serve_http(open_gateway: OpenGateway, listener: socket.socket, settings: HttpSettings) -> None:
    """Serve clients on a socket of the loopback until SIGTERM or SIGINT. Names of this machine and
    `http.hosts` may stand in `Host`, those of `http.origins` in `Origin`."""
    port = listener.getsockname()[1]
    names = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")]
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *settings.hosts],
        allowed_origins=[*(f"http://{name}" for name in names), *settings.origins],
    )
    app = make_server(open_gateway).streamable_http_app(
        streamable_http_path=MCP_PATH, transport_security=security, max_sessions=_MAX_SESSIONS
    )
    config = uvicorn.Config(
        TokenGate(app, open_gateway),
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    await uvicorn.Server(config).serve(sockets=[listener])


class TokenGate:
    """Lets a request in whose token the gateway accepts. A session belongs to the token that began it."""

    def __init__(self, app: ASGIApp, open_gateway: OpenGateway) -> None:
        self._app = app
        self._open_gateway = open_gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/.well-known/"):
            # Clients look here for OAuth after a 401, which is not offered.
            await _error(404, ErrorInfo("not_found", "There is no OAuth here.", _HOW))(scope, receive, send)
            return
        if scope["type"] == "http":
            token = _bearer(Headers(scope=scope))
            if (refusal := await self._refuse(token)) is not None:
                await refusal(scope, receive, send)
                return
            owner = hashlib.sha256(token.encode()).hexdigest()
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        await self._app(scope, receive, send)

    async def _refuse(self, token: str) -> Response | None:
        if not token:
            return _error(401, ErrorInfo(_UNAUTHORIZED, "The request has no token.", _HOW))
        try:
            async with self._open_gateway(token) as gateway:
                await gateway.carry_out(list_sessions, SessionsQuery(limit=1))
        except GatewayGone as error:
            return _error(503, error.info())
        except TalariaError as error:
            return _error(401 if error.type == _UNAUTHORIZED else 502, error.info())
        return None


def _error(status: int, info: ErrorInfo) -> Response:
    body = msgspec.json.encode({"error": info})
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Response(body, status, headers, "application/json")
