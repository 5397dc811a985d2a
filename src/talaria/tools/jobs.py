"""`jobs`: the model makes, lists and changes jobs for a person, who confirms what is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import msgspec

from talaria.access.people import People
from talaria.core.access import OWNER
from talaria.core.errors import BadRequest, NotFound, TalariaError, ToolError
from talaria.core.ids import ChatAddress, ChatKey, asking_chat
from talaria.core.jobs import Job, Slot
from talaria.core.ledger import ChatMessage, MessageSender, Page
from talaria.core.questions import QuestionDraft, QuestionKind
from talaria.core.spending import show_usd
from talaria.core.text import visible_text
from talaria.core.tools import ToolSpec
from talaria.core.turns import Sender
from talaria.jobs.settings import MAX_TEXT, JobSettings
from talaria.tools.function import Arguments, flag, parameters, text
from talaria.tools.part import ToolScope
from talaria.tools.tool import Tool, ToolContext

if TYPE_CHECKING:
    from talaria.jobs.desk import JobAsker, JobDesk
    from talaria.jobs.requests import JobProposal, JobRequest


_SHOWN = 50  # jobs or runs in a result
_ASKED = ("add", "edit")
_READS = ("list", "show", "history")

JOBS = ToolSpec(
    name="jobs",
    description=(
        "Scheduled work and reminders. `add` and `edit` show the person the next times, and save when they "
        "agree. A run gets `text` only, so put everything that it needs there."
    ),
    parameters=parameters(
        {
            "action": {
                "type": "string",
                "enum": ["add", "list", "show", "edit", "run", "pause", "resume", "remove", "history"],
                "description": "What to do.",
            },
            "job": text("Id or name; not for add and list."),
            "text": {"type": "string", "maxLength": MAX_TEXT, "description": "What is to be done."},
            "when": text(
                "Such as `every weekday at 9`, `in 20 minutes`, `tomorrow at 18:00`; cron; an ISO time."
            ),
            "remind": flag("A reminder: send `text` as it is."),
            "quiet": flag("Send nothing if it answers NO_REPLY."),
            "after": text("Instead of `when`: a background process."),
            "name": text("A short name."),
            "timezone": text("Default: the agent's."),
            "session": {"type": "string", "enum": ["new", "same", "chat"], "description": "Of a run."},
            "to": text("Chat for results, or `none`. Default: this one."),
            "model": text("Default: the agent's."),
            "check": text("A command; no output, no run."),
            "missed": {
                "type": "string",
                "enum": ["once", "skip", "all"],
                "description": "Missed runs. Default: once.",
            },
        },
        required=("action",),
    ),
    asks=True,
    reaches_out=True,
    uses_files=False,
)


class JobsTool(Tool):
    spec = JOBS

    def __init__(self, scope: ToolScope, settings: Callable[[], JobSettings]) -> None:
        self._scope = scope
        self._settings = settings

    @cached_property
    def _desk(self) -> JobDesk:
        from talaria.jobs.desk import JobDesk  # noqa: PLC0415 - with the first call
        from talaria.jobs.schedules import machine_zone  # noqa: PLC0415

        scope = self._scope
        zone = scope.zone or machine_zone()
        return JobDesk(scope.store.jobs, scope.people, scope.clock, zone=zone, settings=self._settings)

    def only_reads(self, arguments: Arguments) -> bool:
        return arguments["action"] in _READS

    def question(self, arguments: Arguments) -> QuestionDraft | None:
        """Ask about what would be saved. Raises `ToolError` for a request that is wrong or unclear."""
        if arguments["action"] not in _ASKED:
            return None
        if arguments["action"] == "edit":
            lines = ["Change this job?"]
            lines += [f"{key}: {value}" for key, value in arguments.items() if key != "action"]
            if "when" in arguments:
                lines += self._preview(arguments).lines()[1:]
        else:
            lines = ["Save this?", *self._preview(arguments).lines()]
        text = "\n".join(map(visible_text, lines))
        return QuestionDraft(QuestionKind.APPROVAL, text)

    def _preview(self, arguments: Arguments) -> JobProposal:
        try:
            return self._desk.propose(None, _request({"text": "…"} | arguments, None))
        except TalariaError as error:
            _refuse(error)

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        from talaria.jobs.desk import JobAsker  # noqa: PLC0415

        asker = JobAsker(context.sender, context.chat_key)
        try:
            return await self._do(arguments, context, asker)
        except ToolError:
            raise
        except TalariaError as error:
            _refuse(error)

    async def _do(self, arguments: Arguments, context: ToolContext, asker: JobAsker) -> str:
        desk, action = self._desk, arguments["action"]
        if action in _ASKED:
            return await self._save(arguments, context, asker)
        if action == "list":
            return self._list((await desk.listing(asker, Page(_SHOWN), is_unfinished=True)).items)
        name = arguments.get("job") or ""
        if not name:
            raise ToolError(f"`{action}` needs `job`.", "Give the id or the name of a job.")
        if action == "history":
            return _history((await desk.history(asker, name, Page(_SHOWN))).items)
        if action == "run":
            job, slot = await desk.run(asker, name)
            return f"{job.name} is due now, as {slot.id}. {desk.note}".rstrip()
        changes = {"show": desk.find, "pause": desk.pause, "resume": desk.resume, "remove": desk.remove}
        job = await changes[action](asker, name)
        return f"Removed {job.name} ({job.id})." if action == "remove" else self._show(job)

    async def _save(self, arguments: Arguments, context: ToolContext, asker: JobAsker) -> str:
        if context.decision is None:
            raise ToolError("Nobody has confirmed it.", "Say what you would have saved.")
        asked_at = await self._asked_at(context)
        request = _request(arguments, context)
        if arguments["action"] == "add":
            job = await self._desk.add(asker, self._desk.propose(asker, request, asked_at))
        else:
            found = await self._desk.find(asker, arguments.get("job") or "")
            proposal = self._desk.propose_edit(asker, found, request, asked_at)
            job = await self._desk.edit(asker, found, proposal)
        return f"Saved.\n{self._show(job)}"

    async def _asked_at(self, context: ToolContext) -> float | None:
        """Return when the person was shown the times: "in ten minutes" counts from then."""
        for question in await self._scope.store.questions(context.turn_id):
            if question.call_id == context.call_id:
                return question.asked_at
        return None

    def _list(self, jobs: Sequence[Job]) -> str:
        if not jobs:
            return "There are no jobs."
        return "\n".join(self._line(job) for job in jobs)

    def _line(self, job: Job) -> str:
        following = self._desk.next_runs(job, 1)
        when = f"next {following[0]}" if following else f"{job.state.value} {job.reason}".strip()
        return f"{job.id} {job.name!r}: {self._desk.describe(job)}, {when}"

    def _show(self, job: Job) -> str:
        lines = [self._line(job), f"Text: {job.plan.text}", f"Zone: {self._desk.zone_name(job)}"]
        lines.append(f"Results go to: {self._desk.target(job)}")
        lines += [f"Next: {instant}" for instant in self._desk.next_runs(job)]
        if job.plan.check:
            lines.append(f"Check: {job.plan.check}")
        return "\n".join(lines)


def _request(arguments: Arguments, context: ToolContext | None) -> JobRequest:
    from talaria.jobs.requests import JobRequest, request_at  # noqa: PLC0415

    others = ("action", "job", "when")
    fields = {name: value for name, value in arguments.items() if name not in others and value is not None}
    if "after" in fields:
        fields["session_id"] = context.session_id if context is not None else ""
    when = request_at(arguments["when"]) if arguments.get("when") else JobRequest()
    return msgspec.structs.replace(when, **fields)


def _history(slots: Sequence[Slot]) -> str:
    from talaria.jobs.desk import iso_instant  # noqa: PLC0415

    if not slots:
        return "It has not run yet."
    lines = []
    for slot in slots:
        reason = f": {slot.reason}" if slot.reason else ""
        lines.append(f"{iso_instant(slot.instant)} {slot.state.value}{reason} ({show_usd(slot.cost)})")
    return "\n".join(lines)


def _refuse(error: TalariaError) -> NoReturn:
    raise ToolError(error.user_text, error.hint) from error


# -- `send_message`: the model writes to another chat of the person who asked -----------------------------
# A chat of another person, or a group, is written to only after an approval, and only for the gateway's
# owner.


MAX_CHARS = 16_000

SEND_MESSAGE = ToolSpec(
    name="send_message",
    description=(
        "Write to another chat of this person, on any channel. `chat` is a chat's key "
        "(agent:NAME:CHANNEL:KIND:CHAT) or the name of a session. Your answer reaches this chat by itself."
    ),
    parameters=parameters(
        {
            "chat": {"type": "string", "maxLength": 500, "description": "The chat."},
            "text": {"type": "string", "maxLength": MAX_CHARS, "description": "The message."},
        },
        required=("chat", "text"),
    ),
    reaches_out=True,
    reads_files=False,
)


class SendMessageTool(Tool):
    """`sender` is None where tools are only described."""

    spec = SEND_MESSAGE

    def __init__(self, sender: MessageSender | None, people: People) -> None:
        self._sender = sender
        self._people = people

    def is_foreign(self, arguments: Arguments, chat_key: ChatKey, sender: Sender) -> bool:
        """Return whether the chat is not one of the person's own."""
        try:
            target = self._read(arguments["chat"]).key()
        except ToolError:
            return False  # it fails when it is run
        return self._people.of_chat(target) != self._people.of_sender(sender, asking_chat(chat_key))

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        if self._sender is None:
            raise ToolError("Nothing can be sent from here.")
        if self.is_foreign(arguments, context.chat_key, context.sender):
            self._check_owner(context)  # before the look-up, which would tell whether the chat exists
        try:
            key = await self._sender.find_chat(self._read(arguments["chat"]).key())
        except NotFound as error:
            raise ToolError(error.user_text, error.hint) from error
        if key == context.chat_key:
            raise ToolError("That is this chat.", "Your answer reaches it by itself.")
        is_untrusted = await context.trust.is_tainted()
        message = ChatMessage(
            key, arguments["text"], context.sender, (), f"{context.turn_id}.{context.call_id}", is_untrusted
        )
        sent = await self._sender.send(message)
        return f"Sent to {key}, as {sent.turn.id}."

    def _check_owner(self, context: ToolContext) -> None:
        """Only the owner writes to other people's chats. `CallGate` has seen to the approval."""
        if self._people.of_sender(context.sender, asking_chat(context.chat_key)) != OWNER:
            raise ToolError(
                "That chat is not one of this person's chats.", "Write to the person's own chats only."
            )

    def _read(self, chat: str) -> ChatAddress:
        if self._sender is None:
            raise ToolError("Nothing can be sent from here.")
        try:
            return self._sender.read_chat(chat)
        except BadRequest as error:
            raise ToolError(error.user_text, error.hint) from error
