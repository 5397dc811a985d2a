"""`HostQuestions`: asks people about hosts that commands of a session want to reach.

The turn does not wait: its command is held at the proxy for a short while. An approval for once counts for
the tool call that runs then. A decision that comes later is a grant for the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from talaria.access.approvals import host_digest
from talaria.commands.deciding import outcome_words
from talaria.core.bounded import BoundedDict
from talaria.core.clock import Clock
from talaria.core.events import QuestionAsked
from talaria.core.ids import QuestionId, SessionId, TurnId, new_question_id
from talaria.core.ledger import AskedQuestion, Page
from talaria.core.questions import APPROVE, Decision, Question, QuestionKind, Span
from talaria.core.text import visible_text
from talaria.core.turns import RunOrder, Turn
from talaria.net.host_rules import WEB_PORTS, HostAnswer, HostRequest
from talaria.store.store import Store
from talaria.tools.settings import ToolSettings
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.states import LiveState

_log = logging.getLogger("talaria.turns")


NETWORK = "network"  # the name of these questions in the place of a tool's
_KEPT = 256  # decisions
_MOST_OPEN = 3  # questions about hosts in a session
_REFUSED = HostAnswer(False, "A person refused it.")
_UNASKED = HostAnswer(False, "It is not in network.allow, and nobody can be asked.")
_TOO_MANY = HostAnswer(
    False,
    f"{_MOST_OPEN} requests about other hosts wait for a decision in this session. Try again after it.",
)
_LEFT_OPEN = HostAnswer(False, "A person is asked; try again once they have agreed.")


@dataclass(slots=True)
class _Held:
    """The connections that wait for a decision. `call` is the tool call that wanted the last of them."""

    waiters: set[asyncio.Future[HostAnswer]] = field(default_factory=set)
    call: int | None = None


class HostQuestions(msgspec.Struct, eq=False):
    """`ask` is the `AskHost` of the gateway. `settings` returns the current `[tools]`. `allow_always`
    writes a host to the configuration; it may block. `send` shows the questions that no running turn shows,
    and their outcomes, in the chat. `tell_owner` puts the questions of jobs to those who asked for the
    jobs."""

    _store: Store
    _live: LiveTurns
    _clock: Clock
    settings: Callable[[], ToolSettings] = ToolSettings
    allow_always: Callable[[str, int], None] | None = None
    send: Callable[[Turn, Question, str], None] = lambda turn, question, outcome: None
    tell_owner: Callable[[Turn, Question], None] = lambda turn, question: None
    _putting: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _held: dict[QuestionId, _Held] = {}
    # A denial lasts for its turn, and an approval for a call with that call.
    _denied: BoundedDict[tuple[TurnId, str], bool] = msgspec.field(default_factory=lambda: BoundedDict(_KEPT))
    _once: BoundedDict[tuple[TurnId, str], int] = msgspec.field(default_factory=lambda: BoundedDict(_KEPT))

    async def ask(self, request: HostRequest) -> HostAnswer:
        digest = host_digest(request.host, request.port)
        turn = await self._turn_of(request.session_id)
        run = turn.inbound.order if turn is not None else None
        if await self._is_granted(request.session_id, digest, run):
            return HostAnswer(True)
        may_ask = run is not None and run.may_ask
        asks = self.settings().approvals != "never"
        if not asks or turn is None or (turn.inbound.is_unattended is True and not may_ask):
            return _UNASKED
        if (turn.id, digest) in self._denied:
            return _REFUSED
        call = None if request.is_background else self._running_call(turn)
        if call is not None and self._once.get((turn.id, digest)) == call:
            return HostAnswer(True)
        async with self._putting:  # or two connections would each find that there is room for one more
            question = await self._put(turn, request, digest)
        if question is None or request.is_background or may_ask:  # nobody waits beside the command
            return _TOO_MANY if question is None else _LEFT_OPEN
        waiter: asyncio.Future[HostAnswer] = asyncio.get_running_loop().create_future()
        held = self._held.setdefault(question.id, _Held())
        held.waiters.add(waiter)
        held.call = call
        try:
            return await waiter
        finally:
            held.waiters.discard(waiter)
            if not held.waiters:
                self._held.pop(question.id, None)

    def span_of(self, asked: AskedQuestion, text: str, span: Span) -> Span:
        """Return how far a decision reaches: if no command is held any more, once is for the session."""
        is_late = asked.question.kind is QuestionKind.HOST and asked.question.id not in self._held
        return Span.SESSION if is_late and text == APPROVE and span is Span.ONCE else span

    async def decided(self, asked: AskedQuestion, decision: Decision) -> None:
        """Let the held commands go on, or be refused. A host that is allowed for always is written down."""
        question = asked.question
        is_admitted = decision.text == APPROVE
        held = self._held.get(question.id, _Held())
        if not is_admitted:
            self._denied[asked.turn.id, question.digest] = True
        elif decision.span is Span.ONCE:
            # A decision that another member has recorded may come when the command is held no longer.
            call = self._running_call(asked.turn) if held.call is None else held.call
            if call is not None:
                self._once[asked.turn.id, question.digest] = call
        for waiter in tuple(held.waiters):
            if not waiter.done():
                waiter.set_result(HostAnswer(True) if is_admitted else _REFUSED)
        if not self._running(asked.turn.session_id):
            self.send(asked.turn, question, outcome_words(question.kind, decision.text, decision.span))
        await self.allow(question, decision)

    async def allow(self, question: Question, decision: Decision) -> None:
        """Write a host that is allowed for always to the configuration of this gateway."""
        is_always = decision.text == APPROVE and decision.span is Span.ALWAYS
        if is_always and self.allow_always is not None:
            host, _, port = question.digest.removeprefix("host:").rpartition(":")
            try:
                await asyncio.to_thread(self.allow_always, host, int(port))
            except Exception:  # the grant for the session stands
                _log.exception("%s could not be written to network.allow", host)

    async def _is_granted(self, session_id: SessionId, digest: str, run: RunOrder | None) -> bool:
        if run is not None and await self._store.is_granted_to_job(run.job_id, run.plan, digest):
            return True
        return await self._store.is_granted(session_id, digest)

    async def _turn_of(self, session_id: SessionId) -> Turn | None:
        """Return the session's running turn, or its last one."""
        if running := self._running(session_id):
            return running[0].turn
        recent = await self._store.recent_of_session(session_id, 1)
        return recent[0] if recent else None

    async def _put(self, turn: Turn, request: HostRequest, digest: str) -> Question | None:
        """Return the open question about this host, which is put if there is none. None if the session has
        too many already: nobody would read them."""
        page = await self._store.open_questions(Page(500), turn.chat_key)
        hosts = [item for item in page.items if item.question.kind is QuestionKind.HOST]
        of_session = [item for item in hosts if item.turn.session_id == request.session_id]
        for item in of_session:
            if item.question.digest == digest:
                self._tell(item.turn, item.question)
                return item.question
        if len(of_session) >= _MOST_OPEN:
            return None
        is_web = request.port in WEB_PORTS
        ports = f" (ports {WEB_PORTS[0]} and {WEB_PORTS[1]})" if is_web else f":{request.port}"
        now, place = self._clock.now(), visible_text(f"{request.host}{ports}")
        why = "A command of this session wants to connect to it, and it is not in network.allow."
        question = Question(
            *(new_question_id(), turn.id, 0, "", QuestionKind.HOST, f"{place}\n\n{why}"),
            *(now, now + self.settings().question_expiry.total_seconds()),
            name=NETWORK,
            digest=digest,
        )
        await self._store.ask(question)
        self._tell(turn, question)
        return question

    def _running_call(self, turn: Turn) -> int | None:
        return next((live.running_call() for live in self._live if live.turn.id == turn.id), None)

    def _tell(self, turn: Turn, question: Question) -> None:
        running = self._running(turn.session_id)
        for live in running:
            live.emit(QuestionAsked.of(question, NETWORK))
        if turn.inbound.order is not None:
            self.tell_owner(turn, question)
        elif not running and question.shown_id is None:
            self.send(turn, question, "")

    def _running(self, session_id: SessionId) -> list[LiveTurn]:
        turns = (live for live in self._live if live.turn.session_id == session_id)
        return [live for live in turns if live.state is LiveState.RUNNING]
