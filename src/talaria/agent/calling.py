"""The model calls of one turn: attempts and fallbacks, as `models.failures.decide` says."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, assert_never

import msgspec

from talaria.agent.compaction.keeper import ContextKeeper
from talaria.agent.compaction.plan import measure, request_weight
from talaria.agent.context import TurnContext, TurnTools
from talaria.agent.journal import Journal
from talaria.agent.redaction import DeltaRedactor, redact_message
from talaria.agent.warm import AgentBuilder, CacheSample, WarmAgent, watch
from talaria.core.clock import Clock
from talaria.core.errors import AnswerTooLarge, ContextTooLong, EndpointResting, ModelError, NoModel
from talaria.core.events import Delta, FellBack, ReasoningDelta, RefusalDelta, Retrying, ToolCallDelta
from talaria.core.messages import TokenUsage
from talaria.core.problems import Action, Do
from talaria.core.specs import (
    CallCut,
    CallDelta,
    Completion,
    ModelCall,
    ModelDelta,
    PinnedSpec,
    TextDelta,
    ThoughtDelta,
    pin,
)
from talaria.core.spending import PlannedCall
from talaria.models.catalog import ModelChoice
from talaria.models.failures import FallBack, GiveUp, Retry, RetryState, decide
from talaria.models.known import NOTHING_KNOWN, Abilities, AbilityLookup, may_think
from talaria.models.wire import Models, Wire

_log = logging.getLogger("talaria.agent")
_ANSWER_AGAIN = Action(Do.ANSWER_AGAIN)
_HAS_NO_TEXT = "Send your message again."


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the calls of this process may go.

    `chain` is the fallback chain, in order. `draw` returns random numbers from 0 to 1, `abilities` what is
    known of a model.
    """

    models: Models
    builder: AgentBuilder
    clock: Clock
    draw: Callable[[], float]
    chain: tuple[ModelChoice, ...] = ()
    abilities: AbilityLookup = lambda provider, model: NOTHING_KNOWN


