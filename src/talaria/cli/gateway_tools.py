"""The tools of `talaria mcp serve`: ask an agent, find and read sessions, make and list jobs.

Each call goes to the running gateway over HTTP, so the role of the caller's token counts there, as for every
other program.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote, urlencode

import anyio
import msgspec

from talaria.channels.console.gateway_client import GatewayClient, RetryPolicy
from talaria.channels.console.plain import question_text
from talaria.channels.http.views import ExplainedTurn, SessionList
from talaria.cli.sessions import entry_lines
from talaria.cli.text import when
from talaria.core.display import clean, clean_line, describe_call
from talaria.core.errors import BadRequest
from talaria.core.events import (
    Cancelled,
    Delta,
    Done,
    Event,
    Failed,
    FellBack,
    ModelLoading,
    QuestionAsked,
    Queued,
    Retrying,
    ToolStarted,
)
from talaria.core.ids import is_session_name
from talaria.core.ledger import EntryPage
from talaria.core.questions import QuestionKind
from talaria.jobs.views import JobList, JobView, ProposalView
from talaria.tools.function import Arguments, counted, flag, parameters, problems, text, without_nulls

RETRY_SECONDS = 30.0
BEAT_SECONDS = 10.0  # clients give up on a call that is silent, most of them after a minute
CANCEL_SECONDS = 5.0
MAX_PAGE_CHARS = 40_000
_COMMAND = re.compile(r"\s*/\w")
_DEFAULT_PAGE, _LARGEST_PAGE = 20, 100
Report = Callable[[str], Awaitable[None]]


class ToolAnswer(msgspec.Struct, frozen=True):
    """The result of a call: text for a model, and the same as data for programs."""

    text: str
    data: dict[str, Any] = {}
    is_error: bool = False


class CallPlace(msgspec.Struct, frozen=True):
    """The surroundings of a call: the gateway, and a function that tells the client of progress."""

    gateway: GatewayClient
    report: Report


class GatewayTool(msgspec.Struct, frozen=True):
    name: str
    title: str
    description: str
    schema: dict[str, Any]
    run: Callable[[CallPlace, Arguments], Awaitable[ToolAnswer]]
    is_read_only: bool = True

    async def call(self, place: CallPlace, arguments: Arguments) -> ToolAnswer:
        """Check the arguments and run the tool. Raises `TalariaError`."""
        given = without_nulls(arguments, self.schema)
        if wrong := problems(given, self.schema):
            raise BadRequest(f"The arguments of {self.name} are wrong: {' '.join(wrong)}")
        return await self.run(place, given)


# -- asking -----------------------------------------------------------------------------------------------


async def _ask(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    """Send the message and follow its turn. If the call is cancelled, the turn is cancelled too."""
    words = arguments["text"]
    if _COMMAND.match(words):
        raise BadRequest(
            "Slash commands are for people, not for programs.",
            "Write a message without the slash, or let the person send the command in a chat.",
        )
    name = arguments.get("session") or f"mcp-{secrets.token_hex(5)}"
    if not is_session_name(name) and not name.startswith("ses_"):
        raise BadRequest(f"{name!r} is no name of a session.", "Use letters, digits, dots, _ and -.")
    retry = RetryPolicy(RETRY_SECONDS)
    key, model = secrets.token_hex(16), arguments.get("model")
    sent = await place.gateway.send(name, words, key, model=model, retry=retry)
    start = {"session": name, "session_id": sent.session_id, "turn_id": sent.turn_id}
    try:
        async with asyncio.timeout(arguments.get("wait")):
            return await _follow(place, start, retry)
    except TimeoutError:
        state = f"It still runs. `get_turn` with turn_id {sent.turn_id} has its reply later."
        return ToolAnswer(state, start | {"state": "running"})
    except asyncio.CancelledError:
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            await place.gateway.cancel(sent.turn_id)
        raise


async def _follow(place: CallPlace, start: dict[str, Any], retry: RetryPolicy) -> ToolAnswer:
    """Return the outcome of a turn, telling of its progress until then. A turn that waits for a person is an
    outcome too: nobody may be there to decide."""
    beats = asyncio.create_task(_beat(place.report))
    turn_id, seen = start["turn_id"], 0
    try:
        async with aclosing(place.gateway.follow(turn_id, retry)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    seen += len(event.text)
                if isinstance(event, QuestionAsked):
                    return _waiting(event, start)
                if isinstance(event, Done | Failed | Cancelled):
                    return await _outcome(place.gateway, event, start)
                if said := _describe(event, seen):
                    await place.report(said)
    finally:
        beats.cancel()
    raise AssertionError("a stream of events ends with a final one")


async def _beat(report: Report) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await report("The agent is at work.")


def _describe(event: Event, seen: int) -> str:
    """Return a line for the person who waits; empty for an event that says nothing to people."""
    line = ""
    match event:
        case ToolStarted():
            line = f"⚙ {describe_call(event.name, event.arguments)}"
        case Queued():
            line = f"{event.ahead} messages of this chat come first."
        case Retrying():
            line = f"The model failed ({clean_line(event.reason, 100)}); it is tried again."
        case FellBack():
            line = f"Now {clean_line(event.model, 100)} answers."
        case ModelLoading():
            line = event.sentence()
        case Delta() if seen == len(event.text):
            line = "The agent writes."
    return line


def _waiting(event: QuestionAsked, start: dict[str, Any]) -> ToolAnswer:
    question = {"id": event.question_id, "kind": event.kind.value, "choices": list(event.choices)}
    data = start | {"state": "waiting", "question": question}
    if event.kind is QuestionKind.ANSWER:
        how = f'Answer with `ask` and session "{start["session"]}".'
    else:
        how = "Only a person can decide this, on the page or in a chat; `get_turn` then has the reply."
    return ToolAnswer(f"The agent waits for a person.\n{clean(question_text(event))}\n{how}", data)


async def _outcome(
    gateway: GatewayClient, event: Done | Failed | Cancelled, start: dict[str, Any]
) -> ToolAnswer:
    match event:
        case Done():
            files = await gateway.describe_files(start["turn_id"], event.files) if event.files else []
            data = start | {"state": "done", "reply": event.reply, "files": files}
            return ToolAnswer("\n".join((event.reply, *files)), data)
        case Failed():
            error = event.error
            return ToolAnswer(f"{error.message} {error.hint}".strip(), start | {"state": "failed"}, True)
        case Cancelled():
            return ToolAnswer(f"It was cancelled. {event.reply}", start | {"state": "cancelled"}, True)


async def _get_turn(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    turn_id = arguments["turn_id"]
    turn = await place.gateway.ask("GET", f"/api/turns/{quote(turn_id, safe='')}", ExplainedTurn)
    data = {"turn_id": turn.id, "session_id": turn.session_id, "state": turn.state.value, "reply": turn.reply}
    text = turn.reply or (f"{turn.error.message} {turn.error.hint}".strip() if turn.error else "")
    return ToolAnswer(text or f"The turn is {turn.state.value}.", data, turn.error is not None)


# -- sessions ---------------------------------------------------------------------------------------------


async def _list_sessions(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    found = await place.gateway.ask("GET", f"/api/sessions?{_page(arguments)}", SessionList)
    rows = [
        {"id": view.id, "name": view.name, "title": view.title, "chat": view.chat_key}
        | {"updated_at": when(view.updated_at), "ended": view.ended_at is not None}
        for view in found.items
    ]
    lines = [
        f"{when(view.updated_at)}  {view.name or view.chat_key}  {clean_line(view.title, 60)}  {view.id}"
        for view in found.items
    ]
    return ToolAnswer("\n".join(lines) or "There are no sessions.", {"sessions": rows, "next": found.next})


async def _search_sessions(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    found = await place.gateway.search(arguments["query"], arguments.get("limit", _DEFAULT_PAGE))
    hits = [
        {"session_id": hit.session_id, "seq": hit.seq, "title": hit.title, "at": when(hit.at)}
        | {"speaker": hit.speaker, "excerpt": hit.excerpt}
        for hit in found.items
    ]
    lines = [
        f"{when(hit.at)}  {hit.session_id} entry {hit.seq}, {clean_line(hit.speaker, 40)}: "
        f"{clean_line(hit.excerpt, 400)}"
        for hit in found.items
    ]
    return ToolAnswer("\n".join(lines) or "Nothing was found. Try other words, or fewer.", {"hits": hits})


async def _read_session(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    """Return a page of the log, up to a number of entries and of characters. A longer entry is cut."""
    path = f"/api/sessions/{quote(arguments['session'], safe='')}/entries?{_page(arguments)}"
    page = await place.gateway.ask("GET", path, EntryPage)
    texts: list[str] = []
    size, following = 0, page.next
    for at, entry in enumerate(page.entries):
        said = "\n".join(entry_lines(entry)).strip("\n")[:MAX_PAGE_CHARS]
        if texts and size + len(said) > MAX_PAGE_CHARS:
            following = str(page.entries[at - 1].seq)
            break
        texts += [said] if said else []
        size += len(said)
    more = f"\n\n[more: `after` = {following}]" if following else ""
    return ToolAnswer(("\n\n".join(texts) or "There is nothing here.") + more, {"next": following})


def _page(arguments: Arguments) -> str:
    fields = {"limit": arguments.get("limit", _DEFAULT_PAGE)}
    return urlencode(fields | ({"after": arguments["after"]} if arguments.get("after") else {}))


# -- jobs -------------------------------------------------------------------------------------------------


async def _add_job(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    """Save a job. One whose time was said in words is shown first, and saved when that was confirmed."""
    fields = {name: value for name, value in arguments.items() if name != "confirmed"}
    fields.pop("asked_at", None)
    proposal = await place.gateway.ask("POST", "/api/jobs", ProposalView, fields | {"confirm": False})
    shown = "\n".join(map(clean, proposal.lines))
    asked_at = arguments.get("asked_at")
    if proposal.worded and not (arguments.get("confirmed") and asked_at):
        text = (
            f"Nothing is saved yet.\n{shown}\nShow these times to the person. If they are right, call "
            f"`add_job` again with the same arguments, confirmed = true and asked_at = {proposal.asked_at!r}."
        )
        return ToolAnswer(text, {"saved": False, "asked_at": proposal.asked_at, "next": list(proposal.next)})
    if proposal.worded:
        fields["asked_at"] = asked_at
    job = await place.gateway.ask("POST", "/api/jobs", JobView, fields)
    return ToolAnswer(f"Saved as {job.id}.\n{shown}", {"saved": True, **_job(job)})


async def _list_jobs(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    found = await place.gateway.ask("GET", f"/api/jobs?{_page(arguments)}", JobList)
    jobs = [_job(job) for job in found.items]
    lines = [
        f"{job.id}  {clean_line(job.name, 60)}  {job.schedule}  {job.state}  "
        f"next: {', '.join(job.next) or '-'}"
        for job in found.items
    ]
    return ToolAnswer("\n".join(lines) or "There are no jobs.", {"jobs": jobs, "next": found.next})


def _job(job: JobView) -> dict[str, Any]:
    kept = ("id", "name", "text", "schedule", "timezone", "state", "reason")
    return {name: getattr(job, name) for name in kept} | {"next": list(job.next)}


# -- the list ---------------------------------------------------------------------------------------------


def _schema(properties: dict[str, dict[str, Any]], required: Sequence[str] = ()) -> dict[str, Any]:
    return msgspec.json.decode(parameters(properties, required), type=dict[str, Any])


_LIMIT = counted(f"How many at most; {_DEFAULT_PAGE} by default.") | {"maximum": _LARGEST_PAGE}
_PAGED = {"limit": _LIMIT, "after": text("`next` of the page before.")}
GATEWAY_TOOLS = (
    GatewayTool(
        "ask",
        "Ask an agent",
        "Send a message to an agent of this gateway and wait for its reply. The agent has tools, files and a "
        "memory of its own. A session keeps the conversation; without one a new session begins.",
        _schema(
            {
                "text": text("The message."),
                "session": text("The name of a session, to go on with it or to begin it."),
                "model": text("An agent, a model or an alias, for a session that begins."),
                "wait": counted("Seconds; after these the reply is left to `get_turn`."),
            },
            ["text"],
        ),
        _ask,
        is_read_only=False,
    ),
    GatewayTool(
        "get_turn",
        "State of a message",
        "State and reply of a message that `ask` did not wait for.",
        _schema({"turn_id": text("As `ask` returned it.")}, ["turn_id"]),
        _get_turn,
    ),
    GatewayTool(
        "list_sessions",
        "List sessions",
        "The conversations of this gateway, the last used first.",
        _schema(_PAGED),
        _list_sessions,
    ),
    GatewayTool(
        "search_sessions",
        "Search sessions",
        "Find what was said in all conversations; the best hits first.",
        _schema({"query": text('Words, or "a phrase".'), "limit": _LIMIT}, ["query"]),
        _search_sessions,
    ),
    GatewayTool(
        "read_session",
        "Read a session",
        "What was said in a conversation, oldest first, in pages.",
        _schema({"session": text("Its name or id."), **_PAGED}, ["session"]),
        _read_session,
    ),
    GatewayTool(
        "add_job",
        "Schedule a job",
        "Let an agent do something later, or again and again. Without a time parameter the text says when. "
        "A time in words is shown first and saved once a person has confirmed it.",
        _schema(
            {
                "text": text("What is to be done."),
                "when": text('In plain words: "every weekday at 9", "in 20 minutes".'),
                "every": text("A duration, such as 10m."),
                "cron": text("Five fields, such as 0 9 * * 1-5."),
                "at": text("Once, such as 2026-12-24T18:00."),
                "timezone": text("Such as Europe/Berlin; by default the agent's."),
                "name": text("A short name."),
                "to": text('The chat for results, or "none".'),
                "remind": flag("Send the text as it is, without a model."),
                "quiet": flag("Send nothing if the model answers exactly NO_REPLY."),
                "confirmed": flag("A person has seen the next three times and agrees."),
                "asked_at": {"type": "number", "description": "As the first call returned it."},
            },
            ["text"],
        ),
        _add_job,
        is_read_only=False,
    ),
    GatewayTool("list_jobs", "List jobs", "The jobs and their next times.", _schema(_PAGED), _list_jobs),
)
