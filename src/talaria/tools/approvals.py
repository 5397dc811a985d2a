"""Which calls a person is asked about before they run, what the person is shown, and the check of an approval
at the moment of running."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from talaria.access.approvals import (
    AskReason,
    CallFacts,
    Surroundings,
    call_digest,
    find_reason,
    refuse_to_ask,
)
from talaria.core.clock import Clock
from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import ToolCall
from talaria.core.questions import APPROVE, Decision, Question, QuestionDraft, QuestionKind
from talaria.core.text import VisibleTable, visible_text
from talaria.core.tools import NO_CHAT, NO_SESSION, NOBODY, Risk
from talaria.core.turns import RunOrder, Sender
from talaria.tools.function import Arguments, parse_arguments
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import SessionTrust, Tool

if TYPE_CHECKING:
    from talaria.workspace.workspaces import ChatWorkspace

MAX_ASKED_CHARS = 64 << 10


class CallGate(msgspec.Struct, frozen=True):
    """Decides about the calls of one turn. `requester` is the immutable id of the turn's sender. Nobody can
    be asked in an unattended turn: what needs an approval is refused, unless it was granted before. The run
    of a job has an `order`: its grants are the job's, and it may be allowed to ask for approvals."""

    session_id: SessionId
    turn_id: TurnId
    requester: str
    settings: ToolSettings
    workspace: ChatWorkspace
    trust: SessionTrust
    clock: Clock
    is_unattended: bool = False
    order: RunOrder | None = None
    chat_key: ChatKey = NO_CHAT
    sender: Sender = NOBODY

    async def question(self, tool: Tool, call: ToolCall) -> QuestionDraft | None:
        """Return what to ask a person before the call may run; None if it may run unasked, or is refused when
        it is run. Raises `ToolError` for a call that is too long to be asked about; it must not run."""
        draft = await self._draft(tool, call)
        if draft is None or self._refusal(draft) is not None or await self._is_granted(draft):
            return None
        seconds = draft.timeout or self.settings.question_expiry.total_seconds()
        return msgspec.structs.replace(draft, timeout=seconds)

    async def check(self, tool: Tool, call: ToolCall, question: Question | None) -> Decision | None:
        """Return the decision about the call, which may run; None if nobody had to be asked.

        What is run is compared with what was approved. Raises `ToolError` if the call must not run.
        """
        draft = await self._draft(tool, call)
        if draft is None:
            return question.decision if question is not None else None
        if question is not None:
            self._compare(call, draft, question)
            return question.decision
        if await self._is_granted(draft):
            return None
        what, hint = self._refusal(draft) or (f"{call.name} runs only after a person has agreed.", "")
        raise ToolError(what, hint)

    def _refusal(self, draft: QuestionDraft) -> tuple[str, str] | None:
        """Return why nobody can be asked. An answer in words is no approval, so any setting allows it."""
        is_answer = draft.kind is QuestionKind.ANSWER
        mode = "risky" if is_answer else self.settings.approvals
        may_ask = self.order is not None and self.order.may_ask and not is_answer
        return refuse_to_ask(mode, is_unattended=self.is_unattended and not may_ask)

    async def _is_granted(self, draft: QuestionDraft) -> bool:
        return draft.kind is QuestionKind.APPROVAL and await self.trust.is_granted(draft.digest)

    def _compare(self, call: ToolCall, draft: QuestionDraft, question: Question) -> None:
        """Raise `ToolError` unless the question is about this call as it is now, and a person said yes."""
        decision = question.decision
        if decision is None or (question.turn_id, question.call_id) != (self.turn_id, call.id):
            raise ToolError(f"{call.name} runs only after a person has agreed, and nobody has.")
        if question.kind is not draft.kind:
            raise ToolError(f"The decision is not one about {call.name}.", "Ask again.")
        if question.is_expired(self.clock.now()) or self.clock.now() >= question.expires_at:
            raise ToolError("The approval has expired. The call was not run.", "Ask again if it is needed.")
        if draft.kind is QuestionKind.ANSWER:
            return
        if decision.text != APPROVE:
            raise ToolError("Refused by a person. The call was not run.")
        if question.digest != draft.digest:
            raise ToolError(
                "The call that would run now differs from the approved one: the call, its requester, the "
                "working folder, the variables or the sandbox has changed. The call was not run.",
                "Call the tool again, so that the person sees what would run.",
            )

    async def _draft(self, tool: Tool, call: ToolCall) -> QuestionDraft | None:
        is_tainted = tool.spec.reaches_out and await self.trust.is_tainted()
        draft = find_question(
            tool,
            call,
            self.settings,
            is_tainted=is_tainted,
            opens_new=tool.opens_addresses and await self._opens_new(tool, call),
            tells_new=tool.tells_hosts and await self._tells_new(tool, call),
            is_foreign=lambda arguments: tool.is_foreign(arguments, self.chat_key, self.sender),
            session_id=self.session_id,
        )
        if draft is None or draft.kind is QuestionKind.ANSWER:
            return draft
        around = await self._surroundings()
        grantee = self.order.job_id if self.order is not None and self.order.job_id else self.session_id
        digest = call_digest(grantee, self.requester, call, around)
        where = f"Folder: {visible_text(around.cwd)}\nSandbox: {self.settings.sandbox}"
        text = f"{draft.text}\n{where}"
        return msgspec.structs.replace(draft, text=text, digest=digest)

    async def _opens_new(self, tool: Tool, call: ToolCall) -> bool:
        """Return whether the call opens an address that a person must approve. A call with wrong arguments
        does not: it only fails when it is run."""
        if not await self.trust.is_tainted():
            return False
        try:
            url = tool.address(parse_arguments(tool, call.arguments))
        except ToolError:
            return False
        return not await self.trust.may_open(url, call.id)

    async def _tells_new(self, tool: Tool, call: ToolCall) -> bool:
        """Return whether the call tells a host a text that a person must approve."""
        if not await self.trust.is_tainted():
            return False
        try:
            text = tool.told(parse_arguments(tool, call.arguments))
        except ToolError:
            return False
        return not await self.trust.has_written(text)

    async def _surroundings(self) -> Surroundings:
        state, settings = await self.workspace.shell.state(), self.settings
        variables = msgspec.json.encode((sorted(state.changed.items()), sorted(state.removed))).decode()
        limits = (settings.sandbox, str(int(settings.command_memory)), str(settings.command_processes))
        return Surroundings(state.cwd or str(self.workspace.folder), variables, "\n".join(limits))


