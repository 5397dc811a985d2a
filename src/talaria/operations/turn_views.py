"""Turns and steps as the HTTP API returns them; other channels and commands use them too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import UNSET, UnsetType

from talaria.core.display import PREVIEW_CHARS
from talaria.core.errors import ErrorInfo, NotFound
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.ledger import TurnRecord
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.spending import Spent
from talaria.core.text import clean_line
from talaria.core.turns import Step, StepKind, StepState, Turn, TurnState
from talaria.core.views import view_of
from talaria.turns.explain import NO_SUCH_TURN, HistoryLine, explain_history

if TYPE_CHECKING:
    from talaria.store.store import Histories

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
        return cls.of(record.turn, tuple(map(StepView.of, record.steps)), record.spent)


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


class ExplainedTurn(TurnView, frozen=True):
    """A turn with its history in sentences. `also` lists older turns with the same message id."""

    story: tuple[HistoryLine, ...] = ()
    also: tuple[TurnId, ...] = ()


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
    return msgspec.structs.replace(turn, files=files, story=explain_history(history), also=tuple(others))


def no_such_turn(name: str) -> NotFound:
    """Return the error for a turn that does not exist, or that the caller may not see: they read alike."""
    return NotFound(f"There is no turn {name}.", NO_SUCH_TURN)


class AcceptedTurn(msgspec.Struct, frozen=True):
    """A turn that has not finished."""

    turn_id: TurnId
    session_id: SessionId
    state: TurnState
