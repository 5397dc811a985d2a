"""A connection to a server, by the official SDK.

Importing this module takes most of a second and 60 MB, so it is imported in a thread, when there is a server
to connect to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import httpx2
import mcp_types as types
import msgspec
from mcp.client._probe import negotiate_auto
from mcp.client._transport import TransportStreams
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from talaria.core.errors import TalariaError, ToolError
from talaria.core.program import this_version
from talaria.core.tasks import running
from talaria.mcp.elicitation import form_problem
from talaria.mcp.launch import CannotRun, ServerLauncher, variables
from talaria.mcp.part import McpServer
from talaria.mcp.pins import READER, PinnedTool
from talaria.mcp.texts import clean, clean_line, clean_schema
from talaria.mcp.transports import LinkEnd, LoginAuth, open_http, open_pipes

if TYPE_CHECKING:
    from talaria.mcp.tool import McpCall

MAX_TOOLS = 1000
MAX_LISTED_BYTES = 1 << 20
MAX_SCHEMA_BYTES = 32 << 10
MAX_DESCRIPTION = 8000  # characters
MAX_ITEMS = 200  # resources, templates and prompts that are listed
_MAX_PAGES = 100
_MAX_TOLD = 5
_MAX_ROUNDS = 5
_MAX_SAMPLES = 4  # model calls in one call of a tool
_MAX_ASKED_CHARS = 64 << 10
_SUBSCRIBE_AGAIN_SECONDS = 60.0
_LIST_CHANGED = (
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceListChangedNotification,
)
_READER_TEXT = (
    "Read resources and prompts of the MCP server {}. Without arguments it lists them; uri reads a resource, "
    "prompt gets a prompt."
)
_READER_SCHEMA = (
    '{"additionalProperties":false,"properties":{"arguments":{"description":"Of the prompt.",'
    '"type":"object"},"prompt":{"type":"string"},"uri":{"type":"string"}},"type":"object"}'
)
_CLIENT = types.Implementation(name="talaria", version=this_version())
_CallResult: TypeAlias = types.CallToolResult | types.InputRequiredResult
_CALL_RESULT: TypeAdapter[_CallResult] = TypeAdapter(_CallResult)
T = TypeVar("T")

for _name in ("mcp", "client", "httpx2", "httpcore2"):  # a server could fill the log with their warnings
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Listing(msgspec.Struct, frozen=True):
    """The tools that a server lists, and what was left out and why."""

    tools: dict[str, PinnedTool]
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Collected:
    tools: dict[str, PinnedTool] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    room: int = MAX_LISTED_BYTES

    def add(self, tool: types.Tool) -> None:
        shown = clean_line(tool.name, 80)
        if problem := self._problem(tool):
            self.left_out.append(f"{shown}: {problem}")

    def _problem(self, tool: types.Tool) -> str:
        if not tool.name or clean_line(tool.name, 1000) != tool.name:
            return "its name has hidden characters, or none"
        if tool.name in self.tools:
            return "another tool has this name"
        try:
            pinned = pin_tool(tool)
        except ValueError as error:
            return str(error)
        self.room -= len(pinned.description) + len(pinned.parameters)
        if len(self.tools) >= MAX_TOOLS or self.room < 0:
            return "there are too many tools"
        self.tools[tool.name] = pinned
        return ""

    def listing(self) -> Listing:
        more = len(self.left_out) - _MAX_TOLD
        told = [*self.left_out[:_MAX_TOLD], *([f"and {more} more"] if more > 0 else ())]
        return Listing(self.tools, tuple(told))


def pin_tool(tool: types.Tool) -> PinnedTool:
    """Return the tool as it is compared and offered. Raises `ValueError` if it cannot be offered."""
    schema = clean_schema(tool.input_schema)
    schema.setdefault("type", "object")
    if schema["type"] != "object":
        raise ValueError("its parameters are not a JSON schema of an object")
    parameters = msgspec.json.encode(schema, order="sorted").decode()
    if len(parameters) > MAX_SCHEMA_BYTES:
        raise ValueError(f"its parameters have more than {MAX_SCHEMA_BYTES >> 10} KiB")
    hints = tool.annotations
    return PinnedTool(
        clean(tool.description or tool.title or tool.name, MAX_DESCRIPTION),
        parameters,
        only_reads=hints is not None and hints.read_only_hint is True,
        destroys=hints is not None and hints.destructive_hint is True and hints.read_only_hint is not True,
    )


class _UnknownMethod(ToolError):
    """The server does not know a method."""


class ServerConnection:
    """A session with a server. All calls of all agents share it."""

    def __init__(self, name: str, ending: LinkEnd, list_changed: Callable[[], None]) -> None:
        self.name = name
        self.ending = ending
        self._list_changed = list_changed
        self._calls: set[McpCall] = set()
        self._samples: dict[McpCall, int] = {}
        self._has_abandoned = False  # a call that was cancelled, of which the server may still speak
        self.session: ClientSession

    # -- what a server lists --------------------------------------------------------------------------------

    async def listing(self) -> Listing:
        """Return the tools. Raises `ToolError`."""
        collected = _Collected()
        has = self.session.server_capabilities
        if has is None or has.tools is not None:
            async for page in self._pages(self.session.list_tools):
                for tool in page.tools:
                    collected.add(tool)
        if any(await self.items()):
            text = _READER_TEXT.format(self.name)
            collected.tools[READER] = PinnedTool(text, _READER_SCHEMA, only_reads=True)
        return collected.listing()

    async def items(self) -> tuple[list[types.Resource], list[types.ResourceTemplate], list[types.Prompt]]:
        """Return the first resources, templates and prompts. Raises `ToolError`."""
        has = self.session.server_capabilities
        resources: list[types.Resource] = []
        templates: list[types.ResourceTemplate] = []
        prompts: list[types.Prompt] = []
        if has is not None and has.resources is not None:
            async for page in self._pages(self.session.list_resources, MAX_ITEMS):
                resources += page.resources
            with suppress(_UnknownMethod):  # older servers list resources without templates
                async for each in self._pages(self.session.list_resource_templates, MAX_ITEMS):
                    templates += each.resource_templates
        if has is not None and has.prompts is not None:
            async for found in self._pages(self.session.list_prompts, MAX_ITEMS):
                prompts += found.prompts
        return resources[:MAX_ITEMS], templates[:MAX_ITEMS], prompts[:MAX_ITEMS]

    async def _pages(self, ask: Callable[..., Awaitable[T]], most: int = 10 * MAX_TOOLS) -> AsyncIterator[T]:
        """Yield the pages of a list, as long as each leads to another one and there are not too many."""
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
            page: Any = await self._answered(ask(params=params))
            yield page
            cursor = page.next_cursor
            size = sum(len(value) for _, value in page if isinstance(value, list))
            most -= size
            if not cursor or cursor in seen or most <= 0:
                return
            seen.add(cursor)

    # -- calls ----------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], host: McpCall) -> types.CallToolResult:
        """Call a tool. On cancellation the server is told. Raises `ToolError`."""
        self._calls.add(host)
        try:
            return await self._rounds(tool, arguments, host)
        except asyncio.CancelledError:
            self._has_abandoned = True
            raise
        finally:
            self._calls.discard(host)
            self._samples.pop(host, None)

    async def _rounds(self, tool: str, arguments: dict[str, Any], host: McpCall) -> types.CallToolResult:
        """Send the call, and send it again with what the server asks for."""
        responses: types.InputResponses | None = None
        state: str | None = None
        for _ in range(_MAX_ROUNDS):
            params = types.CallToolRequestParams(
                name=tool, arguments=arguments, input_responses=responses, request_state=state
            )
            request = types.CallToolRequest(params=params)
            asked = self.session.send_request(request, _CALL_RESULT, progress_callback=_told(host))
            result = await self._answered(asked)
            if isinstance(result, types.CallToolResult):
                return result
            state = result.request_state
            wanted = (result.input_requests or {}).items()
            responses = {key: await self._respond(host, each) for key, each in wanted}
        raise ToolError(f"The MCP server {self.name} asks again and again.", "Do without this tool.")

    async def read(self, uri: str) -> Sequence[types.TextResourceContents | types.BlobResourceContents]:
        """Read a resource. Raises `ToolError`."""
        return (await self._answered(self.session.read_resource(uri))).contents

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> Sequence[types.PromptMessage]:
        """Get a prompt. Raises `ToolError`."""
        return (await self._answered(self.session.get_prompt(name, arguments))).messages

    async def _answered(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except MCPError as error:
            if error.error.message == "Session terminated":
                self.ending.end("It has forgotten the session.")
            kind = _UnknownMethod if error.error.code == types.METHOD_NOT_FOUND else ToolError
            raise kind(self._failure(error.error)) from error
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_input=False)[0]["loc"]))
            text = (
                f"The MCP server {self.name} breaks the protocol: its answer is wrong at {clean_line(where)}."
            )
            raise ToolError(text) from error
        except RuntimeError as error:  # of the SDK, about the protocol
            raise ToolError(f"The MCP server {self.name} cannot be used: {clean_line(str(error))}") from error

    def _failure(self, error: types.ErrorData) -> str:
        if self.ending.ended.is_set():
            return f"The MCP server {self.name} has gone. {self.ending.why}"
        if error.code == types.INTERNAL_ERROR and self.ending.why:  # the SDK does not say more
            return f"The MCP server {self.name} refused the request. {self.ending.why}"
        return f"The MCP server {self.name} answers with an error: {clean(error.message, 2000)}"

    # -- what a server asks for -----------------------------------------------------------------------------

    async def _respond(self, host: McpCall, request: types.InputRequest) -> Any:
        match request:
            case types.CreateMessageRequest(params=wanted):
                answer: Any = await self._sample_for(host, wanted)
            case types.ElicitRequest(params=asked):
                answer = _elicit_for(host, asked)
            case _:
                answer = _refused("There are no roots here.")
        if isinstance(answer, types.ErrorData):
            raise ToolError(f"The server asked for something that it does not get. {answer.message}")
        return answer

    def _only_call(self) -> McpCall | None:
        """Return the one call that a request of the server can belong to; None if that is not sure."""
        return next(iter(self._calls)) if len(self._calls) == 1 and not self._has_abandoned else None

    async def on_sampling(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        host = self._only_call()
        return _refuse("a model") if host is None else await self._sample_for(host, params)

    async def on_elicitation(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        host = self._only_call()
        return _refuse("a person") if host is None else _elicit_for(host, params)

    async def _sample_for(
        self, host: McpCall, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        said = [
            f"{message.role}: {block.text}"
            for message in params.messages
            for block in (message.content if isinstance(message.content, list) else [message.content])
            if isinstance(block, types.TextContent)
        ]
        text = clean("\n\n".join(said))
        self._samples[host] = count = self._samples.get(host, 0) + 1
        if count > _MAX_SAMPLES or len(text) > _MAX_ASKED_CHARS or not text or params.tools:
            most = f"{_MAX_SAMPLES} times, with {_MAX_ASKED_CHARS} characters of text"
            return _refused(f"A call may ask a model {most}.")
        try:
            answer = await host.sample(clean(params.system_prompt or ""), text, params.max_tokens)
        except TalariaError as error:
            return _refused(error.user_text)
        content = types.TextContent(type="text", text=answer)
        return types.CreateMessageResult(role="assistant", content=content, model="talaria")

    async def on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, _LIST_CHANGED):
            self._list_changed()

    async def follow_changes(self) -> None:
        """Tell of changes of what the server lists, where a client has to subscribe to them. No change is
        repeated after a break, so each subscription counts as one."""
        while self.session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            try:
                async with listen(
                    self.session,
                    tools_list_changed=True,
                    prompts_list_changed=True,
                    resources_list_changed=True,
                ) as changes:
                    if not any(changes.honored.model_dump(exclude_none=True).values()):
                        return  # the server announces nothing
                    self._list_changed()
                    async for _ in changes:
                        self._list_changed()
            except SubscriptionLost:
                pass
            except MCPError as error:
                if error.error.code == types.METHOD_NOT_FOUND:
                    return
            await asyncio.sleep(_SUBSCRIBE_AGAIN_SECONDS)


def _told(host: McpCall) -> ProgressFnT:
    async def tell(progress: float, total: float | None, message: str | None) -> None:
        host.note_progress(progress, total, clean_line(message or ""))

    return tell


def _refuse(whom: str) -> types.ErrorData:
    text = f"This client asks {whom} only on behalf of one running call, and there is none, or more than one."
    return _refused(text)


def _refused(text: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=text)


def _elicit_for(host: McpCall, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
    if not isinstance(params, types.ElicitRequestFormParams):
        return _refused("Pages cannot be opened for a person here.")
    if problem := form_problem(params.requested_schema):
        return _refused(problem)
    reply = host.elicit(clean(params.message, 2000), params.requested_schema)
    return types.ElicitResult(action=reply.action, content=reply.content)


@asynccontextmanager
async def open_connection(
    name: str,
    server: McpServer,
    launcher: ServerLauncher,
    list_changed: Callable[[], None] = lambda: None,
    *,
    is_legacy: bool = False,
) -> AsyncIterator[tuple[ServerConnection, Listing]]:
    """Start or reach the server, list its tools, and yield both. Leaving ends it.

    With `is_legacy` a server of the older protocol is not asked for the newer one: the question may end it.
    Raises `CannotRun`, and `ToolError` if the server cannot be used now.
    """
    launcher.check_references(name, server)
    ending = LinkEnd()
    seconds = server.start_timeout.total_seconds()
    async with AsyncExitStack() as scopes:
        try:
            async with asyncio.timeout(seconds):
                streams = await scopes.enter_async_context(_open_way(name, server, launcher, ending))
                connection = await scopes.enter_async_context(
                    _open_session(name, server, streams, ending, list_changed, is_legacy=is_legacy)
                )
                listing = await connection.listing()
        except TimeoutError:
            raise ToolError(f"It did not list its tools within {seconds:g} seconds.") from None
        yield connection, listing


@asynccontextmanager
async def _open_way(
    name: str, server: McpServer, launcher: ServerLauncher, ending: LinkEnd
) -> AsyncIterator[TransportStreams]:
    if server.command:
        async with launcher.start(name, server) as process, open_pipes(process, ending) as streams:
            yield streams
        return
    address = server.address
    headers = variables(server.headers, launcher.environ)
    if address.authorization is not None:
        headers.setdefault("Authorization", address.authorization)
    url = address.whole if address.authorization is None else address.target("")
    async with open_http(server, url, headers, ending, _auth(name, server, launcher, ending)) as streams:
        yield streams


def _auth(name: str, server: McpServer, launcher: ServerLauncher, ending: LinkEnd) -> httpx2.Auth | None:
    """Return what adds the token of a login to requests. Raises `CannotRun` where nobody has the logins."""
    if launcher.auth is not None or server.auth != "oauth":
        return launcher.auth
    if launcher.token is None:
        text = "It is used with an OAuth login, and only the running gateway has that."
        raise CannotRun(
            text, f"`talaria mcp list` shows its state; `talaria mcp login {name}` logs in again."
        )
    return LoginAuth(partial(launcher.token, name, server), ending)


@asynccontextmanager
async def _open_session(
    name: str,
    server: McpServer,
    streams: TransportStreams,
    ending: LinkEnd,
    list_changed: Callable[[], None],
    *,
    is_legacy: bool,
) -> AsyncIterator[ServerConnection]:
    connection = ServerConnection(name, ending, list_changed)
    session = ClientSession(
        *streams,
        sampling_callback=connection.on_sampling,
        elicitation_callback=connection.on_elicitation,
        message_handler=connection.on_message,
        client_info=_CLIENT,
    )
    async with session:
        connection.session = session
        await connection._answered(_begin(session, server.protocol, is_legacy=is_legacy))
        async with running(connection.follow_changes(), name=f"mcp changes {name}"):
            yield connection


async def _begin(session: ClientSession, protocol: str, *, is_legacy: bool) -> None:
    """Agree on the protocol's version, or on the one that the settings name. Raises `ToolError` if the server
    speaks another one."""
    if protocol == "auto":
        await (session.initialize() if is_legacy else negotiate_auto(session))
        return
    if protocol in MODERN_PROTOCOL_VERSIONS:
        session.adopt(types.DiscoverResult.model_validate(await session.send_discover(protocol)))
        return
    wanted = types.InitializeRequestParams(
        protocol_version=protocol,
        capabilities=session._build_capabilities(protocol),
        client_info=_CLIENT,
    )
    result = await session.send_request(types.InitializeRequest(params=wanted), types.InitializeResult)
    if result.protocol_version != protocol:
        text = f"It speaks the protocol {clean_line(result.protocol_version, 40)}, and not {protocol}."
        raise ToolError(text, "Set `protocol` of this server to the version that it speaks, or to auto.")
    session.adopt(result)
    await session.send_notification(types.InitializedNotification())
