"""Intake: binds what a channel heard to a session, writes its turn durably, and only then lets it run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from talaria.commands.slash import SLASH_COMMANDS, Command, Route, canonical, find_session, parse_command
from talaria.core.entries import settled_bodies
from talaria.core.errors import NoModel, TalariaError
from talaria.core.events import Queued
from talaria.core.ids import ChatAddress, ChatKey, SessionId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Binding, Fresh, Start
from talaria.core.messages import Message, Text
from talaria.core.specs import PinnedSpec
from talaria.core.tasks import finish
from talaria.core.turns import Inbound, Sender, Turn
from talaria.turns.busy import Busy, Manner, manner
from talaria.turns.live import NO_OPTIONS, CallOptions, HeadStart, LiveTurn, StopReason
from talaria.turns.mailbox import Mailbox
from talaria.turns.parts import Parts

EPHEMERAL = "ephemeral"


class Draining(TalariaError):
    """The gateway is shutting down and accepts nothing new."""

    type = "draining"


class Receipt(msgspec.Struct, frozen=True):
    """A turn that is durable. `live` is None when it is settled already (a repeated key)."""

    turn: Turn
    live: LiveTurn | None
    is_duplicate: bool = False


class StatelessCall(msgspec.Struct, frozen=True):
    """A call that brings its whole context. `tools` are the caller's, encoded."""

    sender: Sender
    context: tuple[Message, ...]
    model: str | None = None
    tools: bytes = b""
    options: CallOptions = CallOptions()
    key: str | None = None
    scope: str = ""


def is_ephemeral(turn: Turn) -> bool:
    return ChatAddress.parse(turn.chat_key).kind == EPHEMERAL


