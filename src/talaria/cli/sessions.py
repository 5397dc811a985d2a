"""`talaria sessions`: list, show, search, end and delete sessions, by the running gateway or in the store."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, assert_never

import click

from talaria.channels.console.gateway_client import GatewayClient
from talaria.channels.http.callers import HOME_CALLER
from talaria.channels.http.views import FoundList, SessionList, SessionView, found_list
from talaria.cli.home_gateway import GatewayOrStore, ask_home
from talaria.cli.options import Invocation, group
from talaria.cli.text import columns, when
from talaria.config.load import load
from talaria.core.clock import SystemClock
from talaria.core.display import clean, clean_line, describe_call, describe_file
from talaria.core.entries import (
    Announcement,
    Entry,
    Hidden,
    Note,
    ReasoningSet,
    SpecSet,
    Summary,
    SummaryDropped,
    TitleSet,
)
from talaria.core.errors import BadRequest, LeaseHeld, NotFound, SessionOwes, TalariaError
from talaria.core.files import PRIVATE
from talaria.core.ids import SESSION_PREFIX, SessionId, is_session_name
from talaria.core.ledger import EntryPage, Page
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Part,
    SystemMessage,
    Text,
    ToolOutcome,
    ToolResults,
    UserMessage,
)
from talaria.core.people import EVERYTHING
from talaria.core.sessions import Session
from talaria.core.store_ports import Store
from talaria.core.units import format_size
from talaria.core.wrapped_calls import inner_call
from talaria.parts import PARTS
from talaria.search.index import SIDE_FILE, LogIndex
from talaria.store.memory import MemoryStore
from talaria.turns.deletion import Deletions
from talaria.turns.lifecycle import SessionLifecycle
from talaria.workspace.chat_folders import ChatFolders
from talaria.workspace.workspaces import ChatWorkspaces

T = TypeVar("T")
_MAX_RESULT_CHARS = 160


@group("sessions", "talaria sessions list", "talaria sessions show terminal")
def command() -> None:
    """List, show, search, end and delete sessions."""


@command.verb("list", "talaria sessions list --limit 100")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500), help="How many at most.")
def _list(invocation: Invocation, limit: int) -> None:
    """The sessions, newest activity first."""
    found = _with_sessions(invocation, lambda sessions: sessions.sessions(limit))
    if not found.items:
        click.echo("There are no sessions yet.")
        return
    click.echo(_table(found.items))
    if found.next is not None:
        click.echo(f"… and more; --limit {min(limit * 5, 500)} shows more of them.", err=True)


@command.verb("show", "talaria sessions show terminal")
@click.argument("session", metavar="NAME_OR_ID")
def _show(invocation: Invocation, session: str) -> None:
    """Print what was said in a session."""

    async def show(sessions: StoredSessions | GatewayClient) -> None:
        found = await sessions.session(session)
        folder = _folders(invocation)(found.chat_key)
        click.echo(_head(found))
        after, is_over = None, False
        while not is_over:
            page = await sessions.entries(found.id, after)
            files = [(file.turn_id, describe_file(file, str(folder / file.copy_path))) for file in page.files]
            for entry in page.entries:
                for line in entry_lines(entry):
                    click.echo(line)
                is_answer = isinstance(entry.body, AssistantMessage) and not entry.body.tool_calls
                if is_answer or isinstance(entry.body, Announcement):
                    for _, line in (found for found in files if found[0] == entry.turn_id):
                        click.echo(line)
            after, is_over = page.next, page.next is None

    _with_sessions(invocation, show, session)


@command.verb("search", "talaria sessions search tomato soup", "talaria sessions search '\"due on Friday\"'")
@click.argument("words", nargs=-1, required=True, metavar="WORDS…")
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 100), help="How many at most.")
def _search(invocation: Invocation, words: tuple[str, ...], limit: int) -> None:
    """Find what was said, in all sessions."""
    found = _with_sessions(invocation, lambda sessions: sessions.search(" ".join(words), limit))
    for hit in found.items:
        title = clean_line(hit.title, 60) or clean_line(hit.name or hit.chat_key, 60)
        click.echo(f"{when(hit.at)}  {title}  ({hit.session_id}, entry {hit.seq})")
        click.echo(f"    {clean_line(hit.speaker, 40)}: {clean_line(hit.excerpt, 400)}")
    if not found.items:
        click.echo("Nothing was found. Try other words, or fewer.")
    if not found.is_complete:
        click.echo("Older conversations are still being indexed: search again in a moment.", err=True)
    elif found.next is not None:
        click.echo(f"… and more; --limit {min(limit * 5, 100)} shows more of them.", err=True)


@command.verb("end", "talaria sessions end terminal")
@click.argument("session", metavar="NAME_OR_ID")
def _end(invocation: Invocation, session: str) -> None:
    """End a session. Its history stays."""

    async def end(sessions: StoredSessions | GatewayClient) -> str:
        found = await sessions.session(session)
        if found.ended_at is not None:
            return f"{found.id} had ended already, {when(found.ended_at)}."
        return f"Ended {(await sessions.end_session(session)).id}."

    click.echo(_with_sessions(invocation, end, session))


@command.verb("delete", "talaria sessions delete work", "talaria sessions delete ses_01m7gjqa04zern --yes")
@click.argument("session", metavar="NAME_OR_ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
def _delete(invocation: Invocation, session: str, yes: bool) -> None:
    """Delete a session with its history, for good.

    Its log, turns, saved results and copies of sent files go. The chat's own files stay, and so does what was
    spent. Refused while a turn of the session is not over.
    """
    found = _with_sessions(invocation, lambda sessions: sessions.session(session), session)
    click.echo(_head(found), err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("There is no terminal to ask on: say --yes.")
        click.confirm("Delete it with its history? This cannot be undone.", abort=True)
    _with_sessions(invocation, lambda sessions: sessions.delete_session(found.id), session)
    click.echo(f"Deleted {found.id}.")
    folder = _folders(invocation)(found.chat_key)
    if folder.is_dir() and any(path.name != PRIVATE for path in folder.iterdir()):
        click.echo(f"The files of its chat are still in {folder}.", err=True)


class StoredSessions:
    """The methods of `GatewayClient` for sessions, on a store that no gateway uses.

    No turn runs. `end_session` returns when the workspace of the session has ended too.
    """

    def __init__(
        self,
        store: Store,
        agent_name: str,
        lifecycle: SessionLifecycle,
        deletions: Deletions,
        index: LogIndex,
    ) -> None:
        self._store = store
        self._agent_name = agent_name
        self._lifecycle = lifecycle
        self._deletions = deletions
        self._index = index

    async def search(self, query: str, limit: int) -> FoundList:
        try:
            page = await self._index.search(query, EVERYTHING, limit)
        finally:
            await self._index.close()
        return found_list(page, query, HOME_CALLER)

    async def sessions(self, limit: int) -> SessionList:
        page = await self._store.sessions(Page(limit))
        return SessionList(tuple(map(SessionView.of, page.items)), page.next)

    async def session(self, name_or_id: str) -> SessionView:
        return SessionView.of(await self._find(name_or_id))

    async def entries(self, session_id: SessionId, after: str | None) -> EntryPage:
        return await self._store.entries(session_id, Page(after=after))

    async def end_session(self, name_or_id: str) -> SessionView:
        session = await self._find(name_or_id)
        if session.ended_at is None:
            try:
                session = await self._lifecycle.end(session.id)
            except LeaseHeld as error:
                raise BadRequest(
                    f"A turn of {session.id} was running when its gateway stopped.",
                    "Start the gateway with `talaria serve`; when the turn is done, end the session.",
                ) from error
            await self._lifecycle.drain()
        return SessionView.of(session)

    async def delete_session(self, session_id: SessionId) -> None:
        try:
            await self._deletions.delete(session_id)
        except (LeaseHeld, SessionOwes) as error:
            raise BadRequest(
                f"A turn or a reply of {session_id} was not done when its gateway stopped.",
                "Start the gateway with `talaria serve`; when that is done, delete the session.",
            ) from error
        await self._lifecycle.drain()

    async def _find(self, name_or_id: str) -> Session:
        found = None
        if name_or_id.startswith(SESSION_PREFIX):
            found = await self._store.session(SessionId(name_or_id))
        elif is_session_name(name_or_id):
            found = await self._store.current_session(HOME_CALLER.chat_key(self._agent_name, name_or_id))
        if found is None:
            raise NotFound(f"There is no session {name_or_id}.")
        return found


def _with_sessions(
    invocation: Invocation, use: Callable[[StoredSessions | GatewayClient], Awaitable[T]], wanted: str = ""
) -> T:
    """Call `use` and return its result. Raises `NotFound` with a hint for people if `wanted` does not exist;
    the hint of the API is for programs."""
    try:
        return ask_home(invocation, lambda found: use(_open_sessions(invocation, found)))
    except TalariaError as error:
        if error.type != NotFound.type:
            raise
        raise NotFound(
            f"There is no session {wanted}.", "`talaria sessions list` shows the sessions."
        ) from error


def _open_sessions(invocation: Invocation, found: GatewayOrStore) -> StoredSessions | GatewayClient:
    if isinstance(found, GatewayClient):
        return found
    home = invocation.home()
    agent = load(home.path, os.environ, PARTS).settings.agent
    store, folders = MemoryStore(SystemClock()) if isinstance(found, Path) else found, _folders(invocation)
    lifecycle = SessionLifecycle(
        store, SystemClock(), ChatWorkspaces(home.path, folders=folders), release=lambda session_id: None
    )
    index = LogIndex(home.path / SIDE_FILE, store.recall, SystemClock())
    deletions = Deletions(store, SystemClock(), lifecycle, folders, index.forget)
    return StoredSessions(store, agent.name, lifecycle, deletions, index)


def _folders(invocation: Invocation) -> ChatFolders:
    home = invocation.home().path
    settings = load(home, os.environ, PARTS).settings
    return ChatFolders(home, settings.agent.project, settings.store.shared)


# -- output


def _table(sessions: Sequence[SessionView]) -> str:
    rows = [("LAST USED", "NAME", "TITLE", "ID")]
    for view in sessions:
        title = clean_line(view.title, 40) or "-"
        ended = " (ended)" if view.ended_at is not None else ""
        name = clean_line(view.name or view.chat_key, 40)
        rows.append((when(view.updated_at), name, title + ended, view.id))
    return columns(rows)


def _head(view: SessionView) -> str:
    title = f" “{clean_line(view.title)}”" if view.title else ""
    ended = f", ended {when(view.ended_at)}" if view.ended_at is not None else ""
    chat = clean_line(view.name or view.chat_key)
    return f"{view.id}{title}: chat {chat}, begun {when(view.created_at)}{ended}"


def entry_lines(entry: Entry) -> Iterator[str]:
    """Yield a head with the author and the time, then the text. Other entries give at most one line."""
    body, at = entry.body, when(entry.at)
    match body:
        case UserMessage():
            yield f"\nyou, {at}"
            yield from map(_part, body.parts)
        case AssistantMessage():
            mark = " (interrupted)" if body.interrupted else ""
            yield f"\n{clean_line(body.model) or 'assistant'}, {at}{mark}"
            if body.text:
                yield clean(body.text)
            calls = map(inner_call, body.tool_calls)
            yield from (f"⚙ {describe_call(call.name, call.arguments)}" for call in calls)
        case ToolResults():
            for result in body.results:
                word = "" if result.outcome is ToolOutcome.OK else f"{result.outcome.value}: "
                yield f"  ↳ {clean_line(result.name)}: {word}{clean_line(result.text, _MAX_RESULT_CHARS)}"
        case SystemMessage():
            yield f"\n{clean_line(body.role)}, {at}"
            yield clean(body.text)
        case _:
            if line := _describe_mark(body, at):
                yield f"\n({line})"


def _describe_mark(
    body: TitleSet | Hidden | ReasoningSet | Note | Announcement | Summary | SummaryDropped | SpecSet,
    at: str,
) -> str:
    """Return one line about an entry that is no message; empty if it says nothing to people."""
    match body:
        case TitleSet():
            line = f"title: {clean_line(body.title)}"
        case Hidden(first=first, last=last):
            line = f"entries {first} to {last} undone"
        case ReasoningSet():
            line = f"reasoning: {clean_line(body.effort) or 'as configured'}"
        case Note():
            line = clean(body.text)
        case Announcement():
            line = f"sent to this chat, {at}: {clean(body.text)}"
        case Summary():
            line = f"compacted: {_compacted(body)}"
        case SummaryDropped(seq=seq):
            line = f"the summary at entry {seq} does not count any more"
        case SpecSet():
            line = ""
        case _:
            assert_never(body)
    return line


def _compacted(summary: Summary) -> str:
    size = f"{summary.before:,} to {summary.after:,} tokens"
    if not summary.last:
        return size
    return f"{size}; entries {summary.first} to {summary.last} are summarised as\n{clean(summary.text)}"


def _part(part: Part) -> str:
    match part:
        case Text():
            return clean(part.text)
        case Image():
            return "[image]"
        case File(is_message=True):
            return f"[all of this message, {format_size(part.size)}, is in {clean_line(part.path)}]"
        case File():
            return f"[file {clean_line(part.name)}]"
        case _:
            assert_never(part)
