"""Calls under `/v1` in one form, whichever API they came by, and the one path that answers them.

An API is one module. It decodes a request into its own kind of `ApiCall`, and encodes the answer: whole, or
piece by piece with a `StreamEncoder`. `ApiCalls.answer` does the rest: it finds the session, submits the
message or the stateless call, follows the turn, and answers.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol

import msgspec

from talaria.access.callers import ApiCaller
from talaria.channels.http.errors import NOT_AGAIN, turn_error
from talaria.channels.http.part import SESSION_HEADER, HttpSettings
from talaria.channels.http.request import (
    ClientDisconnected,
    HttpError,
    RawHeaders,
    Request,
    invalid_field,
    invalid_utf8,
    quoted,
)
from talaria.channels.http.response import EventStream, Response, StreamTiming
from talaria.channels.http.turn_api import wait_for_turn
from talaria.core.errors import BadRequest, ErrorInfo
from talaria.core.events import Delta, Event, ReasoningDelta, Reset, ToolStarted, UsageReported
from talaria.core.files import SentFile
from talaria.core.ids import is_session_name
from talaria.core.limits import Limits
from talaria.core.messages import AssistantMessage, Image, Part, Text, TokenUsage, UserMessage
from talaria.core.spending import MOST_COUNTED
from talaria.core.tools import inner_call
from talaria.core.turns import Inbound, StepKind, Turn, TurnState
from talaria.gateway import Gateway
from talaria.models.parameters import REFUSED_IN_SESSION, TOOL_PARAMETERS, check_session, is_given, refused
from talaria.operations.sessions import SessionLookup
from talaria.store.store import Store
from talaria.turns.histories import SentExchange, sent_exchanges
from talaria.turns.intake import StatelessCall, is_ephemeral
from talaria.turns.live import LiveTurn
from talaria.turns.retries import ClientRequest, RecentRequests
from talaria.turns.slash import asks_model
from talaria.turns.turns import Turns

# -- calls of other front ends ----------------------------------------------------------------------------
# A front end (Open WebUI, LibreChat) sends its whole chat with each message, its own tools and parameters,
# and asks for titles and tags in calls of the same form. `http.session_header` names the header with the id
# of its chat. Calls with `X-Talaria-Session` are other programs', which know what a session is.


_NAMED: Final = SESSION_HEADER.lower().encode()
_TOOLS: Final = b"x-talaria-tools"
_TASK: Final = b"x-talaria-task"
_TOLD_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_TOLD: Final = 40
# Open WebUI streams the merged answer of several models, too.
_MERGE: Final = "You have been provided with a set of responses from various models"


class NamedSession(msgspec.Struct, frozen=True):
    """The session that a request names: its name or id. `is_front_end`: the header that
    `http.session_header` names told it. `is_task`: the call is about the chat and no part of it."""

    name: str
    is_front_end: bool = False
    is_task: bool = False

    def has_task(self, history: Sequence[SentExchange], parts: Sequence[Part], *, is_stream: bool) -> bool:
        """Return whether a call is a task beside the chat: a title, tags, suggestions, a memory.

        Front ends stream the answers of their chats, and no others, and a task has one message. So the first
        message of a chat that is not streamed counts as a task: better an answer without tools than a task in
        the session.
        """
        if self.is_task:
            return True
        if not self.is_front_end or history:
            return False
        first = parts[0] if parts else None
        is_merge = isinstance(first, Text) and first.text.startswith(_MERGE)
        return is_merge or not is_stream


class SessionHeaders:
    """Reads the headers by which a call under `/v1` says which session it is for."""

    def __init__(self, header: str) -> None:
        """`header` is `http.session_header`."""
        name = header.lower().encode()
        self._front_end = None if name == _NAMED else name

    def find(self, request: Request) -> NamedSession | None:
        """Return None if no header names a session.

        Raises `BadRequest` for the value of a front end that did not fill in its placeholder: all its chats
        would be one session.
        """
        if (name := request.header(_NAMED)) is not None:
            return NamedSession(name, is_task=bool(request.header(_TASK)))
        if self._front_end is None or not (value := request.header(self._front_end)):
            return None
        if "{{" in value or "${" in value:
            raise BadRequest(
                f"The header {self._front_end.decode().title()} is {quoted(value)}: the front end did not "
                "put the id of its chat there.",
                "Correct the placeholder in the front end's settings; docs/clients.md has examples.",
            )
        return NamedSession(_session_name(value), is_front_end=True, is_task=bool(request.header(_TASK)))


class ToolWish(StrEnum):
    """The tools of the caller that a call keeps."""

    ALL = "all"
    FUNCTIONS = "functions"  # without tools that a provider would run, such as a web search
    IGNORE = "ignore"


def read_tool_wish(request: Request, session: NamedSession | None) -> ToolWish:
    """Return the wish of the header `X-Talaria-Tools`. Without one, the tools that a front end sends to a
    session are ignored. Raises `BadRequest` for another wish."""
    wish = request.header(_TOOLS)
    if wish is None:
        return ToolWish.IGNORE if session is not None and session.is_front_end else ToolWish.ALL
    try:
        return ToolWish(wish.lower())
    except ValueError:
        raise BadRequest(
            f"The header X-Talaria-Tools is {quoted(wish)}, which is not known.",
            "Send `ignore` to ignore `tools` and what goes with them, `functions` to ignore tools of other "
            "types, or leave it out.",
        ) from None


def check_end(*, is_answer: bool) -> None:
    """Raise `BadRequest` if the last message of a front end's chat is an answer, which it wants continued."""
    if is_answer:
        raise BadRequest(
            "The chat ends with an answer, and the agent does not write on in the middle of one.",
            "Send a message instead, for example: go on.",
        )


