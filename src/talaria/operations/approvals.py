"""Operations on approval requests and the model's questions: list and decide them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from talaria.access.approvals import Decider
from talaria.core.errors import BadRequest, NotFound
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.ledger import AskedQuestion
from talaria.core.questions import QuestionKind, Span
from talaria.core.turns import Sender, TurnState
from talaria.core.views import view_of
from talaria.gateway import Gateway
from talaria.operations.operation import ALL, CHAT, OperationCall, PageQuery, argument, operation

_MAX_DECISION: Final = 128 << 10  # bytes; an answer may be long


class DecisionBody(msgspec.Struct, frozen=True, kw_only=True, rename={"span": "for"}):
    """Send `decision` for an approval request, or `answer` for a question from the model."""

    id: Annotated[str, argument("Request id.", "ID")]
    decision: Annotated[
        Literal["approve", "deny"] | None, Meta(description="Decision on an approval request.")
    ] = None
    span: Annotated[
        Literal["once", "session", "always"],
        Meta(description="How long the decision is valid. Only operators can choose `always`."),
    ] = "once"
    answer: Annotated[str | None, Meta(description="Answer to the model's question.")] = None


class ApprovalView(msgspec.Struct, frozen=True):
    """An open approval request or question. `text` is the full text shown to the person, with invisible
    characters escaped."""

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
        sender = asked.turn.inbound.sender
        requester = Sender(sender.id, sender.name)
        return view_of(cls, asked.question, asked.turn, tool=asked.question.name, requester=requester)


class ApprovalList(msgspec.Struct, frozen=True):
    items: tuple[ApprovalView, ...]
    next: str | None


class DecidedView(msgspec.Struct, frozen=True, rename={"span": "for"}):
    """The recorded decision. The turn resumes once it has no open requests."""

    id: QuestionId
    decision: str
    span: Span
    turn_id: TurnId
    state: TurnState


@operation("approvals.list", "GET /api/approvals", ALL)
async def list_approvals(gateway: Gateway, call: OperationCall, wanted: PageQuery) -> ApprovalList:
    """List open approval requests and questions, oldest first."""
    prefix = call.caller.prefix(gateway.settings.agent.name)
    page = await gateway.turns.decisions.listing(wanted.page, prefix)
    return ApprovalList(tuple(map(ApprovalView.of, page.items)), page.next)


@operation(
    "approvals.decide",
    "POST /api/approvals/{id}",
    CHAT,
    audit="approval.decide",
    errors=("not_found", "forbidden", "question_closed"),
    example='{"decision": "approve", "for": "once"}',
    max_body=_MAX_DECISION,
)
async def decide_approval(gateway: Gateway, call: OperationCall, wanted: DecisionBody) -> DecidedView:
    """Approve or deny a tool call, or answer the model's question. Allowed for the sender of the message that
    caused the request, and for the role `operate`."""
    if (wanted.decision is None) == (wanted.answer is None):
        raise BadRequest(
            "Send either `decision` or `answer`.",
            'Examples: {"decision": "approve"}, {"decision": "deny"}, {"answer": "…"}.',
        )
    decisions, question_id = gateway.turns.decisions, QuestionId(wanted.id)
    found = await decisions.find(question_id)
    if not call.sees(found.turn.chat_key):
        raise NotFound(f"There is no request {question_id}.", "`GET /api/approvals` lists the open requests.")
    is_approval = found.question.kind is not QuestionKind.ANSWER
    if is_approval == (wanted.decision is None):
        raise BadRequest(
            f"{question_id} needs {'a decision' if is_approval else 'an answer'}.",
            'Send {"decision": "approve"} or "deny".' if is_approval else 'Send {"answer": "…"}.',
        )
    sender = call.caller.sender
    decider = Decider(sender.id, found.turn.chat_key, is_operator=sender.is_operator)
    text, span = wanted.decision or wanted.answer or "", Span(wanted.span)
    await decisions.decide_as(decider, question_id, text, span)
    turn = found.turn
    return DecidedView(question_id, text, span, turn.id, turn.state)


class PictureQuery(msgspec.Struct, frozen=True):
    id: Annotated[str, argument("Request id.", "ID")]


class PictureView(msgspec.Struct, frozen=True):
    """A picture. `data` is its content in base64."""

    type: str
    data: bytes


@operation("approvals.picture", "GET /api/approvals/{id}/picture", ALL, errors=("not_found",), is_secret=True)
async def show_picture(gateway: Gateway, call: OperationCall, wanted: PictureQuery) -> PictureView:
    """Show the page that an open approval request of a browser tool is about, as it is now."""
    found = await gateway.turns.decisions.find(QuestionId(wanted.id))
    picture = None
    if call.sees(found.turn.chat_key) and found.question.decision is None:
        picture = await gateway.workspaces.picture(found.turn.session_id, found.question.name)
    if picture is None:
        hint = "Only open requests of browser tools have one."
        raise NotFound(f"There is no picture for {wanted.id}.", hint)
    return PictureView("image/png", picture)


APPROVAL_OPERATIONS: Final = (list_approvals, decide_approval, show_picture)
