"""The routes of the HTTP API: the handler, the roles and the description of each call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from talaria.access.callers import AuditLog, RouteAccess
from talaria.access.credentials import Logins, TokenChecker
from talaria.channels.http.api_calls import ApiCalls
from talaria.channels.http.chat_completions import ChatApi, CompletionRequest, ModelCard, ModelCards
from talaria.channels.http.cluster_api import ClusterApi, cluster_routes
from talaria.channels.http.conversations_api import (
    ConversationApi,
    ConversationBody,
    ConversationObject,
    DeletedConversation,
)
from talaria.channels.http.description import (
    IDEMPOTENCY_KEY,
    Call,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkError,
    DescriptionApi,
    Field,
    MessageEvent,
    MessageObject,
    ResponseEvent,
    ResponseObject,
)
from talaria.channels.http.embeddings_api import EmbeddingApi, EmbeddingRequest
from talaria.channels.http.file_api import FileApi
from talaria.channels.http.guard import Guard, MemberCalls
from talaria.channels.http.login_api import LoginApi, LoginBody, LoginCode, LoginSecret, share_logins
from talaria.channels.http.messages_api import AnthropicApi, MessagesRequest, TokenCount
from talaria.channels.http.part import SESSION_HEADER, HttpSettings
from talaria.channels.http.request import RawHeaders, Request, invalid_field
from talaria.channels.http.response import Response, StreamTiming, json_response
from talaria.channels.http.responses_api import DeletedResponse, InputItemList, ResponseApi
from talaria.channels.http.responses_input import ResponsesRequest
from talaria.channels.http.routing import ApiRoute, Handler, HttpApp
from talaria.channels.http.turn_api import (
    FeedApi,
    FeedLagged,
    FeedReady,
    FeedRecord,
    FeedReset,
    FeedTurn,
    MessageBody,
    TurnApi,
)
from talaria.channels.web.pages import PageFiles
from talaria.core.events import EVENT_KINDS
from talaria.core.turns import TurnState
from talaria.gateway import Gateway
from talaria.observe.health import GatewayPhase
from talaria.observe.metrics import CONTENT_TYPE
from talaria.operations.operation import InputField, Link, Operation
from talaria.operations.status import count_jobs
from talaria.operations.table import OPERATIONS, Operations
from talaria.operations.turns import AcceptedTurn, TurnView
from talaria.turns.feed import RECORD_EVENTS
from talaria.workspace.uploads import Upload

# -- endpoints for probes and Prometheus: health, readiness and metrics -----------------------------------


_DAY = 86_400.0


class HealthView(msgspec.Struct, frozen=True):
    live: bool
    phase: GatewayPhase


class ReadyView(msgspec.Struct, frozen=True):
    """`troubles` names the checks that fail; `/api/status` says why."""

    ready: bool
    phase: GatewayPhase
    loop_lag_seconds: float
    troubles: tuple[str, ...]


class OperatorApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def healthz(self, request: Request) -> Response:
        return json_response(HealthView(live=True, phase=self._gateway.health.phase))

    async def readyz(self, request: Request) -> Response:
        """Needs no token, so it leaves the reasons out; `/api/status` has them."""
        readiness = self._gateway.health.readiness()
        lag = self._gateway.loop_watch.load.lag
        body = ReadyView(readiness.is_ready, readiness.phase, round(lag, 3), readiness.troubles)
        return json_response(body, 200 if readiness.is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        metrics, store = self._gateway.metrics, self._gateway.store
        no_skips: Mapping[str, int] = {}
        stats, jobs, skips = await asyncio.gather(
            store.stats(),
            count_jobs(self._gateway),
            self._gateway.health.ask_store(
                "skips", lambda: store.jobs.skipped(store.clock.now() - _DAY), no_skips
            ),
        )
        metrics.note_store(stats)
        metrics.note_jobs(jobs, store.clock.now(), skips)
        return Response(metrics.render(), media_type=CONTENT_TYPE.encode())


# -- the routes of operations: the input from path, query and body, the answer as JSON, the description ---


_NO_STORE: RawHeaders = ((b"cache-control", b"no-store"),)


def operation_routes(
    operations: Operations, gateway: Gateway, max_body: int
) -> dict[str, dict[str, ApiRoute]]:
    """Return the routes by path and method. `max_body` is for operations without a limit of their own."""
    routes: dict[str, dict[str, ApiRoute]] = {}
    for operation in operations:
        handle = _handler(operation, gateway, max_body)
        route = ApiRoute(handle, operation.access, _describe(operation), operation.audit)
        routes.setdefault(operation.path, {})[operation.method] = route
    return routes


def _handler(operation: Operation[Any, Any, Any], gateway: Gateway, max_body: int) -> Handler:
    headers = _NO_STORE if operation.is_secret else ()
    most = max_body if operation.max_body is None else operation.max_body

    async def handle(request: Request) -> Response:
        if operation.takes_key:
            request.call.key = request.idempotency_key()
        answer = await operation.handle(gateway, request.call, await _read(operation, request, most))
        return json_response(answer, operation.status_of(answer), headers)

    return handle


async def _read(operation: Operation[Any, Any, Any], request: Request, max_body: int) -> msgspec.Struct:
    """Return the input of a call. Raises `BadRequest`."""
    given: dict[str, Any] = {}
    if operation.body is not None:
        body = await request.json(operation.body, max_body)
        given = {name: getattr(body, name) for name in body.__struct_fields__}
    if operation.outside_body is not None:
        outside = _convert(operation, {**request.query(), **request.params})
        given |= {name: getattr(outside, name) for name in outside.__struct_fields__}
    wanted: msgspec.Struct = operation.input(**given)
    return wanted


def _convert(operation: Operation[Any, Any, Any], texts: dict[str, str]) -> msgspec.Struct:
    """Return the fields of path and query. A field for yes or no may stand there without a value: `?all`."""
    for field in operation.fields:
        if _plain(field) is bool and texts.get(field.key) == "":
            texts[field.key] = "true"
    try:
        found: msgspec.Struct = msgspec.convert(texts, operation.outside_body, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), whole="query") from None
    return found


def _plain(field: InputField) -> Any:
    return get_args(field.kind)[0] if get_origin(field.kind) is Annotated else field.kind


def _describe(operation: Operation[Any, Any, Any]) -> Call:
    return Call(
        operation.help,
        operation.output,
        operation.status,
        also=operation.also,
        body=operation.body,
        fields=(*_fields(operation), *((IDEMPOTENCY_KEY,) if operation.takes_key else ())),
        errors=operation.errors,
        example=operation.example,
        links=operation.links,
    )


def _fields(operation: Operation[Any, Any, Any]) -> Iterable[Field]:
    """Yield the fields that are not in the body, those of the path first."""
    for field in sorted(operation.fields, key=lambda field: field.place != "path"):
        if field.place != "body":
            is_told = not field.is_required and field.default not in ("", False, msgspec.UNSET)
            default = f" Default: {field.default}." if is_told else ""
            text = f"{field.text}{default}"
            yield Field(field.key, text, _bounds(field), field.place, required=field.is_required)


def _bounds(field: InputField) -> Any:
    """Return the type of a field with its limits and without its help, which stands beside it."""
    if get_origin(field.kind) is not Annotated:
        return field.kind
    meta: Meta = field.kind.__metadata__[0]
    limits = {name: getattr(meta, name) for name in ("ge", "le", "min_length", "max_length", "pattern")}
    return Annotated[_plain(field), Meta(**limits)]


# -- the routes of the HTTP API: the handler, the roles and the description of each call ------------------


Table = dict[str, dict[str, ApiRoute]]

_OPEN, _ALL, _READ = RouteAccess.OPEN, RouteAccess.ALL, RouteAccess.READ
_CHAT, _OPERATE = RouteAccess.CHAT, RouteAccess.OPERATE

# -- what the descriptions share ----------------------------------------------------------------------------

_ANY: Final = "*/*"
_Number = Annotated[int, Meta(ge=0, le=999_999_999_999_999)]
_ITEM_PAGE: Final = (
    Field("limit", "How many of them, 20 if it is not given.", Annotated[int, Meta(ge=1, le=100)]),
    Field("order", "`asc` or `desc`, which is the default.", Literal["asc", "desc"]),
    Field("after", "The id of the last item of the page before."),
)
_SESSION: Final = (
    Field(SESSION_HEADER, "Lets the agent of this session answer, which keeps the history.", where="header"),
    Field(
        "X-Talaria-Tools",
        "`ignore`: the caller's `tools` and what goes with them are ignored. `functions`: the others are.",
        where="header",
    ),
    Field("X-Talaria-Task", "The call is about the session's chat and no part of it.", where="header"),
    IDEMPOTENCY_KEY,
)
_TOLD: Final = {
    "X-Talaria-Session-Id": "The session of the turn.",
    "X-Talaria-Turn-Id": "The turn that answers.",
    "X-Talaria-Ignored": "The parameters that were ignored, if there are some.",
}
_LAST_EVENT: Final = Field("Last-Event-ID", "Leaves out the events up to this one.", _Number, "header")
_ACCEPT_ERRORS: Final = (
    "not_found", "not_current", "busy", "idempotency_conflict", "limit", "no_model", "draining", "lease_held",
)  # fmt: skip
_ANSWER_ERRORS: Final = (
    *_ACCEPT_ERRORS, "over_budget", "cancelled", "model", "model_refused", "answer_too_large",
    "model_unavailable", "model_resting", "answer_memory_full", "context_too_long",
)  # fmt: skip
_OF_TURN: Final = ("GET /api/turns/{id}", "GET /api/turns/{id}/events", "POST /api/turns/{id}/cancel")
_OF_SESSION: Final = (
    "GET /api/sessions/{x}",
    "GET /api/sessions/{x}/entries",
    "GET /api/sessions/{x}/files",
    "POST /api/sessions/{x}/end",
    "DELETE /api/sessions/{x}",
)
_OF_RESPONSE: Final = (
    "GET /v1/responses/{id}",
    "GET /v1/responses/{id}/input_items",
    "POST /v1/responses/{id}/cancel",
    "DELETE /v1/responses/{id}",
)
_FEED_EVENTS: Final[dict[str, type]] = {
    **{state.value: FeedTurn for state in TurnState},
    **{str(what): FeedRecord for what in RECORD_EVENTS},
    "ready": FeedReady,
    "lagged": FeedLagged,
    "reset": FeedReset,
}


def create_app(
    gateway: Gateway,
    settings: HttpSettings,
    logins: Logins,
    hosts: frozenset[str],
    timing: StreamTiming,
    *,
    operations: Operations = OPERATIONS,
) -> HttpApp:
    """Return the API of a gateway. `hosts` are the exact Host headers that are let in. Other members of the
    gateway's cluster may call if it has a token.

    Patterns are tried in this order, so the busy ones come first.
    """
    calls = ApiCalls(gateway, settings, timing)
    routes: Table = {
        **_turn_routes(TurnApi(gateway, settings, timing), FeedApi(gateway, timing)),
        **_model_routes(calls, gateway, settings.session_header),
        **_file_routes(FileApi(gateway, settings)),
        **operation_routes(operations, gateway, settings.max_body),
        **_login_routes(
            LoginApi(logins, gateway.store, share_logins(gateway, logins), gateway.home, settings.base_path)
        ),
        **_operator_routes(OperatorApi(gateway)),
    }
    routes |= _page_routes(PageFiles(settings.base_path), DescriptionApi(routes))
    peers, members = gateway.peers, None
    if peers is not None and peers.token:
        store, most = gateway.store, max(settings.max_file, settings.max_body)
        members = MemberCalls(peers.token, gateway.turns.owner, store.clock.now, store.cluster.members)
        routes |= cluster_routes(ClusterApi(gateway, peers.timing, logins, most))
    tokens = TokenChecker(gateway.store.tokens, gateway.clock)
    guard = Guard(hosts, settings.origins, logins, tokens, members)
    audit, base_path = AuditLog(gateway.clock), settings.base_path
    return HttpApp(routes, guard, audit, gateway.metrics, gateway.webhooks, base_path=base_path)


def _turn_routes(turns: TurnApi, feed: FeedApi) -> Table:
    send = Call(
        "Send a message. Once it is on disk the answer is 202; with `wait` it is 200 and the turn, if that "
        "ends in time. A failed turn is no error of the call.",
        TurnView,
        also={202: AcceptedTurn},
        body=MessageBody,
        fields=(
            Field(
                "wait", "Seconds to wait for the end of the turn, at most 3600.", Annotated[float, Meta(ge=0)]
            ),
            IDEMPOTENCY_KEY,
        ),
        errors=_ACCEPT_ERRORS,
        example='{"text": "hello"}',
        links=(
            Link(202, "$response.body#/turn_id", "id", _OF_TURN),
            Link(200, "$response.body#/id", "id", _OF_TURN),
            Link(202, "$request.path.x", "x", _OF_SESSION),
        ),
    )
    events = Call(
        "The events of a turn as they happen. If the last event was seen before, the answer is 204.",
        also={204: None},
        fields=(_LAST_EVENT,),
        events=EVENT_KINDS,
        errors=("not_found",),
    )
    feed_events = Call(
        "The states of all turns that the caller may see, and changes of sessions, questions, jobs and "
        "replies, as they happen. It begins with the turns that are not over, and then `ready`.",
        fields=(_LAST_EVENT._replace(text="Turns that have ended since this event come first."),),
        events=_FEED_EVENTS,
    )
    return {
        "/api/sessions/{x}/messages": {"POST": ApiRoute(turns.send, _CHAT, send, "message.send")},
        "/api/events": {"GET": ApiRoute(feed.events, _ALL, feed_events)},
        "/api/turns/{id}/events": {"GET": ApiRoute(turns.events, _ALL, events, "turn.read")},
    }


def _model_routes(calls: ApiCalls, gateway: Gateway, session_header: str) -> Table:
    chat, responses, messages = ChatApi(calls), ResponseApi(calls), AnthropicApi(calls)
    talks, embeddings = ConversationApi(gateway), EmbeddingApi(calls)
    fields: tuple[Field, ...] = _SESSION
    if session_header != SESSION_HEADER:
        fields += (Field(session_header, "The id of a front end's chat: names its session.", where="header"),)
    complete = Call(
        "A chat completion, whole or with `stream` as events. Without a session the messages are the whole "
        "conversation.",
        ChatCompletion,
        body=CompletionRequest,
        fields=fields,
        events={"": ChatCompletionChunk, "error": ChunkError},
        errors=_ANSWER_ERRORS,
        passes_on=True,
        told=_TOLD,
        example='{"messages": [{"role": "user", "content": "hello"}]}',
    )
    create = Call(
        "A response, whole or with `stream` as events. `previous_response_id` continues an earlier one.",
        ResponseObject,
        body=ResponsesRequest,
        fields=fields,
        events={"response.…": ResponseEvent},
        errors=_ANSWER_ERRORS,
        passes_on=True,
        told=_TOLD,
        example='{"input": "hello"}',
        links=(Link(200, "$response.body#/id", "id", _OF_RESPONSE),),
    )
    write = Call(
        "A message as in Anthropic's API, whole or with `stream` as events. Without a session the messages "
        "are the whole conversation.",
        MessageObject,
        body=MessagesRequest,
        fields=fields,
        events={"message_…, content_block_…": MessageEvent},
        errors=_ANSWER_ERRORS,
        passes_on=True,
        told=_TOLD,
        example='{"model": "main", "max_tokens": 1024, "messages": [{"role": "user", "content": "hello"}]}',
    )
    count = Call("About how many tokens the request has.", TokenCount, body=MessagesRequest)
    unknown = ("not_found",)
    show = Call("A stored response.", ResponseObject, errors=unknown)
    delete = Call("Delete a stored response.", DeletedResponse, errors=("not_found", "busy"))
    cancel = Call(
        "Stop a response that is being made. The answer is the response.", ResponseObject, errors=unknown
    )
    items = Call("The items of its input, the last first.", InputItemList, fields=_ITEM_PAGE, errors=unknown)
    talk = Call(
        "A new conversation: a session that begins with its first response.",
        ConversationObject,
        body=ConversationBody,
        example="{}",
    )
    shown = Call("A conversation.", ConversationObject, errors=unknown)
    gone = Call(
        "Delete a conversation with its history.",
        DeletedConversation,
        errors=("not_found", "busy", "draining"),
    )
    said = Call("What was said in it, the last first.", InputItemList, fields=_ITEM_PAGE, errors=unknown)
    vectors = Call(
        "Embeddings, as the provider of the model makes them.",
        dict,
        body=EmbeddingRequest,
        errors=_ANSWER_ERRORS,
        example='{"model": "openai/text-embedding-3-small", "input": "hello"}',
    )
    models = Call("The values that `model` may have.", ModelCards)
    model = Call("One of the models; its name may have slashes.", ModelCard, errors=("not_found", "no_model"))
    return {
        "/v1/chat/completions": {"POST": ApiRoute(chat.complete, _CHAT, complete, "message.send")},
        "/v1/responses": {"POST": ApiRoute(responses.create, _CHAT, create, "message.send")},
        "/v1/messages": {"POST": ApiRoute(messages.create, _CHAT, write, "message.send")},
        "/v1/messages/count_tokens": {"POST": ApiRoute(messages.count_tokens, _CHAT, count)},
        "/v1/responses/{id}": {
            "GET": ApiRoute(responses.show, _ALL, show, "response.read"),
            "DELETE": ApiRoute(responses.delete, _CHAT, delete, "response.delete"),
        },
        "/v1/responses/{id}/cancel": {"POST": ApiRoute(responses.cancel, _CHAT, cancel, "response.cancel")},
        "/v1/responses/{id}/input_items": {
            "GET": ApiRoute(responses.list_input, _ALL, items, "response.read")
        },
        "/v1/conversations": {"POST": ApiRoute(talks.create, _CHAT, talk)},
        "/v1/conversations/{id}": {
            "GET": ApiRoute(talks.show, _ALL, shown, "session.read"),
            "DELETE": ApiRoute(talks.delete, _CHAT, gone, "session.delete"),
        },
        "/v1/conversations/{id}/items": {"GET": ApiRoute(talks.items, _ALL, said, "session.read")},
        "/v1/embeddings": {"POST": ApiRoute(embeddings.create, _CHAT, vectors)},
        "/v1/models": {"GET": ApiRoute(chat.models, _ALL, models)},
        "/v1/models/{model}": {"GET": ApiRoute(chat.model, _ALL, model)},
    }


def _file_routes(files: FileApi) -> Table:
    upload = Call(
        "Upload a file for a later message. The body is the file itself.",
        Upload,
        201,
        body="application/octet-stream",
        fields=(
            Field("name", "The name of the file."),
            Field("X-File-Name", "The same, percent-encoded.", where="header"),
        ),
        errors=("limit",),
        links=(Link(201, "$response.body#/id", "id", ("GET /api/files/{id}",)),),
    )
    show = Call(
        "A file that was uploaded, or that the agent sent.",
        _ANY,
        also={206: _ANY},
        fields=(
            Field("Range", "A part of the file, such as `bytes=0-99`.", where="header"),
            Field("If-Range", "The `ETag` that the part must be of.", where="header"),
        ),
        errors=("not_found", "no_such_range"),
    )
    return {
        "/api/files": {"POST": ApiRoute(files.upload, _CHAT, upload)},
        "/api/files/{id}": {"GET": ApiRoute(files.show, _ALL, show, "file.read")},
    }


def _login_routes(login: LoginApi) -> Table:
    log_in = Call(
        "Exchange the code of a link for a login: a cookie, and the secret in the answer.",
        LoginSecret,
        body=LoginBody,
        errors=("bad_code", "internal"),
    )
    new_code = Call(
        "A new code for a login, valid once. Needs the home's own token.",
        LoginCode,
        201,
        errors=("token_needed",),
    )
    log_out = Call("End the login.", None, 204)
    return {
        "/api/login": {"POST": ApiRoute(login.log_in, _OPEN, log_in, "login")},
        "/api/login/codes": {"POST": ApiRoute(login.new_code, _OPERATE, new_code, "login.code")},
        "/api/logout": {"POST": ApiRoute(login.log_out, _ALL, log_out, "logout")},
    }


def _operator_routes(operator: OperatorApi) -> Table:
    healthz = Call("Whether the process lives.", HealthView)
    readyz = Call("Whether messages are accepted and turns run.", ReadyView, also={503: ReadyView})
    metrics = Call("Metrics for Prometheus.", "text/plain")
    return {
        "/healthz": {"GET": ApiRoute(operator.healthz, _OPEN, healthz)},
        "/readyz": {"GET": ApiRoute(operator.readyz, _OPEN, readyz)},
        "/metrics": {"GET": ApiRoute(operator.metrics, _READ, metrics)},
    }


def _page_routes(pages: PageFiles, description: DescriptionApi) -> Table:
    index = Call("The web page.", "text/html", also={304: None})
    asset = Call("A file of the web page.", _ANY, also={304: None}, errors=("not_found",))
    kept = Call(
        "A file of this version of the web page, which browsers keep.",
        _ANY,
        also={304: None},
        errors=("not_found",),
    )
    openapi = Call("This description, as OpenAPI 3.1. `/assets/calls.html` shows it.", dict)
    return {
        "/": {"GET": ApiRoute(pages.index, _OPEN, index)},
        "/assets/{name}": {"GET": ApiRoute(pages.asset, _OPEN, asset)},
        "/assets/{tree}/{name}": {"GET": ApiRoute(pages.kept_asset, _OPEN, kept)},
        "/openapi.json": {"GET": ApiRoute(description.openapi, _ALL, openapi)},
    }