def tell_ignored(request: Request, names: Iterable[str]) -> None:
    """Name the ignored parameters in the response, in the header `X-Talaria-Ignored`. A name that cannot
    stand in a header is left out."""
    told = [name for name in names if _TOLD_NAME.fullmatch(name)][:_MOST_TOLD]
    if told:
        request.more_headers += ((b"x-talaria-ignored", ", ".join(told).encode()),)


def _session_name(value: str) -> str:
    """Return the name of the session for the id of a front end's chat. An id with other characters, such as
    that of Open WebUI's temporary chats, becomes a name that is made from it."""
    if is_session_name(value):
        return value
    return f"chat-{hashlib.sha256(value.encode()).hexdigest()[:32]}"


# -- calls under `/v1` in one form, whichever API they came by, and the one path that answers them --------


_RETRY_COUNT: Final = b"x-stainless-retry-count"
TEXT_BREAK: Final = "\n\n"  # between the texts of two model calls
_EFFECTS: Final = "Tools have run in this turn, so look at what they did first."

Events = AsyncGenerator[tuple[int, Event], None]

# -- the form of a call -----------------------------------------------------------------------------------


class TurnAnswer(msgspec.Struct, frozen=True):
    """The answer of a turn: the model's last message, why the model stopped, and the end of the turn.

    `has_one_call`: the turn had one model call, so `message` has everything that the model said.
    """

    message: AssistantMessage
    stop: str = "stop"
    usage: TokenUsage | None = None
    ended_at: float | None = None
    files: tuple[SentFile, ...] = ()
    has_one_call: bool = True

    @property
    def model(self) -> str:
        """The model that answered, as provider/name. It is empty for a text of the gateway's own."""
        return model_of(self.message)


def model_of(message: AssistantMessage) -> str:
    return f"{message.provider}/{message.model}" if message.provider else message.model


class StreamEncoder(Protocol):
    """Encodes the stream of one answer."""

    def encode(self, event: Event) -> bytes:
        """Return the piece for an event of the turn, or nothing."""
        ...

    def end(self, answer: TurnAnswer) -> bytes:
        """Return the end of the stream, with everything of the answer that no event brought."""
        ...

    def fail(self, error: ErrorInfo, turn: Turn) -> bytes:
        """Return the end of a stream that fails after its status was sent."""
        ...


