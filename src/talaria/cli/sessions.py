"""`talaria sessions`: lists, shows, searches, ends and deletes sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import click

from talaria.cli.operations import YES, Carrier, Verb, add_verbs, ask, ask_each
from talaria.cli.options import Invocation, confirm, group
from talaria.cli.text import columns, when
from talaria.config.load import load
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
from talaria.core.events import describe_call, describe_file
from talaria.core.files import PRIVATE
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
from talaria.core.text import clean, clean_line
from talaria.core.tools import inner_call
from talaria.core.units import format_size
from talaria.operations.operation import PageQuery
from talaria.operations.sessions import (
    DeletedSession,
    EntriesQuery,
    FoundList,
    SearchQuery,
    SessionKey,
    SessionList,
    SessionView,
    read_entries,
    show_session,
)
from talaria.parts import PARTS
from talaria.workspace.places import ChatFolders

_MAX_RESULT_CHARS = 160


@group("sessions", "talaria sessions list", "talaria sessions show terminal")
def command() -> None:
    """List, show, search, end and delete sessions."""


def _show_list(invocation: Invocation, wanted: PageQuery, found: SessionList) -> None:
    if not found.items:
        click.echo("There are no sessions yet.")
        return
    click.echo(_table(found.items))
    if found.next is not None:
        click.echo(f"… and more; --limit {min(wanted.limit * 5, 500)} shows more of them.", err=True)


def _show_found(invocation: Invocation, wanted: SearchQuery, found: FoundList) -> None:
    for hit in found.items:
        title = clean_line(hit.title, 60) or clean_line(hit.name or hit.chat_key, 60)
        click.echo(f"{when(hit.at)}  {title}  ({hit.session_id}, entry {hit.seq})")
        click.echo(f"    {clean_line(hit.speaker, 40)}: {clean_line(hit.excerpt, 400)}")
    if not found.items:
        click.echo("Nothing was found. Try other words, or fewer.")
    if not found.is_complete:
        click.echo("Older conversations are still being indexed: search again in a moment.", err=True)
    elif found.next is not None:
        click.echo(f"… and more; --limit {min(wanted.limit * 5, 100)} shows more of them.", err=True)


def _check_not_ended(invocation: Invocation, wanted: SessionKey, options: dict[str, Any]) -> SessionKey:
    if options["as_json"]:
        return wanted
    found = ask(invocation, show_session, wanted)
    if found.ended_at is not None:
        click.echo(f"{found.id} had ended already, {when(found.ended_at)}.")
        raise click.exceptions.Exit(0)
    return wanted


def _show_ended(invocation: Invocation, wanted: SessionKey, ended: SessionView) -> None:
    click.echo(f"Ended {ended.id}.")


def _confirm_deletion(invocation: Invocation, wanted: SessionKey, options: dict[str, Any]) -> SessionKey:
    found = ask(invocation, show_session, wanted)
    click.echo(_head(found), err=True)
    confirm("Delete it with its history? This cannot be undone.", yes=options["yes"])
    return SessionKey(found.id)


def _show_deleted(invocation: Invocation, wanted: SessionKey, deleted: DeletedSession) -> None:
    click.echo(f"Deleted {deleted.id}.")
    folder = _folders(invocation)(deleted.chat_key)
    if folder.is_dir() and any(path.name != PRIVATE for path in folder.iterdir()):
        click.echo(f"The files of its chat are still in {folder}.", err=True)


add_verbs(
    command,
    {
        "list": Verb(show=_show_list, without=frozenset({"after"})),
        "search": Verb(show=_show_found, without=frozenset({"after"})),
        "end": Verb(_check_not_ended, _show_ended),
        "delete": Verb(_confirm_deletion, _show_deleted, (YES,)),
    },
)


@command.verb("show", "talaria sessions show terminal")
@click.argument("session", metavar="NAME_OR_ID")
def _show(invocation: Invocation, session: str) -> None:
    """Print the conversation of a session."""

    async def show(carry_out: Carrier) -> None:
        found = await carry_out(show_session, SessionKey(session))
        folder = _folders(invocation)(found.chat_key)
        click.echo(_head(found))
        after: str | None = ""
        while after is not None:
            page = await carry_out(read_entries, EntriesQuery(x=found.id, after=after))
            files = [(file.turn_id, describe_file(file, str(folder / file.copy_path))) for file in page.files]
            for entry in page.entries:
                for line in entry_lines(entry):
                    click.echo(line)
                is_answer = isinstance(entry.body, AssistantMessage) and not entry.body.tool_calls
                if is_answer or isinstance(entry.body, Announcement):
                    for _, line in (found for found in files if found[0] == entry.turn_id):
                        click.echo(line)
            after = page.next

    ask_each(invocation, show)


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