class Intake:
    """Every way in ends here. What is accepted runs, even when whoever brought it leaves meanwhile."""

    def __init__(self, parts: Parts, mailbox: Mailbox) -> None:
        self._store = parts.store
        self._specs = parts.specs
        self._live = parts.live
        self._keeper = parts.keeper
        self._parts = parts
        self._mailbox = mailbox
        self._is_open = False
        self._arriving: dict[ChatKey, int] = {}

    def open(self) -> None:
        self._is_open = True

    def close(self) -> None:
        """From now on everything is refused with `Draining`."""
        self._is_open = False

    async def submit(self, inbound: Inbound) -> Receipt:
        """Accept a message or a command for its chat's session.

        Raises `IdempotencyConflict`, `NotFound` (a wished model that nobody knows), `Draining`, `StoreError`.
        """
        digest = _digest(inbound.parts, inbound.model) if inbound.key is not None else ""
        wanted = manner(inbound, parse_command(inbound.text), self._parts.busy)
        inbound, command = wanted.inbound, wanted.command
        fresh = Fresh(new_session_id(), self._spec(inbound.model))
        binding, resume = await self._bind(inbound, command)
        if command is not None and command.name == "branch":
            fresh = await self._copy(inbound.chat_key, fresh)
        if resume is not None:
            inbound = msgspec.structs.replace(inbound, parts=(Text(f"/resume {resume}"),))
        order = Accept(
            turn_id=new_turn_id(),
            inbound=inbound,
            fresh=fresh,
            command=command.name if command else "",
            binding=binding,
            resume=resume,
            scope=f"{inbound.sender.id}\n{inbound.chat_key}" if inbound.key is not None else "",
            digest=digest,
            expire_before=self._parts.cutoff(),
        )
        return await self._accept(order, CallOptions(), wanted)

    async def call(self, call: StatelessCall) -> Receipt:
        """Accept a stateless call: an ephemeral session of its own, with the caller's context and tools."""
        pinned = self._specs.resolve_stateless(call.model, call.tools)
        session_id = new_session_id()
        chat = ChatAddress(self._parts.agent_name, "http", EPHEMERAL, session_id)
        inbound = Inbound(chat.key(), call.sender, (), call.key, call.model)
        order = Accept(
            turn_id=new_turn_id(),
            inbound=inbound,
            fresh=Fresh(session_id, pinned, call.context, ephemeral=True),
            scope=f"{call.sender.id}\n{EPHEMERAL}" if call.key is not None else "",
            digest=_digest(call.context, call.model, call.tools, call.options)
            if call.key is not None
            else "",
        )
        return await self._accept(order, call.options)

    def readmit(self, turn: Turn, steers: Iterable[Turn] = ()) -> None:
        """A turn that an earlier process left unsettled takes its place in its lane again, and with it the
        messages that had joined it."""
        live = self._open(turn)
        for steer in steers:
            live.steer(self._open(steer))
        self._route(live)

    def free(self, steers: Iterable[LiveTurn]) -> None:
        """Messages that were to join a turn which ended before it read them are turns of their own."""
        for live in steers:
            live.turn = msgspec.structs.replace(live.turn, merged_into=None)
            if not self._mailbox.put_in_order(live):
                self._let_go(live)

    async def _accept(self, order: Accept, options: CallOptions, wanted: Manner | None = None) -> Receipt:
        if not self._is_open:
            raise Draining("The gateway is shutting down.", "Send it again in a moment.")
        return await finish(self._carry_out(order, options, wanted or Manner(order.inbound)))

    async def _carry_out(self, order: Accept, options: CallOptions, wanted: Manner) -> Receipt:
        """Accept and route, in the order of the calls."""
        key = order.inbound.chat_key
        ahead = self._arriving.get(key, 0)
        running = None if wanted.busy is Busy.QUEUE else self._live.running_in(key)
        # Only a sender's own wish may pass what came before it.
        may_join = wanted.is_wish or not (ahead or self._mailbox.waiting(key))
        if wanted.busy is Busy.STEER and may_join and running is not None and order.inbound.parts:
            order = msgspec.structs.replace(order, steers=running.turn.id)
        self._arriving[key] = ahead + 1
        try:
            receipt = await self._accept_and_route(order, options, may_start=not ahead)
            if wanted.busy is Busy.INTERRUPT and running is not None and not receipt.is_duplicate:
                running.stop(StopReason.USER)
            return receipt
        finally:
            self._arriving[key] -= 1
            if not self._arriving[key]:
                del self._arriving[key]

    async def _accept_and_route(self, order: Accept, options: CallOptions, *, may_start: bool) -> Receipt:
        """A message to a chat at rest, with no other on its way, begins in the same transaction."""
        key, asked_at = order.inbound.chat_key, self._keeper.now()
        is_plain = not order.command and order.steers is None
        has_lane = may_start and is_plain and self._mailbox.claim(key)
        if has_lane and not self._parts.arrivals.is_any:  # what may have to wait begins afterwards
            order = msgspec.structs.replace(order, start=self._start(order.inbound))
        try:
            accepted = await self._store.accept(order)
        except BaseException:
            if has_lane:
                self._mailbox.unclaim(key)
            raise
        turn = accepted.turn
        if accepted.ended is not None:
            self._parts.on_end(accepted.ended)
        if accepted.is_duplicate:
            if has_lane:
                self._mailbox.unclaim(key)
            return Receipt(turn, self._live.get(turn.id), is_duplicate=True)
        head_start = HeadStart(accepted.began, asked_at) if accepted.began is not None else None
        live = self._open(turn, options, head_start)
        host = self._live.get(turn.merged_into) if turn.merged_into else None
        if host is not None:
            live.emit(Queued(0))
            host.steer(live)
        elif turn.merged_into is not None:
            self.free((live,))
        else:
            self._route(live, has_lane=has_lane)
        return Receipt(live.turn, live)

    def _open(
        self, turn: Turn, options: CallOptions = NO_OPTIONS, head_start: HeadStart | None = None
    ) -> LiveTurn:
        live = self._live.open(turn, options, head_start)
        self._parts.on_live(live)
        return live

    def _start(self, inbound: Inbound) -> Start:
        parts = self._parts
        user = parts.user_message(inbound.parts, parts.clock.now())
        return Start(self._keeper.owner, self._keeper.lease_seconds, user)

    def _route(self, live: LiveTurn, *, has_lane: bool = False) -> None:
        spec = SLASH_COMMANDS.get(canonical(live.turn.command)) if live.turn.command else None
        if live.turn.command and (spec is None or spec.route is Route.CONTROL):
            is_taken = self._mailbox.put_past(live)
        else:
            is_taken = self._mailbox.put(live, is_claimed=has_lane)
        if not is_taken:
            self._let_go(live)

    def _let_go(self, live: LiveTurn) -> None:
        """It stays a row for the next start."""
        self._live.close(live)
        live.abandon()

    def _spec(self, wish: str | None) -> PinnedSpec | None:
        """None when no model can be had yet: the session is bound all the same and told why in its turn."""
        try:
            return self._specs.resolve(wish)
        except NoModel:
            return None

    async def _copy(self, chat_key: ChatKey, fresh: Fresh) -> Fresh:
        """A fresh session that begins with what the chat's current one has come to."""
        current = await self._store.current_session(chat_key)
        if current is None:
            return fresh
        spec = await self._parts.builder.pinned(current.spec_id) if current.spec_id else fresh.spec
        return Fresh(fresh.session_id, spec, settled_bodies(await self._store.log(current.id, 0)))

    async def _bind(self, inbound: Inbound, command: Command | None) -> tuple[Binding, SessionId | None]:
        """Which session the turn belongs to. A `/resume` of nothing known stays here and says so."""
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


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