class Conversation(ABC):
    """The messages of a request, numbered as in its field `field`.

    Methods raise `BadRequest`, which names the field, for content that the gateway does not take. A session
    takes the last message of the user, and nothing else of the conversation has to be valid.
    """

    field: ClassVar[str]
    size: ClassVar[str]  # in words: "The conversation has {} messages."

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def roles(self) -> Sequence[str]:
        """Return the role of each message. Other items of the conversation have an empty one."""

    @abstractmethod
    def parts(self, n: int) -> tuple[Part, ...]:
        """Return the content of the user's message `n`."""

    @abstractmethod
    def text(self, n: int) -> str:
        """Return the text of the assistant's message `n`."""

    def has_system_messages(self) -> bool:
        """Return whether a message is an instruction of the program, and not said by anybody."""
        return not {"system", "developer"}.isdisjoint(self.roles())

    def shown_parts(self, n: int) -> tuple[Part, ...]:
        """Return the content of an earlier message of the user, as a front end repeats it."""
        return self.parts(n)

    def last_message(self) -> tuple[Part, ...]:
        """Return the last message of the user. A session takes only that: the gateway has the rest."""
        roles = self.roles()
        for n in range(len(roles) - 1, -1, -1):
            if roles[n] == "user":
                parts = self.parts(n)
                if not any(not isinstance(part, Text) or part.text.strip() for part in parts):
                    field = f"{self.field}[{n}].content"
                    raise BadRequest(f"In the field `{field}`: it is empty.", "Write something.")
                return parts
        raise BadRequest(
            f"In the field `{self.field}`: there is no message with the role user.",
            "With X-Talaria-Session the last user message is what the session is sent.",
        )

    def earlier_messages(self) -> Iterator[UserMessage | str]:
        """Yield the messages of the user, and the texts of the assistant, before the user's last message."""
        roles = self.roles()
        last = max(n for n, role in enumerate(roles) if role == "user")
        for n, role in enumerate(roles[:last]):
            if role == "user":
                yield UserMessage(self.shown_parts(n))
            elif role == "assistant":
                yield self.text(n)

    def ends_with_answer(self) -> bool:
        return self.roles()[-1] == "assistant"


FUNCTION: Final = "function"


class _Typed(msgspec.Struct):
    type: str = ""


_decode_typed: Final = msgspec.json.Decoder(_Typed).decode


