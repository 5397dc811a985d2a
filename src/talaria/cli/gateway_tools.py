"""The tools of `talaria mcp serve`: ask an agent, find and read sessions, create and list jobs.

Each call goes to the running gateway over HTTP, with the role of the caller's token.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import anyio
import msgspec

from talaria.cli.sessions import entry_lines
from talaria.console.gateway_client import GatewayClient, RetryPolicy
from talaria.core.errors import BadRequest
from talaria.core.events import (
    Cancelled,
    Delta,
    Done,
    Event,
    Failed,
    QuestionAsked,
    ToolFinished,
    describe,
)
from talaria.core.ids import is_session_name
from talaria.core.questions import QuestionKind
from talaria.core.text import clean
from talaria.jobs.desk import JobView, ProposalView
from talaria.operations.jobs import JobBody, add_job
from talaria.operations.operation import Operation
from talaria.operations.sessions import EntriesQuery, read_entries
from talaria.operations.table import OPERATIONS, Operations
from talaria.operations.turns import TurnKey, show_turn
from talaria.tools.function import Arguments, counted, flag, parameters, problems, text, without_nulls

RETRY_SECONDS = 30.0
BEAT_SECONDS = 10.0  # clients give up on a call that is silent, most of them after a minute
WAIT_SECONDS = 50  # hosts give up on a call after a minute, and then its turn would be cancelled
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
    output: dict[str, Any]
    run: Callable[[CallPlace, Arguments], Awaitable[ToolAnswer]]
    is_read_only: bool = True

    async def call(self, place: CallPlace, arguments: Arguments) -> ToolAnswer:
        """Check the arguments and run the tool. Raises `TalariaError`."""
        given = without_nulls(arguments, self.schema)
        if wrong := problems(given, self.schema):
            raise BadRequest(f"The arguments of {self.name} are wrong: {' '.join(wrong)}")
        return await self.run(place, given)


# -- the data of answers ----------------------------------------------------------------------------------


class TurnData(msgspec.Struct, omit_defaults=True):
    """A message to an agent. It is over when its state is done, failed or cancelled."""

    turn_id: str
    session_id: str
    state: Literal["accepted", "running", "waiting", "done", "failed", "cancelled"]
    session: str = ""
    reply: str | None = None
    files: tuple[str, ...] = ()
    question: dict[str, Any] | None = None


class PageData(msgspec.Struct):
    next: str | None


class SavedJob(msgspec.Struct, omit_defaults=True):
    """Whether the job is saved, and its next run times; the other members are those of a job."""

    saved: bool
    next: tuple[str, ...]
    asked_at: float | None = None


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
        async with asyncio.timeout(arguments.get("wait", WAIT_SECONDS)):
            return await _follow(place, start, retry)
    except TimeoutError:
        how = f"call `get_turn` with turn_id = {sent.turn_id!r} and wait = {WAIT_SECONDS}, until it is done."
        return ToolAnswer(f"The agent is still at work. For its reply, {how}", start | {"state": "running"})
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
                if said := _progress(event, seen):
                    await place.report(said)
    finally:
        beats.cancel()
    raise AssertionError("a stream of events ends with a final one")


async def _beat(report: Report) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await report("The agent is at work.")


def _progress(event: Event, seen: int) -> str:
    """Return a line for the person who waits; empty for an event that says nothing to people."""
    if isinstance(event, Delta):
        return "The agent writes." if seen == len(event.text) else ""
    return "" if isinstance(event, ToolFinished) else describe(event)


def _waiting(event: QuestionAsked, start: dict[str, Any]) -> ToolAnswer:
    question = {"id": event.question_id, "kind": event.kind.value, "choices": list(event.choices)}
    data = start | {"state": "waiting", "question": question}
    if event.kind is QuestionKind.ANSWER:
        how = f'Answer with `ask` and session "{start["session"]}".'
    else:
        how = "Only a person can decide this, on the page or in a chat; `get_turn` then has the reply."
    return ToolAnswer(f"The agent waits for a person.\n{describe(event)}\n{how}", data)


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
    key = TurnKey(arguments["turn_id"])
    turn = await place.gateway.carry_out(show_turn, key)
    if not turn.state.is_final and (seconds := arguments.get("wait")):
        start = {"turn_id": turn.id, "session_id": turn.session_id}
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _follow(place, start, RetryPolicy(RETRY_SECONDS))
        turn = await place.gateway.carry_out(show_turn, key)
    data = {"turn_id": turn.id, "session_id": turn.session_id, "state": turn.state.value, "reply": turn.reply}
    text = turn.reply or (f"{turn.error.message} {turn.error.hint}".strip() if turn.error else "")
    return ToolAnswer(text or f"The turn is {turn.state.value}.", data, turn.error is not None)


# -- sessions ---------------------------------------------------------------------------------------------


async def _read_session(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    """Return a page of the log, up to a number of entries and of characters. A longer entry is cut."""
    limit, after = arguments.get("limit", _DEFAULT_PAGE), arguments.get("after", "")
    page = await place.gateway.carry_out(
        read_entries, EntriesQuery(x=arguments["session"], limit=limit, after=after)
    )
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


# -- jobs -------------------------------------------------------------------------------------------------


async def _add_job(place: CallPlace, arguments: Arguments) -> ToolAnswer:
    """Save a job. One whose time was said in words is shown first, and saved when that was confirmed."""
    fields = {name: value for name, value in arguments.items() if name not in ("confirmed", "asked_at")}
    wanted = msgspec.convert(fields, JobBody)
    proposal = await place.gateway.carry_out(add_job, msgspec.structs.replace(wanted, confirm=False))
    assert isinstance(proposal, ProposalView)
    shown = "\n".join(map(clean, proposal.lines))
    asked_at = arguments.get("asked_at")
    if proposal.worded and not (arguments.get("confirmed") and asked_at):
        text = (
            f"Nothing is saved yet.\n{shown}\nShow these times to the person. If they are right, call "
            f"`add_job` again with the same arguments, confirmed = true and asked_at = {proposal.asked_at!r}."
        )
        return ToolAnswer(text, {"saved": False, "asked_at": proposal.asked_at, "next": list(proposal.next)})
    if proposal.worded:
        wanted = msgspec.structs.replace(wanted, asked_at=asked_at)
    job = await place.gateway.carry_out(add_job, wanted)
    assert isinstance(job, JobView)
    return ToolAnswer(f"Saved as {job.id}.\n{shown}", {"saved": True, **msgspec.to_builtins(job)})


# -- operations -------------------------------------------------------------------------------------------


def operation_tool(operation: Operation[Any, Any, Any]) -> GatewayTool:
    """Return the tool of an operation. Its answer is the answer of the operation, as JSON."""

    async def run(place: CallPlace, arguments: Arguments) -> ToolAnswer:
        try:
            wanted = msgspec.convert(arguments, operation.input)
        except msgspec.ValidationError as error:
            raise BadRequest(f"The arguments of {operation.tool} are wrong: {error}.") from None
        answer = await place.gateway.carry_out(operation, wanted)
        return ToolAnswer(msgspec.json.encode(answer).decode(), msgspec.to_builtins(answer))

    title = operation.tool.replace("_", " ").capitalize()
    is_read_only = operation.method == "GET"
    schemas = input_schema(operation), output_schema(operation.output)
    return GatewayTool(operation.tool, title, operation.help, *schemas, run, is_read_only)


def output_schema(kind: Any) -> dict[str, Any]:
    """Return the schema of an answer, whose outermost part is an object."""
    (schema,), components = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    return {
        **components.pop(schema["$ref"].rpartition("/")[2]),
        **({"$defs": components} if components else {}),
    }


def input_schema(operation: Operation[Any, Any, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """Return the schema of an operation's input, without some fields."""
    (schema,), components = msgspec.json.schema_components((operation.input,))
    found = components[schema["$ref"].rpartition("/")[2]]
    kept = {name: value for name, value in found["properties"].items() if name not in without}
    return _schema(kept, [name for name in found.get("required", ()) if name in kept])


