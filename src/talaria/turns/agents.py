"""The agents that answer turns, with their specs, their tools and the models that they may call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from talaria.access.budgets import Budgets
from talaria.agent.calling import Caller, Routes
from talaria.agent.compaction.keeper import Compaction
from talaria.agent.context import NoteSource, Steer, TurnContext, TurnNotes
from talaria.agent.journal import Journal
from talaria.agent.loop import Loop
from talaria.agent.side_calls import Purpose, SideCall, SideCalls
from talaria.agent.spec_resolver import SpecResolver
from talaria.agent.warm import AgentBuilder, WarmAgent
from talaria.core.clock import Clock
from talaria.core.entries import Revision, SpecSet
from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, SessionId
from talaria.core.ledger import Began
from talaria.core.messages import UserMessage
from talaria.core.redaction import SecretRegistry
from talaria.core.specs import AgentSpec, PinnedSpec
from talaria.core.turns import Turn, TurnState
from talaria.memory.memories import Memories
from talaria.models.catalog import ModelChoice
from talaria.observe.metrics import Metrics
from talaria.pool.pool import Pool
from talaria.store.store import Store
from talaria.tools.execution import ToolRunner
from talaria.turns.joined_identities import JoinedIdentities
from talaria.turns.live import LiveTurn
from talaria.turns.settings import TurnSettings
from talaria.turns.slash import ExtraCommands
from talaria.turns.trust import FolderTrust

if TYPE_CHECKING:
    from talaria.core.hooks import Hooks
    from talaria.jobs.desk import JobDesk
    from talaria.models.local.downloads import WeightsDownloads
    from talaria.workspace.workspaces import ChatWorkspace


# -- the messages that join a live turn, as the loop of its agent reads them ------------------------------


class LiveSteering:
    """The messages that join a live turn, for its loop. Implements `agent.context.Steering`."""

    def __init__(self, live: LiveTurn, message_of: Callable[[Turn], UserMessage]) -> None:
        self._live = live
        self._message_of = message_of
        self._seen = 0

    def waiting(self) -> Sequence[Steer]:
        steers = self._live.steers
        self._seen = len(steers)
        if not steers:
            return []
        waiting = [steer.turn for steer in steers if steer.turn.state is TurnState.ACCEPTED]
        return [Steer(turn.id, self._message_of(turn)) for turn in waiting]

    async def arrival(self) -> None:
        while len(self._live.steers) == self._seen:
            await self._live.steered()


# -- the agents that answer turns, with their specs, their tools and the models that they may call --------


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents, and all that is needed to give one to a turn."""

    pool: Pool
    specs: SpecResolver
    routes: Routes
    tool_runner: ToolRunner
    budgets: Budgets
    metrics: Metrics
    compaction: Compaction
    pending: WeightsDownloads | None = None
    secrets: SecretRegistry = field(default_factory=SecretRegistry)
    notes: Sequence[NoteSource] = ()
    memories: Memories | None = None
    job_desk: Callable[[], JobDesk] | None = None
    commands: ExtraCommands = field(default_factory=ExtraCommands)
    hooks: Hooks | None = None
    folder_trust: FolderTrust | None = None
    identities: JoinedIdentities | None = None

    @property
    def builder(self) -> AgentBuilder:
        return self.routes.builder

    @property
    def side_calls(self) -> SideCalls:
        return self.compaction.side_calls

    @property
    def clock(self) -> Clock:
        return self.routes.clock

    @contextmanager
    def workspace(self, session_id: SessionId, chat_key: ChatKey) -> Iterator[ChatWorkspace]:
        """Open the workspace of a session, and give it back at the end."""
        workspace = self.builder.workspaces.open(session_id, chat_key)
        try:
            yield workspace
        finally:
            self.pool.give_back(workspace)

    async def wait_for_model(self, store: Store, live: LiveTurn) -> bool:
        """Wait while the turn's model is being fetched to this machine; followers are told how long it takes.

        Return False if the gateway shuts down meanwhile.
        """
        if self.pending is None or not self.pending.is_any:
            return True
        spec = await self._spec_of(store, live.turn)
        if spec is None or not self.pending.is_coming(spec.provider, spec.model):
            return True
        return await self.pending.arrival(live.emit)

    async def _spec_of(self, store: Store, turn: Turn) -> AgentSpec | None:
        """Return the spec that the turn will run under; None if that fails, as the turn itself will say."""
        try:
            if (wish := turn.inbound.model) is None:
                session = await store.session(turn.session_id)
                if session is not None and session.spec_id is not None:
                    return (await self.builder.pinned(session.spec_id)).spec
            return self.specs.resolve(turn.chat_key, wish, turn.inbound.tools, turn.inbound.agent).spec
        except TalariaError:
            return None

    async def pin(self, turn: Turn, began: Began, journal: Journal) -> tuple[PinnedSpec, Revision]:
        """Return the session's spec and the revision that its agent must be at.

        Commits a new spec if the turn wishes for another model, or if the provider's API has changed since.
        """
        session, wish, only, agent = began.session, turn.inbound.model, turn.inbound.tools, None
        if session.spec_id is not None:
            pinned = await self.builder.pinned(session.spec_id)
            spec = pinned.spec
            # A provider whose API has changed needs other bytes than the stored ones.
            is_spoken = spec.api == self.routes.models.wire(spec.provider).name
            if session.ephemeral or (is_spoken and (wish is None or not self.specs.differs(pinned, wish))):
                return pinned, began.before
            wish = wish or f"{spec.provider}/{spec.model}"
            # The session of a model that takes no tools has none; another model gets the configured ones.
            takes_none = self.specs.abilities(spec.provider, spec.model).tools is False
            only, agent = None if takes_none else spec.usable_tools, spec.agent
        pinned = self.specs.resolve(turn.chat_key, wish, only, agent or turn.inbound.agent)
        return pinned, await journal.commit((SpecSet(pinned.id),), specs=(pinned,))

    def loop(self, live: LiveTurn, agent: WarmAgent, journal: Journal, settings: TurnSettings) -> Loop:
        """Return the loop that lets `agent` answer the turn."""
        options, spec = live.options, agent.pinned.spec
        live.model = f"{spec.provider}/{spec.model}"
        reasoning, steering = options.reasoning, None
        if spec.prompt:  # a session, not a stateless call
            effort = agent.reasoning or settings.reasoning
            reasoning = None if effort == "none" else effort
            steering = LiveSteering(live, settings.message_of)
        context = TurnContext(
            turn_id=live.turn.id,
            emit=live.emit,
            max_steps=settings.max_steps,
            tools=self.tool_runner.bind(
                live.turn,
                spec,
                agent.workspace,
                live.emit,
                partial(self._ask_beside, live.turn, spec),
                has_untrusted=lambda: agent.has_untrusted,
            ),
            clock=self.routes.clock,
            metrics=self.metrics,
            budget=self.budgets.of(live.turn),
            reasoning=reasoning,
            max_output=options.max_output,
            sampling=options.sampling,
            streams_parts=options.streams_parts,
            steering=steering,
            redactor=self.secrets.redactor,
            notes=TurnNotes(self.notes, live.turn, agent) if steering and self.notes else None,
            gives_way=live.turn.inbound.gives_way,
            handed_out=live.hand_out,
        )
        keeper = self.compaction.keep(live.turn, agent, journal, live.emit) if spec.prompt else None
        if self.hooks is None:
            return Loop(Caller(agent, journal, context, self.routes, keeper), journal, context)
        from talaria.agent.hooked import HookedCaller, hook_tools  # noqa: PLC0415 - only if there are hooks

        context = hook_tools(context, self.hooks, live.turn)
        caller = HookedCaller(agent, journal, context, self.routes, keeper)
        caller.hooks, caller.turn = self.hooks, live.turn
        return Loop(caller, journal, context)

    async def _ask_beside(
        self, turn: Turn, spec: AgentSpec, instructions: str, text: str, max_output: int
    ) -> str:
        call = SideCall(Purpose.MEMORY, instructions, text, max_output)
        return await self.side_calls.beside(call, ModelChoice(spec.provider, spec.model), turn)