class ApiCall(ABC):
    """A decoded request. `model` is the model that the caller named. `parameters` are the fields that the API
    has, `rest` are others. `ignored` are the fields of a stateless call that have no effect on its model."""

    ignored: tuple[str, ...] = ()
    session: str | None = None  # that the body names

    def __init__(
        self,
        conversation: Conversation,
        parameters: msgspec.Struct,
        rest: dict[str, msgspec.Raw],
        model: str | None,
        *,
        is_stream: bool,
    ) -> None:
        self.conversation = conversation
        self.parameters = parameters
        self.rest = rest
        self.model = model
        self.is_stream = is_stream

    @abstractmethod
    async def stateless(self, caller: ApiCaller, model: str | None, key: str | None) -> StatelessCall:
        """Return the whole conversation with its tools and parameters, as a call without a session. Raises
        `BadRequest`."""

    @abstractmethod
    def stream(self, live: LiveTurn, *, is_stateless: bool) -> StreamEncoder:
        """Return the encoder for the stream of the answer."""

    @abstractmethod
    async def encode(
        self, live: LiveTurn, answer: TurnAnswer, events: Events, *, is_stateless: bool
    ) -> bytes:
        """Return the whole answer of a turn that is over. `events` are those that a stream would get."""

    def _drop_tools(self) -> tuple[str, ...]:
        """Take the tools, and the parameters about them, out of the call. Return the names of those that were
        given."""
        given: dict[str, Any] = {name: self.rest.pop(name) for name in TOOL_PARAMETERS if name in self.rest}
        for field in msgspec.structs.fields(self.parameters):
            if field.name in TOOL_PARAMETERS:
                given[field.name] = getattr(self.parameters, field.name)
                # The very object, which the encoder leaves out.
                setattr(self.parameters, field.name, field.default)
        return tuple(name for name in TOOL_PARAMETERS if name in given and is_given(name, given[name]))

    def keep_tools(self, wish: ToolWish) -> tuple[str, ...]:
        """Take the tools out of the call that the caller does not want. Return their names in
        `X-Talaria-Ignored`."""
        match wish:
            case ToolWish.IGNORE:
                return self._drop_tools()
            case ToolWish.FUNCTIONS:
                return self._keep_functions()
            case ToolWish.ALL:
                return ()

    def _keep_functions(self) -> tuple[str, ...]:
        """Take the tools out of the call that are no functions. Return their types, as `tools.TYPE`."""
        tools = getattr(self.parameters, "tools", None) or []
        types = [self.tool_type(tool) for tool in tools]
        functions = [tool for tool, kind in zip(tools, types, strict=True) if kind == FUNCTION]
        if len(functions) < len(tools):
            setattr(self.parameters, "tools", functions or None)  # noqa: B010 - the struct is known by its fields
        return tuple(dict.fromkeys(f"tools.{kind}" for kind in types if kind != FUNCTION))

    def tool_type(self, tool: Any) -> str:
        """Return the type of a tool, which is `FUNCTION` for a function. Raises `BadRequest`."""
        try:
            return _decode_typed(tool).type
        except msgspec.DecodeError as error:
            raise invalid_field(str(error), "tools") from None

    def check_session(self, *, is_front_end: bool) -> tuple[str, ...]:
        """Raise `BadRequest` for a parameter that a call with a session cannot keep. Return the names of what
        is ignored: the caller's system prompt, and parameters of a front end.

        The prompt of a session is frozen, and what its model has seen stays in its log. So the prompt that a
        client sends with every message would be there once for each of them.
        """
        own = ((name, getattr(self.parameters, name, None)) for name in REFUSED_IN_SESSION)
        ignored = check_session((*own, *self.rest.items()), is_front_end=is_front_end)
        prompts = {self.prompt_field(): None, "system" * self.conversation.has_system_messages(): None}
        return (*filter(None, prompts), *ignored)

    def prompt_field(self) -> str:
        """Return the field with a system prompt, beside those among the messages; empty without one."""
        return ""


# -- checks that decoders share ---------------------------------------------------------------------------


def check_count(limits: Limits, count: int, size: str) -> None:
    """Raise `HttpError` (413) if a conversation has too many messages. `size` is its size in words."""
    if count > limits.now.completion_messages:
        raise HttpError("too_large", size.format(count), limits.refuse("completion_messages"))


def check_output_limit(name: str, value: int | None) -> None:
    """Raise `BadRequest` for a limit of output tokens that no model can keep."""
    if value is not None and not 1 <= value <= MOST_COUNTED:
        expected = "at least 1" if value < 1 else f"at most {MOST_COUNTED}"
        raise BadRequest(f"In the field `{name}`: expected {expected}.", "Leave it out.")


def in_text_only(field: str, *, is_front_end: bool) -> tuple[str, ...]:
    """Return the name of a field with a format of the answer, which a session ignores for a front end. Raises
    `BadRequest` for other callers."""
    if not is_front_end:
        raise refused(
            field,
            "a session answers in text",
            "Leave it out, or leave out X-Talaria-Session and send the whole conversation.",
        )
    return (field,)


def check_utf8(values: Iterable[msgspec.Raw]) -> None:
    """Raise `BadRequest` for JSON that is not decoded on the way to the model and could not be."""
    for raw in values:
        try:
            str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise invalid_utf8(error) from None