class Caller:
    """Makes the model calls of one turn, to the session's own model or to the fallbacks behind it.

    A fallback stays for the rest of the turn; the next turn starts with the session's own model again.
    `choice` is the model that is called. `said` is the text that the current call has streamed.
    """

    def __init__(
        self,
        agent: WarmAgent,
        journal: Journal,
        context: TurnContext,
        routes: Routes,
        keeper: ContextKeeper | None = None,
    ) -> None:
        """Without a `keeper` requests are sent whatever their size."""
        self._keeper = keeper
        self._journal = journal
        self._context = context
        self._routes = routes
        self._agent = agent
        self._view = agent
        self._model = routes.models.get(agent.pinned.spec.provider)
        self._own = ModelChoice(agent.pinned.spec.provider, agent.pinned.spec.model)
        self.choice = self._own
        self._fallbacks = [choice for choice in routes.chain if choice != self._own]
        self._has_spoken = False
        self._has_thought = False
        self._cut: CallCut | None = None
        self._failures: list[tuple[ModelChoice, ModelError]] = []  # each led to a fallback
        self.said: list[str] = []

    @property
    def note(self) -> str:
        """A note for the user if a fallback answered or the conversation was compacted; else empty."""
        kept = f"\n\n{self._keeper.note}" if self._keeper is not None and self._keeper.note else ""
        if not self._failures:
            return kept
        return f"{kept}\n\n[Answered by {self.choice}, because {self._failures[0][1].user_text}]"

    async def ask(self) -> Completion:
        """Return the answer. Raises `ModelError` if no model answers; `said` then has what was streamed."""
        tries, began, patience = 0, self._routes.clock.elapsed(), None
        while True:
            try:
                return await self._attempt(patience)
            except ModelError as error:
                if await self._relieve(error):
                    continue
                tries += 1
                deadline = began + self._model.retry_within
                match decide(error, self._retry_state(tries, deadline), self._routes.draw()):
                    case Retry(seconds=seconds):
                        await self._wait(error, tries, seconds)
                        patience = max(1.0, deadline - self._routes.clock.elapsed())
                        continue
                    case FallBack():
                        if await self._fall_back(error):
                            tries, began, patience = 0, self._routes.clock.elapsed(), None
                            continue
                    case GiveUp():
                        pass
                    case action:
                        assert_never(action)
                self._raise(error)

    def _raise(self, error: ModelError) -> NoReturn:
        """Raise the error for the user. No frame keeps a name for it, so it goes when it was handled."""
        reported = self._reported(error)
        try:
            if reported is error:
                raise error
            raise reported from error
        finally:
            del error, reported

    async def _relieve(self, error: ModelError) -> bool:
        """Make the conversation shorter if the model could not take it. Return whether it is shorter now."""
        if self._keeper is None or self._has_spoken or not isinstance(error, ContextTooLong):
            return False
        return await self._keeper.relieve(self._view)

    async def _attempt(self, patience: float | None) -> Completion:
        """Make one call, which must begin its answer within `patience` seconds. All calls of the gateway are
        made here."""
        if self._keeper is not None:
            await self._keeper.fit(self._view)
        choice, context = self.choice, self._context
        self.said.clear()
        self._has_spoken = False
        if self._journal.owes:
            await self._journal.commit()
        known = self._routes.abilities(choice.provider, choice.model)
        # A model that is known not to reason would refuse an effort.
        effort = None if known.reasoning is False else context.reasoning
        planned = self._planned(may_think(choice.model, known, effort))
        call = ModelCall(
            model=choice.model,
            prefix=self._view.pinned.prefix,
            chunks=self._view.transcript.chunks,
            reasoning=effort,
            max_output=planned.max_output,
            session_id=self._view.session_id,
            sampling=context.sampling,
            tells_parts=context.streams_parts,
            patience=patience,
            gives_way=context.gives_way,
        )
        self._cut, self._has_thought = None, False
        began = time.perf_counter()
        deltas = DeltaRedactor(context.redactor, self._on_delta)
        try:
            await context.budget.reserve(planned)
            began = time.perf_counter()
            completion = await self._model.complete(call, deltas if context.redactor else self._on_delta)
            deltas.finish()
        except BaseException as error:
            deltas.finish()
            self._account_failure(error)
            if isinstance(error, ModelError) and not isinstance(error, EndpointResting):
                context.metrics.model_called(choice.provider, error.type, time.perf_counter() - began)
            raise
        context.metrics.model_called(choice.provider, "ok", time.perf_counter() - began)
        context.metrics.tokens_used(choice.provider, completion.usage)
        measure(self._view, request_weight(self._view), completion.usage.input)
        self._watch_cache(completion.usage)
        self.said.clear()
        message = redact_message(
            completion.message, context.redactor
        )  # no await: a cancel would lose its cost
        message = msgspec.structs.replace(message, provider=choice.provider)
        return msgspec.structs.replace(completion, message=message)

    def _account_failure(self, error: BaseException) -> None:
        """Note what an attempt costs that has failed or was cancelled.

        An attempt that was sent costs an estimate, unless it was answered with an error instead of output.
        """
        cut, budget = self._cut, self._context.budget
        is_refused = isinstance(error, ModelError) and error.status is not None
        if cut is not None and (cut.output_bytes or not is_refused):
            self._journal.owe(budget.charge_cut(cut.output_bytes, has_reasoned=self._has_thought))
        elif (unsent := budget.release()) is not None:
            self._journal.drop(unsent)

    def _planned(self, may_think: bool) -> PlannedCall:
        context = self._context
        call = PlannedCall(
            self._journal.fence,
            self._journal.next_step,
            self.choice.provider,
            self.choice.model,
            request_weight(self._view),
            context.max_output,
            may_think,
        )
        longest = context.budget.longest_output(call, self._journal.spent.cost)
        return call if longest == call.max_output else msgspec.structs.replace(call, max_output=longest)

    def _watch_cache(self, tokens: TokenUsage) -> None:
        agent = self._agent
        sample = CacheSample(
            self._routes.clock.elapsed(),
            str(self._own),
            str(self.choice),
            agent.pinned.id,
            agent.revision.epoch,
            tokens,
        )
        agent.cache_sample = watch(agent.session_id, agent.cache_sample, sample, self._context.metrics)

    def _on_delta(self, delta: ModelDelta) -> None:
        if isinstance(delta, TextDelta):
            self._has_spoken = True
            self.said.append(delta.text)
            is_usual = type(delta) is TextDelta
            self._context.emit(Delta(delta.text) if is_usual else RefusalDelta(delta.text))
        elif isinstance(delta, ThoughtDelta):
            self._has_spoken = self._has_thought = True
            self._context.emit(ReasoningDelta(delta.text))
        elif isinstance(delta, CallDelta):
            self._has_spoken = True
            self._context.emit(ToolCallDelta(delta.index, delta.call_id, delta.name, delta.arguments))
        elif isinstance(delta, CallCut):
            self._cut = delta
        else:
            self._context.emit(delta)

    # -- failures -------------------------------------------------------------------------------------------

    def _retry_state(self, tries: int, deadline: float) -> RetryState:
        return RetryState(
            tries=tries,
            max_retries=self._model.max_retries,
            has_spoken=self._has_spoken,
            is_resting=self._model.is_resting,
            has_next=bool(self._fallbacks),
            seconds_left=deadline - self._routes.clock.elapsed(),
        )

    async def _wait(self, error: ModelError, tries: int, seconds: float) -> None:
        choice = self.choice
        _log.info("%s is tried again in %.1f s: %s", choice, seconds, error.user_text)
        self._context.emit(Retrying(str(choice), tries + 1, round(seconds, 3), error.user_text))
        self._context.metrics.model_retried(choice.provider)
        await self._routes.clock.sleep(seconds)

    async def _fall_back(self, error: ModelError) -> bool:
        """Switch to the next usable model of the chain. Return False if there is none."""
        models, left = self._routes.models, self.choice
        while self._fallbacks:
            choice = self._fallbacks.pop(0)
            try:
                model, wire = models.get(choice.provider), models.wire(choice.provider)
            except NoModel as missing:
                _log.warning("the fallback %s cannot be used: %s", choice, missing)
                continue
            known = self._routes.abilities(choice.provider, choice.model)
            pinned = _pin_for(choice, wire, self._view.pinned, self._context.tools, known)
            self._view = await self._routes.builder.view(self._view.session_id, pinned)
            self._journal.feed(self._view)
            self._model, self.choice = model, choice
            self._failures.append((left, error.with_traceback(None)))
            _log.warning("%s answers instead of %s: %s", choice, left, error.user_text)
            self._context.emit(FellBack(str(choice), str(left), error.user_text))
            self._context.metrics.model_left(left.provider)
            return True
        return False

    def _reported(self, error: ModelError) -> ModelError:
        """Return the error for the user: with all models that failed, or that the answer broke off."""
        if self._has_spoken:
            what = "The answer broke off" if self.said else "The model broke off while it was thinking"
            told = f"{what}: {error.user_text}"
            if isinstance(error, AnswerTooLarge):
                return _reworded(error, told, error.hint, error.action)
            if self.said:
                return _reworded(error, told, f"{_ANSWER_AGAIN}.", _ANSWER_AGAIN)
            return _reworded(error, told, _HAS_NO_TEXT, None)
        if not self._failures:
            return error
        first = self._failures[0][1]
        others = [choice for choice, _ in self._failures[1:]] + [self.choice]
        told = f"{first.user_text.removesuffix('.')}, and {', '.join(map(str, others))} failed too."
        return _reworded(first, told, first.hint, first.action)


def _reworded(error: ModelError, user_text: str, hint: str, action: Action | None) -> ModelError:
    """Return the same error with another text."""
    told = copy.copy(error)
    told.user_text, told.hint, told.action = user_text, hint, action
    told.args = (f"{user_text} {hint}".strip(),)
    return told


def _pin_for(
    choice: ModelChoice, wire: Wire, own: PinnedSpec, tools: TurnTools | None, known: Abilities
) -> PinnedSpec:
    """Return the session's spec for another model: the same prompt and tools in that model's wire format.

    The tools of a stateless caller are in the form of chat completions, which every wire format reads. Images
    are sent only to a model that is known to see, and tools are not offered to a model that takes none.
    """
    spec = msgspec.structs.replace(
        own.spec,
        provider=choice.provider,
        model=choice.model,
        api=wire.name,
        credential="",
        sees=known.images is True,
    )
    if tools is None:
        return pin(spec, own.prefix)
    if known.tools is False:
        spec = msgspec.structs.replace(spec, tools=())
    offered = [found for name in spec.tools if (found := tools.spec(name)) is not None]
    return pin(spec, wire.render_prefix(spec.prompt, offered))
