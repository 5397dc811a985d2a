"""Operations on turns: list, explain and cancel them, and send a message without a turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.access.callers import Credential
from talaria.core.errors import BadRequest, ErrorInfo, NotFound, ToolError
from talaria.core.events import PREVIEW_CHARS
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.ledger import ChatMessage, StepUsage, TurnRecord
from talaria.core.messages import File, TokenUsage, ToolOutcome
from talaria.core.spending import Spent, to_usd
from talaria.core.text import clean_line
from talaria.core.turns import Step, StepKind, StepState, Turn, TurnState
from talaria.core.views import view_of
from talaria.gateway import Gateway, Records
from talaria.operations.operation import ALL, CHAT, OPERATE, Link, OperationCall, argument, operation
from talaria.turns.explain import NO_SUCH_TURN, HistoryLine, explain_history

if TYPE_CHECKING:
    from talaria.store.store import Histories


# -- turns and steps as the HTTP API returns them; other channels and commands use them too ---------------


_LINE = 80


class StepView(msgspec.Struct, frozen=True):
    """A model call has a name and a state; a tool call also has its id, outcome, preview and times."""

    n: int
    kind: StepKind
    name: str
    state: StepState
    call_id: str | UnsetType = UNSET
    outcome: ToolOutcome | UnsetType | None = UNSET
    preview: str | UnsetType = UNSET
    started_at: float | UnsetType | None = UNSET
    ended_at: float | UnsetType | None = UNSET

    @classmethod
    def of(cls, step: Step) -> StepView:
        if step.kind is StepKind.MODEL:
            return cls(step.n, step.kind, step.name, step.state)
        return cls(
            step.n,
            step.kind,
            step.name,
            step.state,
            step.call_id,
            step.result.outcome if step.result else None,
            step.result.text[:PREVIEW_CHARS] if step.result else "",
            step.started_at,
            step.ended_at,
        )


class UsageView(TokenUsage, frozen=True):
    """`cost_usd` is an exact decimal, or null if the price of a call is unknown. `estimated_calls` is the
    number of calls whose usage is estimated, because they did not finish or reported none."""

    cost_usd: str | None = None
    estimated_calls: int = 0

    @classmethod
    def of(cls, tokens: TokenUsage, spent: Spent) -> UsageView:
        return cls(**msgspec.structs.asdict(tokens), cost_usd=spent.cost_usd, estimated_calls=spent.estimated)


class FileView(SentFile, frozen=True):
    """`path` is the file's path on the gateway's machine, for callers on that machine."""

    path: str | UnsetType = UNSET

    @classmethod
    def of(cls, file: SentFile, root: Path | None = None) -> FileView:
        return cls(file.id, file.name, file.type, file.size, str(root / file.copy_path) if root else UNSET)


class TurnView(msgspec.Struct, frozen=True):
    id: TurnId
    session_id: SessionId
    state: TurnState
    reply: str | None
    files: tuple[FileView, ...]
    error: ErrorInfo | None
    usage: UsageView | None
    steps: tuple[StepView, ...]
    accepted_at: float
    command: str | UnsetType = UNSET

    @classmethod
    def of(cls, turn: Turn, steps: tuple[StepView, ...], spent: Spent) -> Self:
        return cls(
            turn.id,
            turn.session_id,
            turn.state,
            turn.reply,
            tuple(map(FileView.of, turn.files)),
            turn.error,
            None if turn.usage is None else UsageView.of(turn.usage, spent),
            steps,
            turn.accepted_at,
            turn.command or UNSET,
        )

    @classmethod
    def recorded(cls, record: TurnRecord) -> Self:
        return cls.of(record.turn, tuple(map(StepView.of, record.steps)), record.spent_by_tree)


class TurnLine(msgspec.Struct, frozen=True):
    """A turn in a list. `text` is the beginning of its message."""

    id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    state: TurnState
    accepted_at: float
    text: str

    @classmethod
    def of(cls, turn: Turn) -> TurnLine:
        return view_of(cls, turn, text=clean_line(turn.inbound.text, _LINE))


class TurnList(msgspec.Struct, frozen=True):
    items: tuple[TurnLine, ...]


class ModelCallView(msgspec.Struct, frozen=True):
    """The model calls of step `n`: their number with retries, tokens and cost. `cost_usd` is null if the
    price is unknown."""

    n: int
    at: float
    model: str
    calls: int
    usage: TokenUsage
    cost_usd: str | None

    @classmethod
    def of(cls, used: StepUsage) -> Self:
        cost = None if used.cost is None else to_usd(used.cost)
        return cls(used.n, used.at, f"{used.provider}/{used.model}", used.calls, used.tokens, cost)


class ExplainedTurn(TurnView, frozen=True):
    """A turn with its history in sentences. `also` lists older turns with the same message id. `model_calls`
    are what each step cost."""

    story: tuple[HistoryLine, ...] = ()
    also: tuple[TurnId, ...] = ()
    model_calls: tuple[ModelCallView, ...] = ()


async def explain_turn(
    histories: Histories,
    name: str,
    sees: Callable[[ChatKey], bool] = lambda chat: True,
    folder_of: Callable[[ChatKey], Path] | None = None,
) -> ExplainedTurn:
    """Return the newest turn that has this name. Reads the store only, so no gateway has to run. With
    `folder_of`, which returns the folder of a chat, files have paths.

    Raises `NotFound`, also for a turn of a chat that the caller does not see.
    """
    first, *others = await histories.find(name) or [TurnId(name)]
    history = await histories.history(first)
    if history is None or not sees(history.record.turn.chat_key):
        raise no_such_turn(name)
    record = history.record
    turn = ExplainedTurn.recorded(record)
    root = folder_of(record.turn.chat_key) if folder_of is not None else None
    files = tuple(FileView.of(file, root) for file in record.turn.files)
    return msgspec.structs.replace(
        turn,
        files=files,
        story=explain_history(history),
        also=tuple(others),
        model_calls=tuple(map(ModelCallView.of, history.usage)),
    )


def no_such_turn(name: str) -> NotFound:
    """Return the error for a turn that does not exist, or that the caller may not see: they read alike."""
    return NotFound(f"There is no turn {name}.", NO_SUCH_TURN)


class AcceptedTurn(msgspec.Struct, frozen=True):
    """A turn that has not finished."""

    turn_id: TurnId
    session_id: SessionId
    state: TurnState


# -- operations on turns: list, explain and cancel them, and send a message without a turn ----------------


_UNKNOWN: Final = ("not_found",)
TurnName = Annotated[str, argument("Turn id, or the platform's id of a message or reply.", "ID")]


class TurnQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=200, description="Maximum number of turns to return.")] = 20


class TurnKey(msgspec.Struct, frozen=True):
    id: TurnName


class SendBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message for a chat."""

    chat: Annotated[str, Meta(description="Chat key, or session name or id.")]
    text: Annotated[str, Meta(description="Message text. May be empty if there are files.")] = ""
    files: Annotated[list[str], Meta(description="Ids of uploaded files.")] = []


