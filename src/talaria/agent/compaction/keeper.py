"""Keeps the requests of a turn within the window of the model that is called.

A compaction is a commit of the turn: one summary entry, and a new spec if memory has changed meanwhile. Its
model calls are steps of the turn. If it fails, hangs or saves nothing, the conversation stays as it is,
people are told once, and it is not tried again before the conversation has grown by a tenth of the window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from talaria.agent.compaction.engine import ContextEngine, SummaryEngine, leave_out
from talaria.agent.compaction.plan import (
    CompactionRequest,
    WindowLimits,
    count_tokens,
    find_fault,
    measure_use,
    rate_of,
    request_weight,
    seed,
)
from talaria.agent.journal import Journal
from talaria.agent.settings import ContextSettings
from talaria.agent.side_calls import SideCall, SideCalls
from talaria.agent.transcript import Transcript
from talaria.agent.warm import AgentBuilder, WarmAgent, can_recall, load_agent
from talaria.commands.replies import WindowUse
from talaria.core.entries import Entry, EntryBody, ReasoningSet, SpecSet, Summary, SummaryDropped
from talaria.core.errors import ContextTooLong, NoModel, StoreError, TalariaError
from talaria.core.events import Compacted, Event
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey, SessionId
from talaria.core.messages import Message
from talaria.core.problems import Action, Do
from talaria.core.shown import ShownLog
from talaria.core.specs import AgentSpec, PinnedSpec
from talaria.core.turns import Turn
from talaria.models.catalog import ModelChoice
from talaria.models.known import Abilities
from talaria.models.wire import Models
from talaria.store.store import Store

_log = logging.getLogger("talaria.agent")
_MOST_SECONDS = 300.0
_STEP = 10  # a tenth of the window: how much a conversation grows between two tries, and saves at least twice
_ROUNDS = 8  # summaries of smaller models that are dropped at once


@dataclass(frozen=True, slots=True)
class Compaction:
    """The means to compact conversations, of all sessions.

    `refresh` returns the spec of a session of a chat with the memory as it is now. `learned` are sizes that
    endpoints have refused, by model.
    """

    store: Store
    side_calls: SideCalls
    refresh: Callable[[ChatKey, PinnedSpec], PinnedSpec] = lambda key, pinned: pinned
    engine: ContextEngine = field(default_factory=SummaryEngine)
    learned: dict[ModelChoice, int] = field(default_factory=dict)

    @property
    def models(self) -> Models:
        return self.side_calls.models

    @property
    def settings(self) -> ContextSettings:
        return self.side_calls.settings()

    def abilities(self, choice: ModelChoice) -> Abilities:
        return self.side_calls.catalog.abilities(choice.provider, choice.model)

    def limits(self, spec: AgentSpec) -> WindowLimits:
        choice = ModelChoice(spec.provider, spec.model)
        return WindowLimits.of(self.settings, self.abilities(choice), self.learned.get(choice))

    async def use(self, session_id: SessionId, builder: AgentBuilder, pinned: PinnedSpec) -> WindowUse:
        """Return what fills the window of a session's model."""
        entries = await self.store.shown_log(session_id)
        wire = self.models.wire(pinned.spec.provider)
        view = await builder.view(session_id, pinned)
        reported = await self.store.last_input(session_id)
        return measure_use(view, wire, entries, self.limits(pinned.spec), reported)

    def keep(
        self, turn: Turn, agent: WarmAgent, journal: Journal, emit: Callable[[Event], None]
    ) -> ContextKeeper:
        return ContextKeeper(self, turn, agent, journal, emit)


class CompactionOutcome(msgspec.Struct, frozen=True):
    """The tokens of a request before and after a compaction, and why it failed or was done without a
    summary; empty if neither."""

    before: int
    after: int
    failure: str = ""