def find_question(
    tool: Tool,
    call: ToolCall,
    settings: ToolSettings | None = None,
    *,
    is_tainted: bool = False,
    opens_new: bool = False,
    tells_new: bool = False,
    is_foreign: Callable[[Arguments], bool] = lambda arguments: False,
    session_id: SessionId = NO_SESSION,
) -> QuestionDraft | None:
    """Return what to ask a person before the call may run; None if it may run unasked. A question that the
    call ended with before stands for an approval too: the person sees the call, and answers for it to run.

    A call with wrong arguments is not asked about, because it only fails when it is run. Raises `ToolError`
    for a call that is too long to be asked about; it must not run.
    """
    settings, spec = settings or ToolSettings(), tool.spec
    facts = CallFacts(
        is_high=spec.risk is Risk.HIGH,
        only_reads=spec.read_only,
        runs_commands=spec.runs_commands,
        reaches_out=spec.reaches_out,
        is_sandboxed=settings.sandbox != "none",
        is_tainted=is_tainted,
        opens_new=opens_new,
        tells_new=tells_new,
    )
    reason = find_reason(facts, settings.approvals)
    if reason is None and not spec.asks and not tool.may_ask:
        return None
    if len(call.arguments) > MAX_ASKED_CHARS:
        raise ToolError(
            f"The arguments of {call.name} are too long for a person to read before the call runs.",
            f"Send at most {MAX_ASKED_CHARS} characters. Write long content to a file first.",
        )
    try:
        arguments = parse_arguments(tool, call.arguments)
    except ToolError:
        return None
    if reason is None and is_foreign(arguments):
        reason = find_reason(msgspec.structs.replace(facts, is_foreign=True), settings.approvals)
    if reason is not None and tool.only_reads(arguments):
        reads = msgspec.structs.replace(facts, only_reads=True, reaches_out=False)
        reason = find_reason(reads, settings.approvals)
    if tool.may_ask and (reason is None or settings.approvals != "never"):
        asked = tool.open_question(arguments, session_id)
        if asked is not None:
            shown, _ = tool.shown(arguments, session_id)
            text = f"{describe(call.name, shown)}\n\n{asked.text}"
            return msgspec.structs.replace(asked, text=text)
    if reason is not None:
        shown, where = tool.shown(arguments, session_id)
        text = describe(call.name, shown, reason)
        return QuestionDraft(QuestionKind.APPROVAL, f"{text}\n{where}" if where else text)
    return tool.question(arguments) if spec.asks else None


def describe(name: str, arguments: Arguments, reason: AskReason | None = None) -> str:
    """Return exactly what will run: the name of the tool, and below it the arguments as JSON, whole. Then
    the reason why a person is asked.

    Characters that a reader cannot see, or that change how others are read (control characters, bidirectional
    marks, blanks other than a space), are written as escapes. Decoding the JSON gives the arguments back.
    """
    visible = msgspec.json.encode(arguments).decode().translate(VisibleTable())
    told = f"{visible_text(name)}\n{msgspec.json.format(visible, indent=2)}"
    return told if reason is None else f"{told}\n\n{reason.value}"
