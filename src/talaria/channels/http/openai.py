"""`/v1`: the OpenAI-compatible door, with a session of the gateway's or with the caller's whole context."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from talaria.channels.http.answers import Answer, EventStream, Reply, json_answer
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import ClientGone, RawHeaders, turn_error, turn_refusal
from talaria.channels.http.openai_answers import Chunks, Frame, Outcome, whole
from talaria.channels.http.openai_requests import (
    CHAT_REQUEST,
    ChatRequest,
    last_user_parts,
    whole_context,
)
from talaria.channels.http.parts import HttpParts
from talaria.channels.http.sessions import CALLER, Rooms
from talaria.channels.http.turns import TurnDesk, following
from talaria.core.errors import BadRequest
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.turns import Inbound, Turn
from talaria.turns.intake import Receipt, StatelessCall, is_ephemeral

_OWNER: Final = "talaria"


class OpenAIRoutes:
    def __init__(self, parts: HttpParts, desk: TurnDesk) -> None:
        self._parts = parts
        self._turns = parts.turns
        self._desk = desk
        self._rooms = Rooms(parts)

    async def models(self, call: Call) -> Reply:
        catalog = self._parts.catalog
        names = dict.fromkeys((self._parts.agent_name, *catalog.names(), *catalog.listed()))
        models = [{"id": name, "object": "model", "created": 0, "owned_by": _OWNER} for name in names]
        return json_answer({"object": "list", "data": models})

    async def complete(self, call: Call) -> Reply:
        """A session's turn goes on whatever the caller does; a stateless call ends when they leave."""
        key = call.idempotency_key()
        request = await call.json(CHAT_REQUEST, self._parts.settings.max_body)
        request.check()
        session = call.header(b"x-talaria-session")
        if session is None:
            receipt = await self._call(request, key)
        else:
            receipt = await self._say(session, request, key)
        is_owned = session is None and not receipt.is_duplicate
        headers = (
            (b"x-talaria-session-id", receipt.turn.session_id.encode()),
            (b"x-talaria-turn-id", receipt.turn.id.encode()),
        )
        frame = Frame(receipt.turn.id, int(receipt.turn.accepted_at), request.model or self._parts.agent_name)
        if request.stream:
            chunks = Chunks(frame, with_usage=request.wants_usage)
            return EventStream(
                self._stream(receipt, chunks, headers),
                keep_alive=self._parts.keep_alive,
                metrics=self._parts.metrics,
                patience=self._parts.patience,
                headers=headers,
                tell=chunks.failure,
                on_leave=(lambda: self._turns.cancel(receipt)) if is_owned else None,
            )
        try:
            turn = await self._desk.wait(call, receipt)
        except ClientGone:
            if is_owned:
                await self._turns.cancel(receipt)
            raise
        if (error := turn_error(turn)) is not None:
            raise turn_refusal(error, headers)
        return Answer(whole(frame, await self._outcome(receipt, turn)), headers=headers)

    async def _call(self, request: ChatRequest, key: str | None) -> Receipt:
        return await self._turns.call(
            StatelessCall(
                sender=CALLER,
                context=whole_context(request.messages),
                model=self._wish(request),
                tools=request.encoded_tools(),
                options=request.options(),
                key=key,
            )
        )

    async def _say(self, session: str, request: ChatRequest, key: str | None) -> Receipt:
        if request.tools:
            raise BadRequest(
                "In the field `tools`: a session has tools of its own.",
                "Leave `tools` out, or leave out X-Talaria-Session and send the whole conversation.",
            )
        parts = last_user_parts(request.messages)
        chat = await self._rooms.chat(session)
        return await self._turns.submit(Inbound(chat, CALLER, parts, key, self._wish(request)))

    def _wish(self, request: ChatRequest) -> str | None:
        return None if request.model in (None, "", self._parts.agent_name) else request.model

    async def _stream(
        self, receipt: Receipt, chunks: Chunks, headers: RawHeaders
    ) -> AsyncGenerator[bytes, None]:
        """Raises `Refused` when the turn has no answer."""
        turn = receipt.turn
        if receipt.live is not None:
            async with following(receipt.live) as events:
                async for _, event in events:
                    if data := chunks.piece(event):
                        yield data
            turn = receipt.live.turn
        if (error := turn_error(turn)) is not None:
            raise turn_refusal(error, headers)
        yield chunks.end(await self._outcome(receipt, turn))

    async def _outcome(self, receipt: Receipt, turn: Turn) -> Outcome:
        """From memory, or for a repeated key from the log: only there are a stateless call's tool calls."""
        usage = turn.usage or TokenUsage()
        answer = receipt.live.answer if receipt.live is not None else None
        if answer is not None:
            message = answer.completion.message
            finish = answer.completion.stop or "stop"
            return Outcome(message.text, message.tool_calls, _thought(message), finish, usage)
        if not is_ephemeral(turn):
            return Outcome(turn.reply or "", usage=usage)
        for entry in reversed(await self._parts.store.log(turn.session_id, 0)):
            if isinstance(entry.body, AssistantMessage) and entry.turn_id == turn.id:
                message = entry.body
                finish = "tool_calls" if message.tool_calls else "stop"
                return Outcome(message.text, message.tool_calls, _thought(message), finish, usage)
        return Outcome(turn.reply or "", usage=usage)


def _thought(message: AssistantMessage) -> str:
    return "".join(thought.text for thought in message.reasoning)
