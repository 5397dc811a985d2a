"""Intake: binds a message to a session, writes its turn durably, and only then lets it run."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from talaria.agent.redaction import M, redact_messages, weigh_message
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.membership import LoneGateway, Membership
from talaria.commands.command import Command
from talaria.commands.replies import find_session
from talaria.core.cluster import Wake
from talaria.core.errors import HeadMoved, LimitReached, NoModel, NoSession, TalariaError
from talaria.core.events import Queued
from talaria.core.ids import (
    EPHEMERAL,
    JOBS_CHANNEL,
    ChatAddress,
    ChatKey,
    JobId,
    SessionId,
    TurnId,
    asking_chat,
    new_session_id,
    new_turn_id,
)
from talaria.core.jobs import SlotClaim
from talaria.core.ledger import (
    Accept,
    Accepted,
    Amend,
    Begin,
    Binding,
    ChainPlace,
    Fresh,
    MessageName,
    NewResponse,
)
from talaria.core.messages import File, Message, Text, UserMessage, is_untrusted
from talaria.core.problems import Action, Do
from talaria.core.questions import QuestionKind
from talaria.core.specs import PinnedSpec
from talaria.core.tasks import finish
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.observe.loop_watch import Load
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.command_turns import ANSWER
from talaria.turns.feed import RecordChange
from talaria.turns.histories import Branching, SentExchange
from talaria.turns.lanes import Lanes
from talaria.turns.lifecycle import SessionLifecycle
from talaria.turns.live import NO_OPTIONS, CallOptions, LiveTurn
from talaria.turns.long_inputs import LongInputs
from talaria.turns.retries import ClientRequest, RecentRequests
from talaria.turns.settings import Busy, TurnSettings
from talaria.turns.slash import canonical, parse_branch
from talaria.turns.states import LiveState

_LONG_TEXT = 64 << 10  # characters are searched for secrets in less than a millisecond
_EDIT_KNOWN_SECONDS = 7 * 86400.0
_LONG_BYTES = 256 << 10  # are hashed in about a millisecond


class Draining(TalariaError):
    """The gateway is shutting down and accepts no more messages."""

    type = "draining"


class StatelessCall(msgspec.Struct, frozen=True):
    """A call that brings its whole context, or continues a chain of responses `behind` a place in it.

    `tools` are the caller's, encoded. `owner` is the name of a token whose chats are apart from those of
    other callers; it is empty for all others. With `response` the call is stored as one.
    """

    sender: Sender
    context: tuple[Message, ...]
    model: str | None = None
    tools: bytes = b""
    options: CallOptions = CallOptions()
    key: str | None = None
    owner: str = ""
    instructions: str = ""
    behind: ChainPlace | None = None
    response: NewResponse | None = None


def is_ephemeral(turn: Turn) -> bool:
    """Return whether the turn is a stateless call."""
    return ChatAddress.parse(turn.chat_key).kind == EPHEMERAL


def choose_busy(command: Command | None, usual: Busy) -> tuple[Busy, bool]:
    """Return what becomes of a message while a turn runs, and whether its sender said so.

    `/queue TEXT` and `/steer TEXT` are messages that say it themselves. Every other command waits, unless it
    passes the lane.
    """
    if command is None:
        return usual, False
    if command.name in (Busy.QUEUE, Busy.STEER) and command.args:
        return Busy(command.name), True
    return Busy.QUEUE, False


def _brings_file(inbound: Inbound) -> bool:
    """Return whether the message has put untrusted content into the folder of its chat: a file that was sent,
    or the file of a long message that came from outside."""
    for part in inbound.parts:
        if isinstance(part, File):
            return is_untrusted(UserMessage(inbound.parts, untrusted=inbound.untrusted))
    return False


class Intake(msgspec.Struct, eq=False, dict=True):
    """The one way in for messages. An accepted turn runs even if the caller is cancelled meanwhile."""

    _store: Store
    _keeper: LeaseKeeper
    _agents: Agents
    _sessions: SessionLifecycle
    _lanes: Lanes
    settings: TurnSettings
    load: Load
    cluster: Membership | LoneGateway
    inputs: LongInputs | None = None
    _is_open: bool = False
    _arriving: dict[ChatKey, int] = {}  # how many messages of the chat are being accepted now
    accepting: set[TurnId] = set()  # turns that may be in the store and are not live yet

    def __post_init__(self) -> None:
        self._clock, self._live, self._limits = self._agents.clock, self._lanes.live, self.load.limits
        self._branches = Branching(self._store, self._agents, self._limits)
        self._limits.watch("chat_queue", lambda: max((len(lane) - 1 for lane in self._lanes), default=0))
        self.requests = RecentRequests(self._store, self._clock, is_shared=self.cluster.has_others)

    def open(self) -> None:
        self._is_open = True

    def close(self) -> None:
        """Refuse every message from now on with `Draining`."""
        self._is_open = False

    async def submit(
        self,
        inbound: Inbound,
        request: ClientRequest | None = None,
        history: Sequence[SentExchange] | None = None,
    ) -> LiveTurn:
        """Accept a message or a command for its chat's session. Durable when it returns.

        If `request` repeats an earlier one, return the turn of that one, which may be over. With `history`,
        the chat of a front end before this message, the session branches where the history leaves it.

        Raises `IdempotencyConflict`, `NotFound` (for an unknown model), `Draining`, `StoreError`,
        `Overloaded`, and `LimitReached` if too many messages of the chat wait. A control command is never
        refused for the last two reasons.
        """
        if request is None:
            return await self._submit(inbound, history=history)
        if (turn_id := await self.requests.joined(request)) is not None:
            if (live := await self.find(turn_id)) is not None:
                live.repeats += 1
                return live
            self.requests.forget(request)
        turn_id = None
        self.requests.begin(request)
        try:
            live = await self._submit(inbound, request.digest, history)
            turn_id = live.turn.id
        finally:
            self.requests.accepted(request, turn_id)
        return live

    async def find(self, turn_id: TurnId) -> LiveTurn | None:
        """Return the turn, also if it is over or another process has it. None if there is no such turn."""
        if (live := self._live.get(turn_id)) is not None:
            return live
        record = await self._store.turn_record(turn_id)
        return None if record is None else self._live.find(record.turn)

    async def _submit(
        self, inbound: Inbound, digest: str = "", history: Sequence[SentExchange] | None = None
    ) -> LiveTurn:
        said = await self._without_secrets((UserMessage(inbound.parts),))
        inbound = msgspec.structs.replace(inbound, parts=said[0].parts)
        extra = self._agents.commands
        command = extra.parse(inbound.text)
        if not inbound.gives_way and (command is None or not extra.is_control(command.name)):
            self.load.check()
        if inbound.key is not None:
            digest = await _digest(inbound.parts, inbound.model)
        busy, is_explicit = choose_busy(command, self.settings.busy)
        if is_explicit and command is not None:
            inbound, command = _with_text(inbound, command.args), None
        elif command is not None and (text := extra.message_of(command)) is not None:
            inbound, command, busy = _with_text(inbound, text), None, self.settings.busy
        elif command is None and self.answers(inbound):
            busy, command = Busy.QUEUE, Command(ANSWER)
        turn_id = new_turn_id()
        if self.inputs is not None and (command is None or command.name == ANSWER):
            self._check_open()
            inbound = await self.inputs.shorten(inbound, turn_id, is_answer=command is not None)
        # Most messages belong to the session that the chat has, so none is prepared. The model that a message
        # wishes for is checked before the message is accepted.
        is_usual = command is None and history is None and inbound.model is None
        fresh = None if is_usual else self._fresh(inbound)
        binding, resume = await self._bind(inbound, command)
        if fresh is not None and command is not None and command.name == "branch":
            before, _ = parse_branch(command.args)
            fresh = await self._branches.copy(inbound.chat_key, fresh, before)
        elif fresh is not None and command is None and history is not None:
            redactor = self._agents.secrets.redactor
            sent = [exchange.without_secrets(redactor) for exchange in history]
            fresh, binding = await self._branches.follow(inbound.chat_key, sent, fresh)
        if resume is not None:
            inbound = msgspec.structs.replace(inbound, parts=(Text(f"/resume {resume}"),))
        order = Accept(
            turn_id=turn_id,
            inbound=inbound,
            fresh=fresh,
            command=command.name if command else "",
            binding=binding,
            resume=resume,
            scope=_scope_of(inbound) if inbound.key is not None else "",
            digest=digest,
            expire_before=self._sessions.cutoff(),
        )
        self._check_open()
        return await finish(self._accept_in_turn(order, busy, is_explicit=is_explicit))

    async def amend(self, inbound: Inbound, edit_key: str) -> bool:
        """Replace the message `inbound.key` by this text while its turn waits here. Return whether the edit
        `edit_key` is made, now or before; if not, the turn has begun. Raises `StoreError`."""
        live = self._waiting(inbound.chat_key, inbound.key)
        if live is not None and live.amending is not None:
            await asyncio.wait((live.amending,))
            live = self._waiting(inbound.chat_key, inbound.key)
        work = asyncio.ensure_future(self._amend(inbound, edit_key, live))
        if live is not None:
            live.amending = work
        return await asyncio.shield(work)

    async def _amend(self, inbound: Inbound, edit_key: str, live: LiveTurn | None) -> bool:
        try:
            said = await self._without_secrets((UserMessage(inbound.parts),))
            inbound = msgspec.structs.replace(inbound, parts=said[0].parts)
            if live is not None and self.inputs is not None:
                inbound = await self.inputs.shorten(inbound, live.turn.id)
            scope, name = _scope_of(inbound), MessageName(edit_key, _EDIT_KNOWN_SECONDS)
            is_made = await self._store.amend(Amend(inbound, scope, name, may_replace=live is not None))
            if is_made and live is not None:
                amended = msgspec.structs.replace(live.turn.inbound, parts=inbound.parts)
                live.turn = msgspec.structs.replace(live.turn, inbound=amended)
            return is_made
        finally:
            if live is not None:
                live.amending = None

    def withdraw(self, chat_key: ChatKey, key: str) -> bool:
        """Cancel the message `key` without an answer if its turn waits here, and return whether."""
        if (live := self._waiting(chat_key, key)) is None:
            return False
        self._lanes.stop(live)
        return True

    def _waiting(self, chat_key: ChatKey, key: str | None) -> LiveTurn | None:
        """Return the turn of this message if it waits in its lane and is not a command."""
        for live in self._lanes.turns_of(chat_key):
            turn = live.turn
            is_waiting = live.state is LiveState.QUEUED and not turn.attempts and not turn.command
            if is_waiting and turn.inbound.key == key:
                return live
        return None

    async def wake(self, inbound: Inbound, session_id: SessionId) -> LiveTurn:
        """Accept a message that no person wrote, for this session. It joins the turn that runs, if one does.

        Raises `NotFound` if the session is not the chat's current one, and what `submit` raises.
        """
        self.load.check()
        order = Accept(
            turn_id=new_turn_id(),
            inbound=inbound,
            scope=_scope_of(inbound),
            digest=await _digest(inbound.parts, inbound.model),
            only=session_id,
        )
        self._check_open()
        return await finish(self._accept_in_turn(order, Busy.STEER, is_explicit=True))

    async def run(self, inbound: Inbound, binding: Binding, claim: SlotClaim) -> LiveTurn:
        """Accept the run of a job, and bind it to its slot. A slot that has a turn already gets no second
        one: that turn is returned.

        Raises `StaleFence` if another process has the slot, and what `submit` raises.
        """
        is_own = inbound.chat_key != asking_chat(inbound.chat_key)  # a chat of the job's own
        expire_before = 0.0 if is_own else self._sessions.cutoff()
        changes = {"binding": binding, "scope": JOBS_CHANNEL, "expire_before": expire_before, "claim": claim}
        return await self._take(inbound, claim.job_id if is_own else None, changes)

    async def receive(
        self, inbound: Inbound, names: tuple[MessageName, ...] = (), *, is_new: bool = False
    ) -> LiveTurn:
        """Accept a message of a program. With `is_new` it gets a new session, kept like one of a job.

        Raises `RepeatedMessage` if a message of the chat had one of the names, and what `submit` raises.
        """
        binding = Binding.NEW if is_new else Binding.CURRENT
        changes = {"binding": binding, "scope": inbound.chat_key, "names": names}
        return await self._take(inbound, JobId(inbound.sender.id) if is_new else None, changes)

    async def _take(self, inbound: Inbound, job_id: JobId | None, changes: dict[str, Any]) -> LiveTurn:
        """Accept a message that no person wrote, which is no command. `changes` are those of `Accept`."""
        self.load.check()
        said = await self._without_secrets((UserMessage(inbound.parts),))
        inbound = msgspec.structs.replace(inbound, parts=said[0].parts)
        turn_id = new_turn_id()
        if self.inputs is not None:
            inbound = await self.inputs.shorten(inbound, turn_id)
        order = msgspec.structs.replace(Accept(turn_id, inbound, self._fresh(inbound, job_id)), **changes)
        self._check_open()
        return await finish(self._accept_in_turn(order, Busy.QUEUE, is_explicit=False))

    def answers(self, inbound: Inbound) -> bool:
        """Return whether the message answers a question that a parked turn of its sender has put."""
        parked = self._live.running_in(inbound.chat_key)
        if parked is None or parked.turn.inbound.sender.id != inbound.sender.id or not inbound.text.strip():
            return False
        return any(question.kind is QuestionKind.ANSWER for question in parked.open_questions())

    async def call(self, call: StatelessCall) -> LiveTurn:
        """Accept a stateless call: an ephemeral session of its own, with the caller's context and tools.

        A response that continues the last one of its chain is put into the same session, unless another one
        is there first.
        """
        self.load.check()
        context = await self._without_secrets(call.context)
        order = await self._order(msgspec.structs.replace(call, context=context))
        self._check_open()
        try:
            return await finish(self._accept(order, call.options, may_begin=True))
        except HeadMoved:
            order = self._apart(order, call)
            return await finish(self._accept(order, call.options, may_begin=True))

    async def _without_secrets(self, messages: tuple[M, ...]) -> tuple[M, ...]:
        """Return the messages without the gateway's secrets, which no log and no model may have. Long ones
        are read in a thread."""
        redactor = self._agents.secrets.redactor
        if not redactor or sum(map(weigh_message, messages)) <= _LONG_TEXT:
            return redact_messages(messages, redactor)
        return await asyncio.to_thread(redact_messages, messages, redactor)

    async def _order(self, call: StatelessCall) -> Accept:
        pinned = self._agents.specs.resolve_stateless(call.model, call.tools, call.instructions)
        behind, previous = call.behind, call.behind and call.behind.turn_id
        options = msgspec.structs.replace(call.options, streams_parts=False)  # the answer is the same
        content = (call.context, call.model, call.tools, options, call.instructions, previous)
        digest = await _digest(*content) if call.key is not None else ""
        order = Accept(
            turn_id=new_turn_id(),
            inbound=Inbound(ChatKey(""), call.sender, (), call.key, call.model),
            fresh=Fresh(new_session_id(), pinned, call.context, ephemeral=True),
            scope=f"{call.sender.id}\n{EPHEMERAL}" if call.key is not None else "",
            digest=digest,
            behind=behind,
            response=call.response,
            here=self.cluster.here,
        )
        # Without input the head stays where it is, and another response could be put there too.
        if behind is None or not behind.is_head or call.response is None or not call.context:
            return self._apart(order, call)
        inbound = msgspec.structs.replace(order.inbound, chat_key=behind.chat_key)
        return msgspec.structs.replace(order, inbound=inbound, binding=Binding.CHAIN)

    def _apart(self, order: Accept, call: StatelessCall) -> Accept:
        """Return the order with a session of its own. If it continues a chain, the session is a branch."""
        assert order.fresh is not None
        session_id = order.fresh.session_id
        place = (call.owner, session_id) if call.owner else (session_id,)
        chat = ChatAddress(self.settings.agent_name, "http", EPHEMERAL, *place)
        inbound = msgspec.structs.replace(order.inbound, chat_key=chat.key())
        binding = Binding.CURRENT if order.behind is None else Binding.NEW
        return msgspec.structs.replace(order, inbound=inbound, binding=binding)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Draining("The gateway is shutting down.", "Send it again in a moment.")

    async def _accept_in_turn(self, order: Accept, busy: Busy, *, is_explicit: bool) -> LiveTurn:
        """Accept the message and let it wait, join the running turn, or interrupt it."""
        key = order.inbound.chat_key
        ahead = self._arriving.get(key, 0)
        running = None if busy is Busy.QUEUE else self._live.running_in(key)
        # A message passes earlier ones only if its sender said so. To find those, all turns are looked at.
        if (
            busy is Busy.STEER
            and running is not None
            and order.inbound.parts
            and (is_explicit or not (ahead or self._live.waiting_in(key)))
        ):
            order = msgspec.structs.replace(order, steers=running.turn.id)
        is_control = self._agents.commands.is_control(order.command)
        if not is_control:
            self._check_room(order, ahead, running)
        most = 0 if is_control else self._limits.now.chat_queue
        order = msgspec.structs.replace(
            order, here=self.cluster.here, busy=busy, passes=is_explicit, most_waiting=most
        )
        self._arriving[key] = ahead + 1
        try:
            if (trust := self._agents.folder_trust) is not None and _brings_file(order.inbound):
                await trust.mark(key, "sent file")
            live = await self._accept(order, NO_OPTIONS, may_begin=not ahead)
            if busy is Busy.INTERRUPT and running is not None and live.turn.id == order.turn_id:
                running.stop()
            return live
        finally:
            self._arriving[key] -= 1
            if not self._arriving[key]:
                del self._arriving[key]

    def _check_room(self, order: Accept, ahead: int, running: LiveTurn | None) -> None:
        """Raise `LimitReached` if too many messages of the chat wait.

        A message that waits already and is sent again is let through: it is answered with its turn.
        """
        inbound, lane = order.inbound, self._lanes.turns_of(order.inbound.chat_key)
        steers = running.steers if running is not None else ()
        waiting = len(lane) + ahead - 1 + sum(steer.turn.state is TurnState.ACCEPTED for steer in steers)
        if waiting < self._limits.now.chat_queue:
            return
        known = [(live.turn.inbound.key, live.turn.inbound.sender) for live in (*lane, *steers)]
        if inbound.key is not None and (inbound.key, inbound.sender) in known:
            return
        stop = Action(Do.STOP_TURN)
        raise LimitReached(
            f"{waiting} messages of this chat wait already, so this one was not taken.",
            f"Wait for an answer, or {stop}. {self._limits.refuse('chat_queue')}",
            action=stop,
        )

    async def _accept(self, order: Accept, options: CallOptions, *, may_begin: bool) -> LiveTurn:
        """Write the turn and put it into its lane. If its chat is at rest and no other message is on its way,
        the turn is begun in the same transaction."""
        key, asked_at = order.inbound.chat_key, self._keeper.now()
        is_message = not order.command and order.steers is None
        has_lane = may_begin and is_message and self._lanes.claim(key)
        must_wait = order.inbound.gives_way and self.load.runs_wait()
        is_coming = self._agents.pending is not None and self._agents.pending.is_any
        if has_lane and not must_wait and not is_coming and not self._keeper.is_out:
            order = msgspec.structs.replace(order, begin=self._begin(order))
        try:
            try:
                accepted = await self._write(order)
            except NoSession:
                accepted = await self._write(msgspec.structs.replace(order, fresh=self._fresh(order.inbound)))
        except BaseException:
            if has_lane:
                self._lanes.unclaim(key)
            raise
        turn = accepted.turn
        if accepted.ended is not None:
            self._sessions.ended(accepted.ended, turn.chat_key)
        if accepted.is_duplicate:
            if has_lane:
                self._lanes.unclaim(key)
            live = self._live.find(turn)
            live.repeats += 1
            return live
        if accepted.elsewhere is not None or accepted.waits_for_place is not None:
            if has_lane:
                self._lanes.unclaim(key)
            return self._pass_on(accepted)
        self.cluster.note_accepted(key, has_loss=accepted.has_loss)
        live = self._live.accept(turn, options, accepted.began, asked_at)
        if turn.merged_into is None:
            self._lanes.put(live, is_claimed=has_lane)
        elif (host := self._live.get(turn.merged_into)) is not None:
            live.emit(Queued(0))
            host.steer(live)
        else:
            self._lanes.put_freed(live)
        return live

    async def _write(self, order: Accept) -> Accepted:
        self.accepting.add(order.turn_id)
        try:
            accepted = await self._store.accept(order)
        except LimitReached as full:  # at the member that has the chat
            raise LimitReached(full.user_text, f"{full.hint} {self._limits.refuse('chat_queue')}") from full
        finally:
            self.accepting.discard(order.turn_id)
        if order.fresh is not None and self._live.feed.listeners:
            self._note_created(order.fresh.session_id, accepted.turn)
        return accepted

    def _note_created(self, fresh: SessionId, turn: Turn) -> None:
        if turn.session_id == fresh:
            self._live.feed.note(RecordChange("session.created", fresh, turn.chat_key, turn.accepted_at))

    def _pass_on(self, accepted: Accepted) -> LiveTurn:
        """Let another member of the cluster have the turn. It finds the turn by itself too."""
        if accepted.elsewhere is not None:
            self.cluster.wake(Wake.TURNS, accepted.elsewhere)
        live = self._live.accept_elsewhere(accepted.turn)
        if (absent := accepted.waits_for_place) is not None:
            live.emit(Queued(1, absent.sentence(self._clock.now())))
        return live

    def _begin(self, order: Accept) -> Begin:
        inbound, now = order.inbound, self._clock.now()
        user = self.settings.user_message(inbound.parts, now, inbound.untrusted)
        return Begin(order.turn_id, self._keeper.owner, self._keeper.lease_seconds, user)

    def _fresh(self, inbound: Inbound, job_id: JobId | None = None) -> Fresh:
        """Return a new session for the message. If there is no model yet, the session has no spec, and its
        turn says why. Raises `NotFound` for an unknown model."""
        spec: PinnedSpec | None = None
        with suppress(NoModel):
            spec = self._agents.specs.resolve(inbound.chat_key, inbound.model, inbound.tools, inbound.agent)
        return Fresh(new_session_id(), spec, job_id=job_id)

    async def _bind(self, inbound: Inbound, command: Command | None) -> tuple[Binding, SessionId | None]:
        """Return which session the turn belongs to. A `/resume` of an unknown session stays in the current
        one and says so."""
        name = canonical(command.name) if command else ""
        if name in ("new", "branch"):
            return Binding.NEW, None
        if name == "resume" and command is not None:
            current = await self._store.current_session(inbound.chat_key)
            summary = await self._store.summary(current.id) if current else None
            found = find_session(summary, command.args) if summary else None
            if found is not None:
                return Binding.RESUME, found.id
        return Binding.CURRENT, None


def _scope_of(inbound: Inbound) -> str:
    """Return the scope in which the message's key is unique."""
    return f"{inbound.sender.id}\n{inbound.chat_key}"


def _with_text(inbound: Inbound, text: str) -> Inbound:
    files = [part for part in inbound.parts if not isinstance(part, Text)]
    return msgspec.structs.replace(inbound, parts=(Text(text), *files))


async def _digest(*parts: object) -> str:
    """Return a hash of the content. That of pictures takes a while, and is made in a thread."""
    data = msgspec.json.encode(parts)
    made = await asyncio.to_thread(hashlib.sha256, data) if len(data) > _LONG_BYTES else hashlib.sha256(data)
    return made.hexdigest()
