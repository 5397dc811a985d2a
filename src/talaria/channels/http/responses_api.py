"""`/v1/responses`: OpenAI's responses API, whole or as a stream of events.

Without a session a request is a stateless call. If it is stored (the default), it can be fetched, and a later
request can continue it by `previous_response_id`. With `X-Talaria-Session` the session's agent answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from talaria.access.callers import ApiCaller
from talaria.channels.http.api_calls import (
    ApiCall,
    ApiCalls,
    Conversation,
    Events,
    TurnAnswer,
    check_count,
    in_text_only,
    model_of,
)
from talaria.channels.http.request import HttpError, Request, read_number
from talaria.channels.http.response import EventStream, Response, json_response
from talaria.channels.http.responses_input import (
    Context,
    InputItem,
    MessageItem,
    ResponsesRequest,
    encode_tools,
    item_parts,
    item_text,
    references,
    referred_size,
)
from talaria.channels.http.responses_output import (
    IN_PROGRESS,
    Outcome,
    ResponseEvents,
    ResponseForm,
    ResponseHead,
    input_items,
    outcome_of,
    response_id,
    stored_items,
    turn_of,
)
from talaria.core.errors import BadRequest, NotFound
from talaria.core.events import Reset
from talaria.core.ids import TurnId
from talaria.core.ledger import NewResponse, StoredResponse
from talaria.core.messages import AssistantMessage, Part, ToolCall
from talaria.core.turns import Turn, TurnState
from talaria.core.units import format_size
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

    @classmethod
    def of(cls, items: Sequence[dict[str, Any]], limit: int) -> InputItemList:
        """Return the page that begins with the items."""
        page = tuple(items[:limit])
        first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
        return cls(page, first, last, len(items) > limit)


def read_page(query: Mapping[str, str]) -> tuple[int, bool]:
    """Return the size of the page that a query asks for, and whether the last item comes first."""
    limit, order = read_number("limit", query.get("limit", str(_PAGE))), query.get("order", "desc")
    if not 1 <= limit <= _MOST_ITEMS:
        raise BadRequest(f"limit={limit} is no size for a page.", f"Write a number from 1 to {_MOST_ITEMS}.")
    if order not in ("asc", "desc"):
        raise BadRequest("In the query: `order` is asc or desc.", "Leave it out for desc.")
    return limit, order == "desc"


class ResponseItems(Conversation):
    field = "input"
    size = "The input has {} items."

    def __init__(self, items: Sequence[InputItem]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def roles(self) -> list[str]:
        return [item.role if isinstance(item, MessageItem) else "" for item in self._items]

    def parts(self, n: int) -> tuple[Part, ...]:
        return item_parts(self._message(n).content, f"input[{n}].content")

    def text(self, n: int) -> str:
        return item_text(self._message(n).content, n)

    def _message(self, n: int) -> MessageItem:
        item = self._items[n]
        assert isinstance(item, MessageItem)
        return item


class ResponseCall(ApiCall):
    """A request for a response. `api` finds the stored responses that it refers to."""

    def __init__(self, body: ResponsesRequest, items: Sequence[InputItem], api: ResponseApi) -> None:
        super().__init__(ResponseItems(items), body, {}, body.model, is_stream=bool(body.stream))
        self.session = body.conversation_id
        self._body = body
        self._items = items
        self._api = api
        self._repeated = (
            b""  # what every answer repeats of the request, as JSON members; made by the last check
        )

    def check_session(self, *, is_front_end: bool) -> tuple[str, ...]:
        ignored = super().check_session(is_front_end=is_front_end)
        if self._body.read_format() is not None:
            ignored += in_text_only("text.format", is_front_end=is_front_end)
        self._repeated = self._body.told(self._body.function_tools())
        return ignored

    def prompt_field(self) -> str:
        return "instructions" if self._body.instructions else ""

    async def stateless(self, caller: ApiCaller, model: str | None, key: str | None) -> StatelessCall:
        body, calls = self._body, self._api.calls
        tools = body.function_tools()
        self._repeated = body.told(tools)
        body.check_wire(lambda: calls.find_wire(model))
        behind, pending = None, tuple[ToolCall, ...]()
        if body.previous_response_id is not None:
            previous = await self._api.find_previous(caller, body.previous_response_id)
            behind = previous.place
            pending = previous.answer.tool_calls if previous.answer is not None else ()
        context = Context(self._items, await self._api.find_answers(caller, self._items), pending)
        if behind is None and not context.messages:
            raise BadRequest("In the field `input`: there is no message.", "Send a text or a message.")
        response = None
        if body.is_stored:
            request = b'{"model":%b,%b}' % (_encode(self._named_model), self._repeated)
            response = NewResponse(request.decode(), behind.turn_id if behind else None)
        return StatelessCall(
            sender=caller.sender,
            context=context.messages,
            model=model,
            tools=encode_tools(tools),
            options=body.options(),
            key=key,
            owner=caller.owner,
            instructions=body.instructions or "",
            behind=behind,
            response=response,
        )

    @property
    def _named_model(self) -> str:
        return self.model or self._api.calls.agent_name

    def stream(self, live: LiveTurn, *, is_stateless: bool) -> ResponseEvents:
        return ResponseEvents(self._head(live), self._form(is_stateless), lambda: live.model)

    async def encode(
        self, live: LiveTurn, answer: TurnAnswer, events: Events, *, is_stateless: bool
    ) -> bytes:
        """The items are those that a stream would have."""
        head, form = self._head(live), self._form(is_stateless)
        encoder = ResponseEvents(head, form)
        async for _, event in events:
            if isinstance(event, Reset):
                encoder = ResponseEvents(head, form)
            encoder.encode(event)
        encoder.finish_items(answer)
        outcome = outcome_of(answer.stop, answer.usage, answer.ended_at)
        return head.encode(outcome, encoder.items, answer.model or live.model, answer.files)

    def _head(self, live: LiveTurn) -> ResponseHead:
        turn, previous = live.turn, turn_of(self._body.previous_response_id or "")
        return ResponseHead(turn.id, turn.accepted_at, self._named_model, self._repeated, previous)

    def _form(self, is_stateless: bool) -> ResponseForm:
        return ResponseForm(is_stateless, is_stateless and self._body.wants_sealed)


class ResponseApi:
    def __init__(self, calls: ApiCalls) -> None:
        self.calls = calls
        self._turns = calls.gateway.turns
        self._stored = calls.gateway.store.responses

    async def create(self, request: Request) -> Response | EventStream:
        """Answer a request. See `ApiCalls.answer`."""
        return await self.calls.answer(request, self._decode)

    async def _decode(self, request: Request) -> ResponseCall:
        body = await request.json(ResponsesRequest, self.calls.max_body)
        body.check()
        if isinstance(body.input, list):
            check_count(self.calls.gateway.limits, len(body.input), ResponseItems.size)
        if body.conversation is not None:
            await request.hash_late(_encode(body))
        return ResponseCall(body, body.items(), self)

    async def find_previous(self, caller: ApiCaller, name: str) -> StoredResponse:
        """Return the response to continue. Raises `NotFound`, also for one of another caller, and
        `BadRequest` for one that cannot be continued."""
        found = await self._own(caller, name)
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

    async def find_answers(
        self, caller: ApiCaller, items: Sequence[InputItem]
    ) -> Mapping[TurnId, AssistantMessage]:
        """Return the answers of the caller's stored responses that the items refer to. Raises `HttpError`
        (413) if the references bring more than a body may have."""
        answers: dict[TurnId, AssistantMessage] = {}
        missing, size = set[TurnId](), 0
        for ref in references(items):
            if ref.turn_id in missing:
                continue
            if (answer := answers.get(ref.turn_id)) is None:
                found = await self._stored.find(ref.turn_id)
                if found is None or found.answer is None or not caller.owns(found.turn.chat_key):
                    missing.add(ref.turn_id)
                    continue
                answers[ref.turn_id] = answer = found.answer
            size += referred_size(ref, answer)
            if size > self.calls.max_body:
                raise HttpError(
                    "too_large",
                    f"The items that the input refers to have more than {format_size(self.calls.max_body)}.",
                    "Refer to fewer items, or raise http.max_body in config.toml.",
                )
        return answers

    # -- stored responses -----------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        query = request.query()
        if query.get("stream", "false") != "false" or "starting_after" in query:
            raise BadRequest("A stored response cannot be streamed.", "Leave `stream` out.")
        return _stored_response(await self._find(request))

    async def delete(self, request: Request) -> Response:
        found = await self._own(request.caller, request.params["id"])
        name = response_id(found.turn.id)
        if not found.turn.state.is_final:
            raise HttpError("busy", f"The response {name} is not finished.", "Cancel it first.")
        await self._stored.delete(found.turn.id)
        return json_response(DeletedResponse(name))

    async def cancel(self, request: Request) -> Response:
        """Stop a response that is being made and answer with it. One that is over stays as it is."""
        found = await self._own(request.caller, request.params["id"])
        if not found.turn.state.is_final:
            await self._turns.cancel(await self._turns.find(found.turn.id))
        return _stored_response(await self._find(request))

    async def list_input(self, request: Request) -> Response:
        found = await self._find(request)
        query = request.query()
        limit, is_desc = read_page(query)
        entries = await self._stored.input_entries(found)
        messages = [entry.message for entry in entries if entry.message is not None]
        items = input_items(messages, found.turn.id)
        if is_desc:
            items.reverse()
        if (after := query.get("after")) is not None:
            place = next((n for n, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise BadRequest("In the query: `after` names no item of this response.", "Leave it out.")
            items = items[place + 1 :]
        return json_response(InputItemList.of(items, limit))

    async def _find(self, request: Request) -> StoredResponse:
        """Return a response that the caller may see. Raises `NotFound`."""
        name = request.params["id"]
        found = await self._read(name)
        if found is None or not request.call.sees(found.turn.chat_key):
            raise _no_such_response(name)
        return found

    async def _own(self, caller: ApiCaller, name: str) -> StoredResponse:
        """Return a response of the caller's own. Raises `NotFound`."""
        found = await self._read(name)
        if found is None or not caller.owns(found.turn.chat_key):
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