def check_tool_name(name: str, known: set[str], field: str) -> None:
    """Add a name to those that are known. Raises `BadRequest` if it is there twice."""
    if name in known:
        raise BadRequest(
            f"In the field `{field}`: {name!r} is there twice.", "Give every tool a name of its own."
        )
    known.add(name)


def is_image(url: str) -> bool:
    """Return whether a model can be sent the image of a URL."""
    return url.startswith(("https:", "data:image/"))


def read_image(url: str | None, detail: str | None, field: str) -> Image:
    if url is None or not is_image(url):
        raise BadRequest(
            f"In the field `{field}`: it is neither https: nor data:image/….",
            "Send the image itself as a data: URL.",
        )
    return Image(url, detail)


# -- answering --------------------------------------------------------------------------------------------


class ApiCalls:
    """Answers the calls of all APIs under `/v1`."""

    def __init__(self, gateway: Gateway, settings: HttpSettings, timing: StreamTiming) -> None:
        self.gateway = gateway
        self.max_body = settings.max_body
        self.agent_name = gateway.settings.agent.name
        self._turns = gateway.turns
        self._store = gateway.store
        self._timing = timing
        self._headers = SessionHeaders(settings.session_header)
        self._lookup = SessionLookup(gateway)

    def find_wire(self, model: str | None) -> str:
        """Return the wire format of a model. Raises `NotFound` or `NoModel`."""
        gateway = self.gateway
        return gateway.providers.wire(gateway.catalog.resolve(model).provider).name

    async def answer(
        self, request: Request, decode: Callable[[Request], Awaitable[ApiCall]]
    ) -> Response | EventStream:
        """Answer a request, whole or as a stream. Raises `HttpError` if the turn has no answer.

        A stateless call is cancelled when the last client that waits for it leaves. The turn of a session
        continues.
        """
        key, session = request.idempotency_key(), self._headers.find(request)
        request.hashes_body = session is not None and key is None
        call = await decode(request)
        if call.session is not None:
            if session is not None and session.name != call.session:
                raise BadRequest("The request names two sessions: in its body and in a header.", "Name one.")
            session = NamedSession(call.session)
        live, is_stateless = await self._accept(request, call, session, key)
        live.callers += 1

        async def leave() -> None:
            live.callers -= 1
            if is_stateless and not live.callers:
                await self._turns.cancel(live)

        headers = (
            (b"x-talaria-session-id", live.turn.session_id.encode()),
            (b"x-talaria-turn-id", live.turn.id.encode()),
        )
        if call.is_stream:
            encoder = call.stream(live, is_stateless=is_stateless)
            return EventStream(
                self._stream(live, encoder, headers, is_stateless=is_stateless),
                keep_alive=self._timing.keep_alive,
                metrics=self.gateway.metrics,
                header_delay=self._timing.header_delay,
                headers=headers,
                format_error=lambda error: encoder.fail(error, live.turn),
                on_disconnect=leave,
            )
        try:
            turn = await wait_for_turn(request, live)
        except ClientDisconnected:
            await leave()
            raise
        if (error := await find_failure(self._store, turn, headers)) is not None:
            raise error
        answer = await self._find_answer(live, is_stateless=is_stateless)
        async with aclosing(self._events(live)) as events:
            body = await call.encode(live, answer, events, is_stateless=is_stateless)
        return Response(body, headers=headers)

    async def _accept(
        self, request: Request, call: ApiCall, session: NamedSession | None, key: str | None
    ) -> tuple[LiveTurn, bool]:
        """Submit the message of a session, or a stateless call: one without a session, or a task about it.
        Return its turn, and whether it is a stateless call."""
        model = None if call.model in (None, "", self.agent_name) else call.model
        said, message, history = call.conversation, tuple[Part, ...](), None
        if session is not None:
            if not session.is_task:
                message = said.last_message()
                if session.is_front_end:
                    self.check_count(said)
                    history = sent_exchanges(said.earlier_messages())
            if session.has_task(history or (), message, is_stream=call.is_stream):
                model = model or await self._lookup.model(session.name, request.call)
                session = None
            elif session.is_front_end:
                check_end(is_answer=said.ends_with_answer())
        ignored = call.keep_tools(read_tool_wish(request, session))
        if session is None:
            self.check_count(said)
            stateless = await call.stateless(request.caller, model, key)
            tell_ignored(request, ignored + call.ignored)
            return await self._turns.call(stateless), True
        tell_ignored(request, ignored + call.check_session(is_front_end=session.is_front_end))
        chat = await self._lookup.chat(session.name, request.call)
        inbound = Inbound(chat, request.caller.sender, message, key, model)
        return await submit_once(self._turns, request, inbound, history), False

    def check_count(self, said: Conversation) -> None:
        """Raise `HttpError` (413) if a conversation has too many messages."""
        check_count(self.gateway.limits, len(said), said.size)

    async def _stream(
        self, live: LiveTurn, encoder: StreamEncoder, headers: RawHeaders, *, is_stateless: bool
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._events(live)) as events:
            async for _, event in events:
                if data := encoder.encode(event):
                    yield data
        if (error := await find_failure(self._store, live.turn, headers)) is not None:
            raise error
        yield encoder.end(await self._find_answer(live, is_stateless=is_stateless))

    async def _find_answer(self, live: LiveTurn, *, is_stateless: bool) -> TurnAnswer:
        """Return the answer of a turn that is done. If no model has answered it in this process, the answer
        comes from the store."""
        turn, completion = live.turn, live.completion
        has_one_call = False
        if completion is not None:
            message, stop = completion.message, completion.stop
            has_one_call = is_stateless or (len(live.steps) == 1 and not live.is_resumed)
        elif turn.state is TurnState.FAILED:  # an empty answer; other failures are errors, see `turn_error`
            message, stop = AssistantMessage("", model=live.model), "stop"
        else:
            message = await self._read_last(turn) or AssistantMessage(turn.reply or "")
            stop = message.cut or "stop"
        return TurnAnswer(message, stop, turn.usage, turn.ended_at, turn.files, has_one_call)

    async def _read_last(self, turn: Turn) -> AssistantMessage | None:
        """Return the last message of the model from the log of a turn. Turns that ask no model have none."""
        if asks_model(turn.command):
            for entry in reversed(await self._store.turn_log(turn.session_id, turn.id)):
                if isinstance(entry.body, AssistantMessage):
                    return entry.body
        return None

    def _events(self, live: LiveTurn) -> Events:
        """Return the events of a turn. If this process has not seen all of a session's turn, they come from
        its log, when the turn is over. The same applies after a `Reset`, without what was sent before it."""
        if is_ephemeral(live.turn):
            return live.follow()
        return self._replay(live, []) if live.is_recorded or live.is_resumed else self._follow(live)

    async def _follow(self, live: LiveTurn) -> Events:
        sent = [_SentAnswer()]
        async with aclosing(live.follow()) as events:
            async for number, event in events:
                if isinstance(event, Reset):
                    break
                match event:
                    case Delta(text=text):
                        sent[-1].texts.append(text)
                    case ReasoningDelta():
                        sent[-1].has_reasoning = True
                    case UsageReported():
                        sent.append(_SentAnswer())
                yield number, event
            else:
                return
        async with aclosing(self._replay(live, sent)) as events:
            async for number, event in events:
                yield number, event

    async def _replay(self, live: LiveTurn, sent: Sequence[_SentAnswer]) -> Events:
        """Yield what the log has of a turn, without `sent`: the answers of its model calls that the client
        has, of which the last one has not ended."""
        turn = await self._turns.wait(live)
        if not asks_model(turn.command):
            return
        log = await self._store.turn_log(turn.session_id, turn.id)
        answers = [(entry.seq, entry.body) for entry in log if isinstance(entry.body, AssistantMessage)]
        for n, (seq, answer) in enumerate(answers):
            known = sent[n] if n < len(sent) else _SentAnswer()
            thought = "".join(thought.text for thought in answer.reasoning)
            if thought and not known.has_reasoning:
                yield seq, ReasoningDelta(thought)
            if text := known.rest_of(answer.text, turn):
                yield seq, Delta(text)
            if n >= len(sent) - 1:
                yield seq, UsageReported(TokenUsage(), answer.model)  # the end of one answer
            for call in map(inner_call, answer.tool_calls):
                yield seq, ToolStarted(call.id, call.name, call.arguments)


