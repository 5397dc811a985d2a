"""Questions to people: hosts that commands want to reach, and the one way by which questions are decided."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from talaria.access.approvals import Decider, NotEntitled, QuestionClosed, host_digest, may_decide
from talaria.commands.command import outcome_words
from talaria.core.clock import Clock
from talaria.core.errors import BadRequest, IllegalMove, NotFound
from talaria.core.events import QuestionAsked, QuestionDecided
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId, asking_chat, new_question_id, runs_within
from talaria.core.ledger import AskedQuestion, Page, QuestionPage
from talaria.core.limits import BoundedDict
from talaria.core.questions import APPROVE, DENY, Decision, Question, QuestionKind, Span
from talaria.core.tasks import finish
from talaria.core.text import visible_text
from talaria.core.turns import RunOrder, Turn
from talaria.net.host_rules import WEB_PORTS, HostAnswer, HostRequest
from talaria.store.store import Store
from talaria.tools.settings import ToolSettings
from talaria.turns.feed import question_asked, question_decided
from talaria.turns.followed import FollowedTurns
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
        self._live.feed.note(question_asked(turn, question))
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


# -- decisions of people: which questions are open, who may decide them, and what follows a decision ------


MAX_ANSWER = 16 << 10  # characters
_RECENT = 50  # turns among which the sender's last message is looked for
_HOW_TO_LIST = "`GET /api/approvals` and `/status` list the open ones."


class Decisions(msgspec.Struct, eq=False, dict=True):
    """The one way by which questions are decided. `_take_up` is called with the chat of a decided question,
    so that a turn that was left alone is taken up. `redact` takes the gateway's secrets out of answers.
    `followed` are turns of other members of the cluster, which are told about decisions on them."""

    _store: Store
    _live: LiveTurns
    _clock: Clock
    _take_up: Callable[[ChatKey], None]
    _hosts: HostQuestions
    agent_name: str
    redact: Callable[[str], str] = str
    followed: FollowedTurns | None = None

    def __post_init__(self) -> None:
        self._runs = runs_within(self.agent_name)

    async def listing(self, page: Page, within: str = "") -> QuestionPage:
        """Return the open questions, oldest first, in chats whose key begins with `within`."""
        return await self._store.open_questions(page, within)

    async def open_to(self, turn: Turn, args: str) -> list[AskedQuestion]:
        """Return the questions that a command may be about: the open ones of its chat and of the jobs that
        the chat asked for. An operator's command may name one of another chat in its arguments."""
        page = await self.listing(Page(), turn.chat_key)
        items = [item for item in page.items if item.turn.chat_key == turn.chat_key]
        of_runs = await self.listing(Page(), self._runs)
        items += [item for item in of_runs.items if asking_chat(item.turn.chat_key) == turn.chat_key]
        known = {item.question.id for item in items}
        for word in args.split()[:2] if turn.inbound.sender.is_operator else ():
            found = await self._store.find_question(QuestionId(word)) if word not in known else None
            if found is not None and found.question.is_open(self._clock.now()):
                items.append(found)
        return items

    async def is_ambiguous(self, turn: Turn, asked: Iterable[AskedQuestion]) -> bool:
        """Return whether the sender of a command without an id may have read another approval request than
        the one that is open now: one that was open when the sender last wrote, or later, and that somebody
        else decided or nobody did. A request that is newer than the command was not read either."""
        if any(item.question.asked_at > turn.accepted_at for item in asked):
            return True
        recent = await self._store.recent_of_session(turn.session_id, _RECENT)
        sender = turn.inbound.sender.id
        earlier = [each for each in recent if each.id != turn.id and each.inbound.sender.id == sender]
        since = max((each.accepted_at for each in earlier), default=0.0)
        closed = [*await self._store.closed_questions(since, turn.chat_key)]
        closed += await self._store.closed_questions(since, self._runs)
        return any(
            item.question.kind is not QuestionKind.ANSWER
            and turn.chat_key in (item.turn.chat_key, asking_chat(item.turn.chat_key))
            and (item.question.decision is None or item.question.decision.by != sender)
            for item in closed
        )

    async def find(self, question_id: QuestionId) -> AskedQuestion:
        """Raises `NotFound`."""
        if (found := await self._store.find_question(question_id)) is None:
            raise NotFound(f"There is no question {question_id}.", _HOW_TO_LIST)
        return found

    async def decide_as(
        self, decider: Decider, question_id: QuestionId, text: str, span: Span = Span.ONCE
    ) -> AskedQuestion:
        """Record a person's decision, if the person may decide, and return the question as it was.

        `text` is "approve", "deny" or, for a question with an answer, the answer. Durable when it returns.
        Raises `NotFound`, `NotEntitled`, `QuestionClosed`, and `BadRequest` for a decision that does not fit
        the question.
        """
        found = await self.find(question_id)
        if not may_decide(found.turn, decider):
            who = found.turn.inbound.sender
            raise NotEntitled(
                f"Only {who.name or who.id} or an operator can decide this.",
                "The person whose message led to the question decides it, in the same chat.",
            )
        _check_fits(found, text, span)
        if span is Span.ALWAYS and not decider.is_operator:
            raise NotEntitled(
                "Only an operator can allow a host for always: that counts for every chat.",
                "Approve it for the session, or ask the operator to add it to `network.allow`.",
            )
        text = self.redact(text)
        is_away = self.followed is not None and await self.followed.is_away(found.turn)
        if not is_away:
            span = self._hosts.span_of(found, text, span)
        decision = Decision(text, decider.id, self._clock.now(), span)
        try:
            await self.record(question_id, decision)
        except IllegalMove:
            raise closed(await self.find(question_id), self._clock.now()) from None
        if found.question.kind is QuestionKind.HOST:
            if is_away:  # the member that holds the command hears of it
                await self._hosts.allow(found.question, decision)
            else:
                await self._hosts.decided(found, decision)
        return found

    async def record(self, question_id: QuestionId, decision: Decision) -> Turn:
        """Record a decision and let the turn go on once none of its questions is open. Durable when it
        returns, also if it is cancelled.

        Raises `NotFound`, and `IllegalMove` if the question cannot be decided any more.
        """
        return await finish(self._record(question_id, decision))

    async def _record(self, question_id: QuestionId, decision: Decision) -> Turn:
        asked = [live.questions[question_id] for live in self._live if question_id in live.questions]
        if any(not question.is_open(decision.decided_at) for question in asked):
            raise IllegalMove(f"question {question_id}", "closed", "decided")
        turn = await self._store.decide(question_id, decision)
        self._live.feed.note(question_decided(turn, question_id, decision))
        self._take_up(turn.chat_key)
        for live in self._live:
            if live.turn.session_id == turn.session_id and live.state is not LiveState.QUEUED:
                _tell(live, question_id, decision)
        if self.followed is not None and self._live.get(turn.id) is None:
            await self.followed.nudge(turn.id)
        return turn

    async def awaits(self, parked: Turn, said: Turn) -> bool:
        """Return whether a message answers an open question of this turn, which was put before it."""
        if parked.inbound.sender.id != said.inbound.sender.id or not said.inbound.text.strip():
            return False
        now, questions = self._clock.now(), await self._store.questions(parked.id)
        asked = (each for each in questions if each.kind is QuestionKind.ANSWER and each.is_open(now))
        return any(question.asked_at <= said.accepted_at for question in asked)

    async def take_in(self, live: LiveTurn, *, is_news: bool = True) -> None:
        """Let a turn of this process go on after decisions that other members have recorded. Unless
        `is_news`, nobody is told: they were recorded before this process had the turn."""
        for question in await self._store.questions(live.turn.id):
            if (decision := question.decision) is None or live.has_decided(question.id):
                continue
            if not is_news:
                live.decide(question.id)
                continue
            _tell(live, question.id, decision)
            if question.kind is QuestionKind.HOST:
                await self._hosts.decided(AskedQuestion(question, live.turn), decision)


