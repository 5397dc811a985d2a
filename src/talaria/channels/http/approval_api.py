"""`/api/approvals`: the questions that wait for a person, and the decisions."""

from __future__ import annotations

from typing import Literal

import msgspec

from talaria.access.approvals import Decider
from talaria.channels.http.request import Request
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.session_api import read_page
from talaria.core.errors import BadRequest, NotFound
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.ledger import AskedQuestion
from talaria.core.questions import QuestionKind, Span
from talaria.core.turns import Sender, TurnState
from talaria.gateway import Gateway

_MAX_DECISION = 128 << 10  # bytes; an answer may be long


class DecisionBody(msgspec.Struct, rename={"span": "for"}):
    """`decision` for an approval, `answer` for a question of the model's."""

    decision: Literal["approve", "deny"] | None = None
    span: Literal["once", "session", "always"] = "once"
    answer: str | None = None


class ApprovalView(msgspec.Struct, frozen=True):
    """An open question. `text` is all that the person is asked, with invisible characters escaped."""

    id: QuestionId
    kind: QuestionKind
    tool: str
    text: str
    choices: tuple[str, ...]
    turn_id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    requester: Sender
    asked_at: float
    expires_at: float

    @classmethod
    def of(cls, asked: AskedQuestion) -> ApprovalView:
        question, turn = asked.question, asked.turn
        sender = Sender(turn.inbound.sender.id, turn.inbound.sender.name)
        return cls(
            question.id,
            question.kind,
            question.name,
            question.text,
            question.choices,
            turn.id,
            turn.session_id,
            turn.chat_key,
            sender,
            question.asked_at,
            question.expires_at,
        )


class ApprovalList(msgspec.Struct, frozen=True):
    items: tuple[ApprovalView, ...]
    next: str | None


class DecidedView(msgspec.Struct, frozen=True, rename={"span": "for"}):
    """The decision as it was recorded. `turn_id` goes on once none of its questions is open."""

    id: QuestionId
    decision: str
    span: Span
    turn_id: TurnId
    state: TurnState


class ApprovalApi:
    def __init__(self, gateway: Gateway) -> None:
        self._decisions = gateway.turns.decisions
        self._agent_name = gateway.settings.agent.name

    async def list(self, request: Request) -> Response:
        """The open questions that the caller may see, oldest first."""
        page = await self._decisions.listing(read_page(request), request.caller.prefix(self._agent_name))
        return json_response(ApprovalList(tuple(map(ApprovalView.of, page.items)), page.next))

    async def decide(self, request: Request) -> Response:
        body = await request.json(DecisionBody, _MAX_DECISION)
        if (body.decision is None) == (body.answer is None):
            raise BadRequest(
                "A decision has either `decision` or `answer`.",
                'Send {"decision": "approve"}, {"decision": "deny"} or {"answer": "…"}.',
            )
        question_id = QuestionId(request.params["id"])
        found = await self._decisions.find(question_id)
        if not request.sees(found.turn.chat_key):
            raise NotFound(f"There is no question {question_id}.", "GET /api/approvals lists the open ones.")
        is_approval = found.question.kind is not QuestionKind.ANSWER
        if is_approval == (body.decision is None):
            raise BadRequest(
                f"{question_id} is {'approved or denied' if is_approval else 'answered in words'}.",
                'Send {"decision": "approve"} or "deny".' if is_approval else 'Send {"answer": "…"}.',
            )
        sender = request.caller.sender
        decider = Decider(sender.id, found.turn.chat_key, is_operator=sender.is_operator)
        text, span = body.decision or body.answer or "", Span(body.span)
        await self._decisions.decide_as(decider, question_id, text, span)
        turn = found.turn
        return json_response(DecidedView(question_id, text, span, turn.id, turn.state))