class _SentAnswer:
    """The pieces of one answer that a client was sent. Nothing can be taken back."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.has_reasoning = False

    def rest_of(self, text: str, turn: Turn) -> str:
        """Return the part of the answer's text that the client does not have. Raises `HttpError` if the
        answer is another one now."""
        sent = "".join(self.texts)
        if text and not text.startswith(sent):
            raise HttpError(
                "stale_fence",
                "The answer was begun anew, because its gateway or its lease was lost, and it differs from "
                "what was sent before.",
                f"GET /api/turns/{turn.id} has the whole answer.",
            )
        return text[len(sent) :]


async def find_failure(store: Store, turn: Turn, headers: RawHeaders) -> HttpError | None:
    """Return the reason why a turn has no answer, or None if it has one.

    If tools have run, the status is `NOT_AGAIN`.
    """
    error = turn_error(turn, headers)
    if error is None or is_ephemeral(turn) or not turn.state.is_final:
        return error
    record = await store.turn_record(turn.merged_into or turn.id)
    steps = record.steps if record is not None else ()
    if any(step.kind is StepKind.TOOL and step.started_at is not None for step in steps):
        info = error.info()
        info = msgspec.structs.replace(info, hint=f"{_EFFECTS} {info.hint}".strip())
        error = HttpError.told(info, error.headers)
        error.status = NOT_AGAIN
    return error


async def join_texts(events: Events) -> str:
    """Return the text that a stream of a turn brings: the texts of all its model calls."""
    texts: list[str] = []
    needs_break = False
    async for _, event in events:
        match event:
            case Delta(text=text):
                if needs_break:
                    texts.append(TEXT_BREAK)
                texts.append(text)
                needs_break = False
            case UsageReported():
                needs_break = bool(texts)
    return "".join(texts)


# -- requests that clients send again by themselves ---------------------------------------------------------


async def submit_once(
    turns: Turns, request: Request, inbound: Inbound, history: Sequence[SentExchange] | None = None
) -> LiveTurn:
    """Submit the message of a request to a session. If the request is a retry, return the turn of the first
    one. A key decides alone; without a key the body was read with `hashes_body`.

    OpenAI's clients number their retries; others just repeat the request.
    """
    if not request.hashes_body:
        return await turns.submit(inbound, history=history)
    scope = f"{inbound.sender.id}\n{inbound.chat_key}\n{request.path}\n".encode()
    digest = hashlib.sha256(scope + request.body_hash).hexdigest()[:32]
    count = request.headers.get(_RETRY_COUNT, b"0")
    is_retry = count.isdigit() and count.strip(b"0") != b""
    repeatable = ClientRequest(digest, request.has_left, is_retry=is_retry)
    live = await turns.submit(inbound, repeatable, history)
    request.watcher = _Watcher(turns.requests, repeatable, live)
    return live


class _Watcher:
    """Tells the turns whether the answer of a turn has reached the client. Implements `AnswerWatcher`."""

    def __init__(self, requests: RecentRequests, request: ClientRequest, live: LiveTurn) -> None:
        self._requests = requests
        self._request = request
        self._live: LiveTurn | None = live

    def written(self) -> None:
        # A client may also have been told that its turn continues.
        if self._live is not None and self._live.turn.state.is_final:
            self._requests.answered(self._request)

    def ended(self) -> None:
        self._live = None  # the connection may keep this watcher for a while
        self._requests.broken(self._request)

    def unread(self) -> None:
        self._requests.unread(self._request)
