"""The turns of this process: what channels use to submit messages, follow turns and stop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.membership import LoneGateway, Membership
from talaria.core.errors import NotFound, StoreError
from talaria.core.ids import ChatKey, OwnerId, QuestionId, SessionId, TurnId
from talaria.core.jobs import SlotClaim
from talaria.core.ledger import Binding, MessageName
from talaria.core.questions import Decision
from talaria.core.sessions import Session
from talaria.core.turns import Inbound, Turn
from talaria.observe.loop_watch import Load
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.explain import NO_SUCH_TURN
from talaria.turns.feed import OtherFeeds
from talaria.turns.followed import FollowedTurn, FollowedTurns
from talaria.turns.histories import SentExchange
from talaria.turns.intake import Intake, StatelessCall
from talaria.turns.lanes import Lanes
from talaria.turns.lifecycle import SessionLifecycle
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.long_inputs import LongInputs, MessageKeeper
from talaria.turns.questions import Decisions, HostQuestions
from talaria.turns.retries import ClientRequest, RecentRequests
from talaria.turns.runner import Runner
from talaria.turns.settings import TurnSettings
from talaria.turns.states import LiveState
from talaria.turns.titles import Titles
from talaria.turns.turns_here import TurnsHere

if TYPE_CHECKING:
    from talaria.turns.delegates import Delegates

_log = logging.getLogger("talaria.turns")
_WATCH_SECONDS = 5.0


class Turns:
    """Opened by `recover`, closed by `drain`. In between, every accepted message is answered.

    Calls go one way: this facade, intake and lanes, the runner, the agent loop. What comes back is a returned
    value, a live turn's state, or an event.
    """

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        agents: Agents,
        sessions: SessionLifecycle,
        settings: TurnSettings,
        *,
        live: LiveTurns,
        hosts: HostQuestions,
        cluster: Membership | LoneGateway,
        load: Load | None = None,
        uploads: MessageKeeper | None = None,
        followed: FollowedTurns | None = None,
        feeds: OtherFeeds | None = None,
    ) -> None:
        """`uploads` keep messages that are too long for a model; without them such messages are sent whole.
        `followed` are the turns that other members of the cluster have, and `feeds` the states of these;
        `drain` lets them go."""
        self._store = store
        self._cluster = cluster
        self._keeper = keeper
        self._pending = agents.pending
        self.agents = agents
        self.memories = agents.memories
        self._sessions = sessions
        self._settings = settings
        self._clock = agents.clock
        self.live = live
        self.hosts = hosts
        self.followed = followed
        self.other_feeds = feeds
        if followed is not None:
            live.use_followed(followed.find, followed.relay)
        self.decisions = Decisions(
            store,
            live,
            agents.clock,
            self._take_up_chat,
            hosts,
            agent_name=settings.agent_name,
            redact=agents.secrets,
            followed=followed,
        )
        self._titles = Titles(store, agents.side_calls, live.feed)
        self._runner = Runner(
            store,
            keeper,
            agents,
            self.live,
            settings,
            decisions=self.decisions,
            end_session=sessions.end,
            titles=self._titles,
            load=load,
        )
        self._lanes = Lanes(self._runner, self.live, agents.commands.is_control)
        inputs = LongInputs(store, agents, uploads) if uploads is not None else None
        self._intake = Intake(
            store,
            keeper,
            agents,
            sessions,
            self._lanes,
            settings=settings,
            load=load or Load(),
            inputs=inputs,
            cluster=cluster,
        )
        self.here = TurnsHere(
            store, keeper, cluster, self._lanes, intake=self._intake, decisions=self.decisions
        )
        self._lanes.use_placing(self.here)

    def _take_up_chat(self, chat_key: ChatKey) -> None:
        self.here.take_up_chat(chat_key)

    def hold(self) -> None:
        """Run no turns until `release`. Messages are accepted meanwhile, and control commands run."""
        self._lanes.hold()

    def release(self) -> None:
        """Run the turns that wait."""
        self._lanes.release()

    async def recover(self, takes_up: Callable[[Turn], bool] = lambda turn: True) -> int:
        """Take up what earlier processes left unsettled, then accept messages. Return how many were taken up.

        Stateless calls are cancelled instead, because their callers are gone. Turns for which `takes_up` is
        False are left alone until their chat is spoken to.
        """
        count = await self.here.open(takes_up)
        await self.requests.load()
        self._intake.open()
        return count

    async def drain(self, deadline: float) -> int:
        """Refuse new messages, let running turns finish for `deadline` seconds, and let the rest go.

        Return how many did not finish; they are resumable.
        """
        self._intake.close()
        await self._cluster.drain()
        self.live.stop_relaying()
        self.here.drain()
        if self._pending is not None:
            self._pending.let_go()
        self._runner.let_go_held()
        left = await self._lanes.drain(deadline)
        await self._titles.close()
        if left:
            _log.warning("what did not finish in time is resumed by the next start: %d", left)
        if left or any(live.began is not None for live in self.live):  # begun, and not in its lane yet
            try:  # give the leases back, so that the next process can go on at once and counts no crash
                await self._store.yield_turns(self._keeper.owner)
            except StoreError as error:
                _log.error("the leases of this process could not be returned: %s", error)
        for live in self.live:
            self.live.let_go(live)
        if self.other_feeds is not None:
            await self.other_feeds.close()
        if self.followed is not None:
            await self.followed.close()
        await self.requests.mark()
        self.live.feed.close()
        return left

    # -- what channels do -----------------------------------------------------------------------------------

    @property
    def owner(self) -> OwnerId:
        """The owner of this process's leases."""
        return self._keeper.owner

    @property
    def requests(self) -> RecentRequests:
        return self._intake.requests

    def use_delegates(self, delegates: Delegates) -> None:
        """Let slash commands act on the delegates of chats."""
        self._runner.slash.delegates = delegates

    async def submit(
        self,
        inbound: Inbound,
        request: ClientRequest | None = None,
        history: Sequence[SentExchange] | None = None,
    ) -> LiveTurn:
        """Accept a message. Durable when it returns: the message will be answered, or its failure told.

        See `Intake.submit` for what it raises.
        """
        self.here.take_up_chat(inbound.chat_key)
        return await self._intake.submit(inbound, request, history)

    async def amend(self, inbound: Inbound, edit_key: str) -> bool:
        """Replace a message that waits; see `Intake.amend`."""
        return await self._intake.amend(inbound, edit_key)

    def withdraw(self, chat_key: ChatKey, key: str) -> bool:
        """Cancel a message that waits; see `Intake.withdraw`."""
        return self._intake.withdraw(chat_key, key)

    async def wake(self, inbound: Inbound, session_id: SessionId) -> LiveTurn:
        """Accept a message that no person wrote; see `Intake.wake`."""
        self.here.take_up_chat(inbound.chat_key)
        return await self._intake.wake(inbound, session_id)

    async def run(self, inbound: Inbound, binding: Binding, claim: SlotClaim) -> LiveTurn:
        """Accept the run of a job; see `Intake.run`."""
        self.here.take_up_chat(inbound.chat_key)
        return await self._intake.run(inbound, binding, claim)

    async def receive(
        self, inbound: Inbound, names: tuple[MessageName, ...] = (), *, is_new: bool = False
    ) -> LiveTurn:
        """Accept a message of a program; see `Intake.receive`."""
        return await self._intake.receive(inbound, names, is_new=is_new)

    async def call(self, call: StatelessCall) -> LiveTurn:
        """Accept a call that brings its whole context."""
        return await self._intake.call(call)

    async def wait(self, live: LiveTurn, seconds: float | None = None) -> Turn:
        """Return the turn when it is settled or let go, or as it is after `seconds`. Stops nothing."""
        if not live.settled.done():
            await asyncio.wait((live.settled,), timeout=seconds)
        return live.turn

    async def find(self, turn_id: TurnId) -> LiveTurn:
        """Return the turn, also if it is over or another process has it. Raises `NotFound`."""
        if (live := await self._intake.find(turn_id)) is None:
            raise NotFound(f"There is no turn {turn_id}.", NO_SUCH_TURN)
        return live

    async def cancel(self, live: LiveTurn) -> Turn:
        """Stop the turn and return it when it is over. A turn that is over stays as it is."""
        self.here.take_up_chat(live.turn.chat_key)
        live = self.live.get(live.turn.id) or live
        if isinstance(live, FollowedTurn):
            if not live.state.is_over and self.followed is not None:
                await self.followed.stop(live.turn.id, "")
        else:
            self._lanes.stop(live)
        return await self.wait(live)

    async def decide(self, question_id: QuestionId, text: str, by: str) -> Turn:
        """Record what was decided about a question, without a look at who decides; see `Decisions`."""
        return await self.decisions.record(question_id, Decision(text, by, self._clock.now()))

    async def end(self, session_id: SessionId) -> Session:
        """End the session. Raises `LeaseHeld` while a turn of it runs or waits, `NotFound`."""
        return await self._sessions.end(session_id)

    async def watch(self) -> None:
        """Interrupt turns that exceed their time limit and resume turns whose questions have expired, until
        cancelled."""
        limit_of = self._settings.seconds_of
        shortest = self._settings.turn_seconds
        while True:
            await self._clock.sleep(min(_WATCH_SECONDS, shortest / 4) if shortest else _WATCH_SECONDS)
            shortest = self._settings.turn_seconds
            for live in self.live:
                live.resume_if_decided()
                limit = limit_of(live.turn)
                shortest = min(filter(None, (shortest, limit)), default=0.0)
                if limit and live.running_seconds() >= limit and live.interrupt(LiveState.OVERDUE):
                    _log.warning("turn %s takes too long and is stopped", live.turn.id)