class ContextKeeper(msgspec.Struct, eq=False):
    """Keeps the context of one turn. `note` is what people are told of it with the reply."""

    _means: Compaction
    _turn: Turn
    _agent: WarmAgent
    _journal: Journal
    _emit: Callable[[Event], None]
    _limits: dict[tuple[str, str], WindowLimits] = {}
    _has_relieved: bool = False
    note: str = ""

    async def fit(self, view: WarmAgent) -> None:
        """Compact what `view` shows if the next request would be too large. Cheap if it is not.

        The view of the session's own agent is compacted for good, that of a fallback for this turn only.
        Raises `ContextTooLong` if the request cannot be made to fit, and store errors.
        """
        spec = view.pinned.spec
        limits = self._limits.get((spec.provider, spec.model))
        if limits is None:
            limits = self._limits[spec.provider, spec.model] = self._means.limits(spec)
            if view is self._agent and view.summary_seq:
                await self._restore(view, limits)
        tokens = count_tokens(view)
        if tokens <= limits.at:
            return
        if view.measured is None and view is self._agent:
            if (reported := await self._means.store.last_input(view.session_id)) is not None:
                seed(view, reported)
            tokens = count_tokens(view)
        if tokens <= self._trigger(view, limits):
            return
        await self._run(view, limits)
        if (tokens := count_tokens(view)) > limits.most:
            raise _too_long(tokens, limits)

    async def relieve(self, view: WarmAgent) -> bool:
        """Compact after an endpoint has refused a request as too long; once in a turn.

        Return whether the next request is smaller.
        """
        if self._has_relieved:
            return False
        self._has_relieved = True
        spec, tokens = view.pinned.spec, count_tokens(view)
        self._means.learned[ModelChoice(spec.provider, spec.model)] = tokens - tokens // _STEP
        limits = self._limits[spec.provider, spec.model] = self._means.limits(spec)
        outcome = await self._run(view, limits, must=True)
        return outcome.after < outcome.before

    async def compact_now(self, focus: str) -> str:
        """Compact because a person asked for it, and return what came of it."""
        view = self._agent
        limits = self._means.limits(view.pinned.spec)
        outcome = await self._run(view, limits, focus=focus, is_wished=True)
        self.note = ""
        if outcome.after < outcome.before and not outcome.failure:
            return f"Compacted from {outcome.before:,} to {outcome.after:,} tokens."
        if outcome.failure:
            return f"Nothing was compacted: {outcome.failure}"
        return f"There is nothing to compact: the conversation has {outcome.before:,} tokens."

    def _trigger(self, view: WarmAgent, limits: WindowLimits) -> int:
        """Return the tokens above which `view` is compacted. It has to grow after a compaction, or a failed
        one, because each breaks the provider's cache."""
        step = limits.window // _STEP
        grown = [limits.at]
        if view.summary_seq:
            grown.append(view.summary.after + step)
        if view.failed_at:
            grown.append(view.failed_at + step)
        return min(max(grown), limits.most)

    # -- one compaction -------------------------------------------------------------------------------------

    async def _run(
        self,
        view: WarmAgent,
        limits: WindowLimits,
        *,
        focus: str = "",
        must: bool = False,
        is_wished: bool = False,
    ) -> CompactionOutcome:
        """Compact, and note what people are told. With `must`, the oldest part is left out if no summary of
        it can be had."""
        entries = await self._means.store.shown_log(view.session_id)
        rate, before = rate_of(view), count_tokens(view)
        request = self._request(view, entries, limits, focus, is_wished=is_wished)
        summary, failure = await self._choose(view, request)
        after = before if summary is None else self._size_with(view, entries, summary, rate)
        if summary is not None and after >= before:
            summary, failure = None, "The summary is not shorter than its source."
        if summary is None and (must or before > limits.most):
            summary = leave_out(request)
            if summary is not None and (fault := find_fault(entries, summary)):
                raise AssertionError(f"a compaction without a model is wrong: {fault}")
            after = before if summary is None else self._size_with(view, entries, summary, rate)
        if summary is None or after >= before:
            self._note_failure(view, before, failure, is_left=False)
            return CompactionOutcome(before, before, failure)
        spec = view.pinned.spec
        summary = msgspec.structs.replace(
            summary, model=f"{spec.provider}/{spec.model}", window=limits.window, before=before, after=after
        )
        await self._apply(view, entries, summary, rate)
        after = count_tokens(view)
        self._emit(Compacted(before, after))
        if failure:
            self._note_failure(view, before, failure, is_left=True)
        else:
            view.failed_at, self.note = 0, f"[Compacted from {before:,} to {after:,} tokens.]"
        _log.info("session %s was compacted from %d to %d tokens", view.session_id, before, after)
        return CompactionOutcome(before, after, failure)

    def _note_failure(self, view: WarmAgent, before: int, failure: str, *, is_left: bool) -> None:
        if failure and not view.failed_at:
            goes_on = "continues without its oldest part" if is_left else "continues in full"
            self.note = f"[The conversation could not be summarised: {failure} It {goes_on}.]"
        view.failed_at = before
        if failure:
            _log.warning("session %s could not be summarised: %s", view.session_id, failure)

    def _request(
        self, view: WarmAgent, entries: Sequence[Entry], limits: WindowLimits, focus: str, *, is_wished: bool
    ) -> CompactionRequest:
        spec, prefix, rate = view.pinned.spec, view.pinned.prefix, rate_of(view)
        scratch = Transcript(self._means.models.wire(spec.provider), spec)

        def measure(message: Message) -> int:
            scratch.clear()
            scratch.append(message)
            return round(scratch.weight * rate)

        return CompactionRequest(
            entries,
            limits,
            count_tokens(view),
            round((len(prefix.system) + len(prefix.tools)) * rate),
            measure,
            self._means.settings.keep_turns,
            self._room(spec, limits),
            focus,
            is_wished,
        )

    def _room(self, spec: AgentSpec, limits: WindowLimits) -> int:
        """Return the tokens of material that one call of the model that summarises may have."""
        try:
            choice = self._means.side_calls.choose(ModelChoice(spec.provider, spec.model))
        except TalariaError:
            return limits.target
        return min(WindowLimits.of(self._means.settings, self._means.abilities(choice)).target, limits.target)

    async def _choose(self, view: WarmAgent, request: CompactionRequest) -> tuple[Summary | None, str]:
        """Return what the engine chose, or None and why it failed. An engine may be a plug-in."""
        own = ModelChoice(view.pinned.spec.provider, view.pinned.spec.model)

        async def ask(call: SideCall) -> str:
            return await self._means.side_calls.in_turn(call, own, self._journal, self._turn)

        try:
            async with asyncio.timeout(_MOST_SECONDS):
                summary = await self._means.engine.compact(request, ask)
        except NoModel:  # a built-in model: nothing has failed
            return leave_out(request), ""
        except StoreError:
            raise
        except TimeoutError:
            return None, f"It took longer than {_MOST_SECONDS:.0f} seconds."
        except TalariaError as error:
            return None, error.user_text
        except Exception:
            _log.exception("the context engine failed")
            return None, "The context engine failed; the log has more."
        if summary is not None and (fault := find_fault(request.entries, summary)):
            _log.error("a compaction of session %s is wrong: %s", view.session_id, fault)
            return None, f"The summary cannot be used, because {fault}."
        hit(Failpoint.SUMMARISED)
        return summary, ""

    def _size_with(self, view: WarmAgent, entries: Sequence[Entry], summary: Summary, rate: float) -> int:
        """Return the tokens of the next request with this summary."""
        scratch = Transcript(self._means.models.wire(view.pinned.spec.provider), view.pinned.spec)
        for shown in ShownLog(_with(view, entries, summary)).messages(
            can_recall=can_recall(view.pinned.spec)
        ):
            scratch.append(shown.message)
        prefix = view.pinned.prefix
        return round((len(prefix.system) + len(prefix.tools) + scratch.weight) * rate)

    async def _apply(self, view: WarmAgent, entries: Sequence[Entry], summary: Summary, rate: float) -> None:
        if view is not self._agent:
            revision = view.revision
            view.restart(view.pinned, self._means.models.wire(view.pinned.spec.provider))
            await load_agent(view, _with(view, entries, summary))
            view.revision, view.summary_seq, view.summary = revision, 0, Summary()
        else:
            own = self._means.refresh(self._turn.chat_key, view.pinned)
            bodies: list[EntryBody] = [ReasoningSet(view.reasoning)] if view.reasoning else []
            specs = () if own.id == view.pinned.id else (own,)
            bodies += [SpecSet(own.id) for own in specs]
            await self._journal.commit((*bodies, summary), specs=specs)
            hit(Failpoint.COMPACTED)
            await self._reload(view, own)
        weight = request_weight(view)
        view.measured = (weight, round(weight * rate))

    async def _reload(self, view: WarmAgent, pinned: PinnedSpec) -> None:
        """Let the agent show what the log says now. The turn holds its lease."""
        view.restart(pinned, self._means.models.wire(pinned.spec.provider))
        await load_agent(view, await self._means.store.shown_log(view.session_id))

    # -- larger models --------------------------------------------------------------------------------------

    async def _restore(self, view: WarmAgent, limits: WindowLimits) -> None:
        """Show again what was hidden only because the session had a model with a smaller window."""
        spec = view.pinned.spec
        own, rate, dropped = f"{spec.provider}/{spec.model}", rate_of(view), 0
        for _ in range(_ROUNDS):
            summary = view.summary
            if not view.summary_seq or summary.model == own:
                break
            if not 0 < summary.window < limits.window:
                break
            if count_tokens(view) + summary.before - summary.after > limits.at or summary.of:
                break
            await self._journal.commit((SummaryDropped(view.summary_seq),))
            await self._reload(view, view.pinned)
            dropped += 1
        if dropped:
            weight = request_weight(view)
            view.measured = (weight, round(weight * rate))


def _with(view: WarmAgent, entries: Sequence[Entry], summary: Summary) -> list[Entry]:
    """Return the log as it will be with this summary."""
    head = view.revision
    return [*entries, Entry(view.session_id, head.seq + 1, head.epoch, 0.0, None, summary)]


def _too_long(tokens: int, limits: WindowLimits) -> ContextTooLong:
    action = Action(Do.USE_MODEL, "Choose a model with a larger window")
    return ContextTooLong(
        f"The prompt, the tools and the last message have about {tokens:,} tokens, too many for a model "
        f"that takes {limits.window:,} with its answer.",
        f"{action}.",
        code="context_length_exceeded",
        param="messages",
        action=action,
    )
