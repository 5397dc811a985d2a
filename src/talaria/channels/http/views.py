"""Sessions, turns and steps as the HTTP API shows them; other channels and commands read them too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec
from msgspec import UNSET, UnsetType

from talaria.channels.http.callers import HOME_CALLER, ApiCaller
from talaria.core.display import PREVIEW_CHARS, clean_line
from talaria.core.errors import ErrorInfo, NotFound
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.search_port import FoundEntry, SearchPage
from talaria.core.sessions import Session
from talaria.core.spending import Spent
from talaria.core.store_ports import Histories
from talaria.core.turns import Step, StepKind, StepState, Turn, TurnState
from talaria.search.words import terms
from talaria.turns.explain import HistoryLine, explain_history
from talaria.turns.turns import NO_SUCH_TURN

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
    """`cost_usd` is an exact decimal, or None if the price of a call is not known. `estimated_calls` did not
    end, or their usage was not reported: their part of the numbers is an estimate."""

    cost_usd: str | None = None
    estimated_calls: int = 0

    @classmethod
    def of(cls, tokens: TokenUsage, spent: Spent) -> UsageView:
        return cls(**msgspec.structs.asdict(tokens), cost_usd=spent.cost_usd, estimated_calls=spent.estimated)


class FileView(SentFile, frozen=True):
    """`path` is the place of the file on the gateway's machine, for callers that are at home there."""

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


class TurnLine(msgspec.Struct, frozen=True):
    """A turn in a list: `text` is the beginning of its message."""

    id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    state: TurnState
    accepted_at: float
    text: str

    @classmethod
    def of(cls, turn: Turn) -> TurnLine:
        text = clean_line(turn.inbound.text, _LINE)
        return cls(turn.id, turn.session_id, turn.chat_key, turn.state, turn.accepted_at, text)


class TurnList(msgspec.Struct, frozen=True):
    items: tuple[TurnLine, ...]


class ExplainedTurn(TurnView, frozen=True):
    """A turn with its history in sentences. `also` are older turns that have the same name."""

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
    turn = ExplainedTurn.of(record.turn, tuple(map(StepView.of, record.steps)), record.spent)
    root = folder_of(record.turn.chat_key) if folder_of is not None else None
    files = tuple(FileView.of(file, root) for file in record.turn.files)
    return msgspec.structs.replace(turn, files=files, story=explain_history(history), also=tuple(others))


def no_such_turn(name: str) -> NotFound:
    """Return the error for a turn that does not exist, or that the caller may not see: they read alike."""
    return NotFound(f"There is no turn {name}.", NO_SUCH_TURN)


class AcceptedTurn(msgspec.Struct, frozen=True):
    """A turn that has not ended."""

    turn_id: TurnId
    session_id: SessionId
    state: TurnState


class SessionView(msgspec.Struct, frozen=True):
    """`name` is the session's name in paths; only sessions of the caller's own chats have one. `model` is the
    session's model; lists leave it out."""

    id: SessionId
    name: str | None
    chat_key: ChatKey
    title: str
    created_at: float
    updated_at: float
    revision: str
    ended_at: float | None
    model: str | None = None

    @classmethod
    def of(cls, session: Session, model: str | None = None, caller: ApiCaller = HOME_CALLER) -> SessionView:
        return cls(
            session.id,
            caller.name_of(session.chat_key),
            session.chat_key,
            session.title,
            session.created_at,
            session.updated_at,
            str(session.revision),
            session.ended_at,
            model,
        )


class SessionList(msgspec.Struct, frozen=True):
    items: tuple[SessionView, ...]
    next: str | None


class FoundView(msgspec.Struct, frozen=True):
    """An entry that was found, the entry `seq` of its session. `excerpt` is the text around the words that
    were looked for. `speaker` is the name of its sender, `assistant`, or the name of a tool. `name` is the
    session's name in paths, as in lists."""

    session_id: SessionId
    seq: int
    title: str
    excerpt: str
    at: float
    speaker: str
    name: str | None
    chat_key: ChatKey

    @classmethod
    def of(cls, hit: FoundEntry, caller: ApiCaller) -> FoundView:
        return cls(
            hit.session_id,
            hit.seq,
            hit.title,
            hit.excerpt,
            hit.at,
            hit.speaker,
            caller.name_of(hit.chat_key),
            hit.chat_key,
        )


class FoundList(msgspec.Struct, frozen=True):
    """The best hits first. `is_complete` is false while older conversations are still being indexed."""

    items: tuple[FoundView, ...]
    next: str | None
    is_complete: bool


def found_list(page: SearchPage, query: str, caller: ApiCaller) -> FoundList:
    """Return the hits whose excerpts have a word of the query. The index also finds what stands beside such
    words, which helps a model, and puzzles a person."""
    wanted = frozenset(terms(query))
    found = (hit for hit in page.hits if not wanted.isdisjoint(terms(hit.excerpt)))
    return FoundList(tuple(FoundView.of(hit, caller) for hit in found), page.next, page.is_complete)


class ProjectView(msgspec.Struct, frozen=True):
    """The folder that a chat works on now."""

    chat_key: ChatKey
    folder: str


class DeletedSession(msgspec.Struct, frozen=True):
    id: SessionId
    deleted: bool = True