# -- the list ---------------------------------------------------------------------------------------------


def _schema(properties: dict[str, dict[str, Any]], required: Sequence[str] = ()) -> dict[str, Any]:
    return msgspec.json.decode(parameters(properties, required), type=dict[str, Any])


_LIMIT = counted(f"Maximum number of entries. Default: {_DEFAULT_PAGE}.") | {"maximum": _LARGEST_PAGE}
_PAGED = {"limit": _LIMIT, "after": text("Cursor: the `next` value of the previous page.")}
_TOOLS = (
    GatewayTool(
        "ask",
        "Ask an agent",
        "Send a message to an agent of this gateway and wait for its reply. The agent has its own tools, "
        "files and memory. A session keeps the conversation; without one, a new session starts.",
        _schema(
            {
                "text": text("Message text."),
                "session": text("Session name, to continue or start a session."),
                "model": text("Agent, model or alias for a new session."),
                "wait": counted(
                    f"Seconds to wait for the reply. Default: {WAIT_SECONDS}. Then use `get_turn`."
                )
                | {"default": WAIT_SECONDS},
            },
            ["text"],
        ),
        output_schema(TurnData),
        _ask,
        is_read_only=False,
    ),
    GatewayTool(
        "get_turn",
        "State of a message",
        "Get the state and reply of a message that `ask` did not wait for.",
        _schema(
            {
                "turn_id": text("Turn id that `ask` returned."),
                "wait": counted("Seconds to wait for the end of the turn. Default: do not wait."),
            },
            ["turn_id"],
        ),
        output_schema(TurnData),
        _get_turn,
    ),
    GatewayTool(
        "read_session",
        "Read a session",
        "Read the messages of a session in pages, oldest first.",
        _schema({"session": text("Session name or id."), **_PAGED}, ["session"]),
        output_schema(PageData),
        _read_session,
    ),
    GatewayTool(
        "add_job",
        "Schedule a job",
        f"{add_job.help} If the time is in words, the first call returns a preview for a person to confirm.",
        _schema(
            input_schema(add_job, without=("confirm", "chat", "asked_at"))["properties"]
            | {
                "confirmed": flag("A person has seen the next three run times and agrees."),
                "asked_at": {"type": "number", "description": "The `asked_at` that the first call returned."},
            },
            ["text"],
        ),
        output_schema(SavedJob),
        _add_job,
        is_read_only=False,
    ),
)


def gateway_tools(operations: Operations = OPERATIONS) -> tuple[GatewayTool, ...]:
    """Return all tools: those of this module, and of the operations that have one."""
    own = {tool.name for tool in _TOOLS}
    derived = (operation_tool(each) for each in operations if each.tool and each.tool not in own)
    return (*_TOOLS, *derived)