class SentView(msgspec.Struct, frozen=True):
    id: TurnId


@operation("turns.list", "GET /api/turns", ALL)
async def list_turns(records: Records, call: OperationCall, wanted: TurnQuery) -> TurnList:
    """List recent turns, newest first."""
    within = call.caller.prefix(records.settings.agent.name)
    turns = await records.store.histories.recent(wanted.limit, within)
    return TurnList(tuple(map(TurnLine.of, turns)))


@operation("turns.show", "GET /api/turns/{id}", ALL, audit="turn.read", errors=_UNKNOWN)
async def show_turn(records: Records, call: OperationCall, wanted: TurnKey) -> ExplainedTurn:
    """Show the history of a turn: received, queued, started, each step, finished, delivered."""
    folder_of = records.folders if call.caller.credential is Credential.HOME else None
    turn = await explain_turn(records.store.histories, wanted.id, call.sees, folder_of)
    if call.caller.owner:  # the others may be of chats that it does not see
        turn = msgspec.structs.replace(turn, also=())
    return turn


@operation("turns.cancel", "POST /api/turns/{id}/cancel", CHAT, audit="turn.cancel", errors=_UNKNOWN)
async def cancel_turn(gateway: Gateway, call: OperationCall, wanted: TurnKey) -> TurnView:
    """Cancel a turn and return it."""
    live = await gateway.turns.find(TurnId(wanted.id))
    if not call.sees(live.turn.chat_key):
        raise no_such_turn(wanted.id)
    turn = await gateway.turns.cancel(live)
    record = await gateway.store.turn_record(turn.id)
    if record is None:
        raise no_such_turn(wanted.id)
    return TurnView.recorded(record)


@operation(
    "messages.send",
    "POST /api/send",
    OPERATE,
    audit="send",
    status=202,
    errors=("not_found", "idempotency_conflict", "too_large"),
    example='{"chat": "home", "text": "The backup is done."}',
    links=(Link(202, "$response.body#/id", "id", ("GET /api/turns/{id}",)),),
    max_body=None,
    takes_key=True,
)
async def send_message(gateway: Gateway, call: OperationCall, wanted: SendBody) -> SentView:
    """Send a message to a chat without running an agent. The gateway answers 202 once it has saved the
    message."""
    caller = call.caller
    call.about = chat = await gateway.sender.find_chat(wanted.chat)
    parts = await gateway.uploads.parts(chat, wanted.files, caller.uploader) if wanted.files else ()
    files = tuple(part.path for part in parts if isinstance(part, File))
    try:
        sent = await gateway.sender.send(ChatMessage(chat, wanted.text, caller.sender, files, call.key))
    except ToolError as error:  # a file that must not be sent
        raise BadRequest(error.user_text, error.hint) from error
    return SentView(sent.turn.id)


TURN_OPERATIONS: Final = (list_turns, show_turn, cancel_turn, send_message)
