"""`/v1/responses`: OpenAI's responses API, whole or as a stream of events.

Without a session a request is a stateless call. If it is stored (the default), it can be fetched, and a later
request can continue it by `previous_response_id`. With `X-Talaria-Session` the session's agent answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from talaria.channels.http.call_answers import CallAnswers
from talaria.channels.http.front_ends import (
    NamedSession,
    SessionHeaders,
    check_end,
    drop_tools,
    ignores_tools,
    tell_ignored,
)
from talaria.channels.http.request import HttpError, Request, invalid_utf8, read_number
from talaria.channels.http.response import EventStream, Response, StreamTiming, json_response
from talaria.channels.http.responses_events import (
    IN_PROGRESS,
    Outcome,
    ResponseEvents,
    ResponseForm,
    ResponseHead,
    model_of,
    outcome_of,
    stored_items,
)
from talaria.channels.http.responses_items import (
    Context,
    InputItem,
    MessageItem,
    input_items,
    last_user_parts,
    references,
    referred_size,
    response_id,
    spoken_before,
    turn_of,
)
from talaria.channels.http.responses_requests import ResponsesRequest, encode_tools
from talaria.channels.http.retries import submit_once
from talaria.channels.http.settings import HttpSettings
from talaria.core.errors import BadRequest, NotFound
from talaria.core.events import Reset
from talaria.core.ids import TurnId
from talaria.core.messages import AssistantMessage, ToolCall
from talaria.core.responses import NewResponse, StoredResponse
from talaria.core.turns import Inbound, Turn, TurnState
from talaria.core.units import format_size
from talaria.gateway import Gateway
from talaria.operations.sessions import SessionLookup
from talaria.turns.histories import sent_exchanges
from talaria.turns.intake import StatelessCall
from talaria.turns.live import LiveTurn

_PAGE, _MOST_ITEMS = 20, 100
_encode = msgspec.json.Encoder().encode


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItemList(msgspec.Struct, frozen=True):
    data: tuple[dict[str, Any], ...]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


class ResponseApi:
    def __init__(self, gateway: Gateway, settings: HttpSettings, timing: StreamTiming) -> None:
        self._gateway = gateway
        self._turns = gateway.turns
        self._stored = gateway.store.responses
        self._agent_name = gateway.settings.agent.name
        self._max_body = settings.max_body
        self._calls = CallAnswers(gateway, timing)
        self._headers = SessionHeaders(settings.session_header)
        self._lookup = SessionLookup(gateway)

    # -- making responses -----------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response | EventStream:
        """Answer a request. See `CallAnswers.answer` for a client that leaves."""
        key, session = request.idempotency_key(), self._headers.find(request)
        request.hashes_body = session is not None and key is None
        body = await request.json(ResponsesRequest, self._max_body)
        body.check()
        limits = self._gateway.limits
        if isinstance(body.input, list) and len(body.input) > limits.now.completion_messages:
            raise HttpError(
                "too_large", f"The input has {len(body.input)} items.", limits.refuse("completion_messages")
            )
        try:
            items, task = body.items(), None
            if session is not None and self._is_task(session, body, items):
                task, session = session, None
            ignored = drop_tools(body, {}) if ignores_tools(request, session) else ()
            if session is not None:
                ignored += body.check_session(is_front_end=session.is_front_end)
            tell_ignored(request, ignored)
            tools = body.function_tools()
            told = body.told(tools)
        except UnicodeDecodeError as malformed:
            raise invalid_utf8(malformed) from None
        if session is None:
            call = await self._stateless(request, body, items, told)
            if task is not None and call.model is None:
                call = msgspec.structs.replace(call, model=await self._lookup.model(task.name, request.call))
            call = msgspec.structs.replace(call, tools=encode_tools(tools), key=key)
            live = await self._turns.call(call)
        else:
            live = await self._submit(request, session, body, items, key)
        turn, is_stateless = live.turn, session is None
        previous = turn_of(body.previous_response_id or "")
        head = ResponseHead(turn.id, turn.accepted_at, body.model or self._agent_name, told, previous)
        form = ResponseForm(is_stateless, is_stateless and body.wants_sealed)
        events = ResponseEvents(head, form, lambda: live.model) if body.stream else None

        async def finish() -> bytes:
            answer, outcome = await self._result(live)
            if events is not None:
                return events.end(answer, outcome, live.turn.files)
            return await self._whole(live, head, form, answer, outcome)

        return await self._calls.answer(request, live, events, finish, is_stateless=is_stateless)

    async def _stateless(
        self, request: Request, body: ResponsesRequest, items: list[InputItem], told: bytes
    ) -> StatelessCall:
        """Return the call, without its tools."""
        model, gateway = self._wanted_model(body), self._gateway
        body.check_wire(lambda: gateway.providers.wire(gateway.catalog.resolve(model).provider).name)
        behind, pending = None, tuple[ToolCall, ...]()
        if body.previous_response_id is not None:
            previous = await self._previous(request, body.previous_response_id)
            behind = previous.place
            pending = previous.answer.tool_calls if previous.answer is not None else ()
        context = Context(items, await self._answers(request, items), pending)
        if behind is None and not context.messages:
            raise BadRequest("In the field `input`: there is no message.", "Send a text or a message.")
        repeated = b'{"model":%b,%b}' % (_encode(body.model or self._agent_name), told)
        response = NewResponse(repeated.decode(), behind.turn_id if behind else None)
        return StatelessCall(
            sender=request.caller.sender,
            context=context.messages,
            model=model,
            options=body.options(),
            owner=request.caller.owner,
            instructions=body.instructions or "",
            behind=behind,
            response=response if body.is_stored else None,
        )

    def _wanted_model(self, body: ResponsesRequest) -> str | None:
        return None if body.model in (None, "", self._agent_name) else body.model

    def _is_task(self, session: NamedSession, body: ResponsesRequest, items: list[InputItem]) -> bool:
        if not session.is_front_end:
            return session.is_task
        parts = last_user_parts(items)
        return session.has_task(sent_exchanges(spoken_before(items)), parts, is_stream=bool(body.stream))

    async def _submit(
        self,
        request: Request,
        session: NamedSession,
        body: ResponsesRequest,
        items: list[InputItem],
        key: str | None,
    ) -> LiveTurn:
        """Send the message to a session's agent."""
        history = None
        if session.is_front_end:
            check_end(is_answer=isinstance(items[-1], MessageItem) and items[-1].role == "assistant")
            history = sent_exchanges(spoken_before(items))
        chat = await self._lookup.chat(session.name, request.call)
        parts = last_user_parts(items)
        inbound = Inbound(chat, request.caller.sender, parts, key, self._wanted_model(body))
        return await submit_once(self._turns, request, inbound, history)

    async def _previous(self, request: Request, name: str) -> StoredResponse:
        """Return the response to continue. Raises `NotFound`, also for one of another caller, and
        `BadRequest` for one that cannot be continued."""
        found = await self._own(request, name)
        match found.turn.state:
            case TurnState.DONE:
                return found
            case TurnState.FAILED | TurnState.CANCELLED as state:
                raise BadRequest(
                    f"In the field `previous_response_id`: the state of {name} is {state.value}.",
                    "Continue the response before it.",
                )
            case _:
                raise HttpError("busy", f"The response {name} is not finished.", "Wait for its end.")

    async def _answers(self, request: Request, items: Sequence[InputItem]) -> dict[TurnId, AssistantMessage]:
        """Return the answers of the caller's stored responses that the items refer to. Raises `HttpError`
        (413) if the references bring more than a body may have."""
        answers: dict[TurnId, AssistantMessage] = {}
        missing, size = set[TurnId](), 0
        for ref in references(items):
            if ref.turn_id in missing:
                continue
            if (answer := answers.get(ref.turn_id)) is None:
                found = await self._stored.find(ref.turn_id)
                if found is None or found.answer is None or not request.caller.owns(found.turn.chat_key):
                    missing.add(ref.turn_id)
                    continue
                answers[ref.turn_id] = answer = found.answer
            size += referred_size(ref, answer)
            if size > self._max_body:
                raise HttpError(
                    "too_large",
                    f"The items that the input refers to have more than {format_size(self._max_body)}.",
                    "Refer to fewer items, or raise http.max_body in config.toml.",
                )
        return answers

    # -- answers --------------------------------------------------------------------------------------------

    async def _whole(
        self,
        live: LiveTurn,
        head: ResponseHead,
        form: ResponseForm,
        answer: AssistantMessage,
        outcome: Outcome,
    ) -> bytes:
        """Return the response of a turn that is done. Its items are those that a stream of it would have."""
        events = ResponseEvents(head, form)
        async with aclosing(self._calls.events(live)) as followed:
            async for _, event in followed:
                if isinstance(event, Reset):
                    events = ResponseEvents(head, form)
                events.encode(event)
        files = live.turn.files
        events.end(answer, outcome, files)
        return head.encode(outcome, events.items, model_of(answer) or live.model, files)

    async def _result(self, live: LiveTurn) -> tuple[AssistantMessage, Outcome]:
        """Return the last answer of a turn that is done. It is read from the store if this process has not
        made it."""
        turn = live.turn
        if (completion := live.completion) is not None:
            return completion.message, outcome_of(completion.stop, turn.usage, turn.ended_at)
        found = await self._stored.find(turn.id)
        if found is not None and found.answer is not None:
            return found.answer, _outcome(found.turn, found.answer)
        if turn.state is TurnState.FAILED:  # an empty answer; other failures are errors, see `turn_error`
            return AssistantMessage(""), outcome_of("stop", turn.usage, turn.ended_at)
        for entry in reversed(await self._gateway.store.turn_log(turn.session_id, turn.id)):
            if isinstance(entry.body, AssistantMessage):
                return entry.body, _outcome(turn, entry.body)
        answer = AssistantMessage(turn.reply or "")
        return answer, _outcome(turn, answer)

    # -- stored responses -----------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        query = request.query()
        if query.get("stream", "false") != "false" or "starting_after" in query:
            raise BadRequest("A stored response cannot be streamed.", "Leave `stream` out.")
        return _stored_response(await self._find(request))

    async def delete(self, request: Request) -> Response:
        found = await self._own(request, request.params["id"])
        name = response_id(found.turn.id)
        if not found.turn.state.is_final:
            raise HttpError("busy", f"The response {name} is not finished.", "Cancel it first.")
        await self._stored.delete(found.turn.id)
        return json_response(DeletedResponse(name))

    async def cancel(self, request: Request) -> Response:
        """Stop a response that is being made and answer with it. One that is over stays as it is."""
        found = await self._own(request, request.params["id"])
        if not found.turn.state.is_final:
            await self._turns.cancel(await self._turns.find(found.turn.id))
        return _stored_response(await self._find(request))

    async def list_input(self, request: Request) -> Response:
        found = await self._find(request)
        query = request.query()
        limit, order = read_number("limit", query.get("limit", str(_PAGE))), query.get("order", "desc")
        if not 1 <= limit <= _MOST_ITEMS:
            raise BadRequest(
                f"limit={limit} is no size for a page.", f"Write a number from 1 to {_MOST_ITEMS}."
            )
        if order not in ("asc", "desc"):
            raise BadRequest("In the query: `order` is asc or desc.", "Leave it out for desc.")
        entries = await self._stored.input_entries(found)
        messages = [entry.message for entry in entries if entry.message is not None]
        items = input_items(messages, found.turn.id)
        if order == "desc":
            items.reverse()
        if (after := query.get("after")) is not None:
            place = next((n for n, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise BadRequest("In the query: `after` names no item of this response.", "Leave it out.")
            items = items[place + 1 :]
        page = items[:limit]
        first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
        return json_response(InputItemList(tuple(page), first, last, len(items) > limit))

    async def _find(self, request: Request) -> StoredResponse:
        """Return a response that the caller may see. Raises `NotFound`."""
        name = request.params["id"]
        found = await self._read(name)
        if found is None or not request.call.sees(found.turn.chat_key):
            raise _no_such_response(name)
        return found

    async def _own(self, request: Request, name: str) -> StoredResponse:
        """Return a response of the caller's own. Raises `NotFound`."""
        found = await self._read(name)
        if found is None or not request.caller.owns(found.turn.chat_key):
            raise _no_such_response(name)
        return found

    async def _read(self, name: str) -> StoredResponse | None:
        turn_id = turn_of(name)
        return None if turn_id is None else await self._stored.find(turn_id)


def _no_such_response(name: str) -> NotFound:
    return NotFound(
        f"There is no response {name[:64]}.",
        "Responses are kept for `retention.responses`; those with `store: false` or of a session are not.",
    )


def _outcome(turn: Turn, answer: AssistantMessage | None) -> Outcome:
    """Return the outcome of a response that is read from its row."""
    match turn.state:
        case TurnState.DONE:
            stop = (answer is not None and answer.cut) or "stop"
            return outcome_of(stop, turn.usage, turn.ended_at)
        case TurnState.FAILED:
            return Outcome("failed", turn.usage, turn.error, "", turn.ended_at)
        case TurnState.CANCELLED:
            return Outcome("cancelled", turn.usage, None, "", turn.ended_at)
        case _:
            return IN_PROGRESS


def _stored_response(stored: StoredResponse) -> Response:
    turn, answer, outcome = stored.turn, stored.answer, _outcome(stored.turn, stored.answer)
    told = msgspec.json.decode(stored.request, type=dict[str, msgspec.Raw])
    model = msgspec.json.decode(told.pop("model"), type=str)
    head = ResponseHead(turn.id, turn.accepted_at, model, _encode(told)[1:-1], stored.previous)
    items = stored_items(answer, turn.id, outcome)
    return Response(head.encode(outcome, items, model_of(answer) if answer is not None else ""))