def _tell(live: LiveTurn, question_id: QuestionId, decision: Decision) -> None:
    live.emit(QuestionDecided(question_id, decision.text, decision.span, decision.by))
    live.decide(question_id)


def closed(found: AskedQuestion, now: float) -> QuestionClosed:
    """Return the error that says why the question cannot be decided."""
    decision = found.question.decision
    if decision is not None:
        why = f"{decision.by} has decided this already: {decision.text[:80]}."
    elif found.question.is_expired(now):
        why = "This has expired. It counts as denied."
    else:
        why = "The turn that asked does not wait for it any more."
    return QuestionClosed(why, "Send your message again if the call is still wanted.")


def _check_fits(found: AskedQuestion, text: str, span: Span) -> None:
    kind = found.question.kind
    if kind is QuestionKind.ANSWER:
        if not text.strip() or len(text) > MAX_ANSWER:
            raise BadRequest(
                "This question needs an answer in words.", f"Write at most {MAX_ANSWER:,} characters."
            )
        if span is not Span.ONCE:
            raise BadRequest("An answer counts once.", 'Leave "for" out.')
    elif text not in (APPROVE, DENY):
        raise BadRequest("This question is approved or denied.", f'Say "{APPROVE}" or "{DENY}".')
    elif span is Span.ALWAYS and kind is not QuestionKind.HOST:
        raise BadRequest("Only a host can be approved for always.", 'Say "once" or "session".')
