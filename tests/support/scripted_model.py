"""The scripted model inside the process: the ports `Model` and `Models` without a socket."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from talaria.core.clock import Clock, SystemClock
from talaria.core.messages import AssistantMessage, Reasoning
from talaria.core.specs import (
    CallCut,
    Completion,
    ModelCall,
    ModelDelta,
    TextDelta,
    ThoughtDelta,
    fingerprint_secrets,
)
from talaria.models.failures import ErrorBody, ProviderErrors
from talaria.models.limiter import BreakerSettings, CallLimiter
from talaria.models.openai_chat import OpenAIChat
from talaria.models.wire import Wire
from talaria.observe.metrics import EndpointReading
from talaria.testing.billing import Bills
from talaria.testing.script import AttemptCounter, ScriptedAnswer, ScriptedFault, decide, read_context

MAX_RECORDED = 10_000

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class ScriptedModel:
    """Answers as `testing.script` says, from the bytes that a server would receive.

    `bodies` are the request bodies, oldest first, and `sessions` their sessions. `bills` has what a provider
    would bill; `busy` counts the calls that have not returned. While `is_down` is set, the server cannot be
    reached. With `patience`, a call that hangs fails after so many seconds. By default there are no retries
    and no circuit breaker.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        name: str = "scripted",
        latency: float = 0.0,
        limiter: CallLimiter | None = None,
        wire: Wire | None = None,
        max_retries: int = 0,
        patience: float | None = None,
        retry_within: float = 180.0,
    ) -> None:
        self._clock = clock or SystemClock()
        self._name = name
        self._limiter = limiter or CallLimiter(
            clock=self._clock, breaker=BreakerSettings(threshold=sys.maxsize)
        )
        self._wire = wire or OpenAIChat()
        self._patience = patience
        self.max_retries = max_retries
        self.retry_within = retry_within
        self.is_down = False
        self._attempts = AttemptCounter()
        self.bills = Bills()
        self.latency = latency
        self.bodies: deque[bytes] = deque(maxlen=MAX_RECORDED)
        self.sessions: deque[str] = deque(maxlen=MAX_RECORDED)
        self.busy = 0

    @property
    def wire(self) -> Wire:
        return self._wire

    @property
    def is_resting(self) -> bool:
        return self._limiter.is_resting

    def reading(self) -> EndpointReading:
        return self._limiter.reading()

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        self.busy += 1
        errors = ProviderErrors(self._name, call.model)
        try:
            async with self._limiter.call(call.session_id, errors, gives_way=call.gives_way) as began:

                def hear(delta: ModelDelta) -> None:
                    began()
                    sink(delta)

                return await self._complete(call, hear, sink, errors)
        finally:
            self.busy -= 1

    async def _complete(
        self,
        call: ModelCall,
        sink: Callable[[ModelDelta], None],
        cut: Callable[[CallCut], None],
        errors: ProviderErrors,
    ) -> Completion:
        if self.is_down:
            raise errors.unreachable("http://nowhere", "Connection refused")
        body = b"".join(self._wire.body(call))
        self.bodies.append(body)
        self.sessions.append(call.session_id)
        parts = [part for part in (call.prefix.system, *call.chunks) if part]
        context = read_context(_decode(b"[%b]" % b",".join(parts)))
        answer = decide(context, self._attempts.count(context))
        heard = list[str]()
        bill = self.bills.open(context.user, len(body), answer)

        def hear(delta: ModelDelta) -> None:
            if isinstance(delta, TextDelta | ThoughtDelta):
                heard.append(delta.text)
                bill.output_bytes += len(delta.text.encode())
            sink(delta)

        try:
            await self._clock.sleep(self.latency + answer.delay)
            if answer.fault is ScriptedFault.HANG:
                await self._hang(call, errors)
            await self._play(answer, hear, errors)
        except BaseException:
            cut(CallCut(sum(len(text.encode()) for text in heard)))
            raise
        thoughts = (
            (Reasoning("reasoning_content", answer.thought, _json(answer.thought)),) if answer.thought else ()
        )
        message = AssistantMessage(answer.text, answer.calls, thoughts, call.model)
        return Completion(message, answer.usage_after(len(body)), "tool_calls" if answer.calls else "stop")

    async def _hang(self, call: ModelCall, errors: ProviderErrors) -> None:
        patience = min((each for each in (self._patience, call.patience) if each is not None), default=None)
        if patience is None:
            await asyncio.get_running_loop().create_future()
        else:
            await self._clock.sleep(patience)
            raise errors.no_first_token(patience)

    async def _play(
        self, answer: ScriptedAnswer, sink: Callable[[ModelDelta], None], errors: ProviderErrors
    ) -> None:
        """Stream the deltas of the answer up to its fault."""
        if answer.fault is ScriptedFault.STATUS:
            headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
            body = b'{"error":{"message":"The script asked for status %d."}}' % answer.status
            raise errors.from_status(answer.status, headers, body)
        deltas: list[ModelDelta] = [ThoughtDelta(answer.thought)] if answer.thought else []
        deltas.extend(map(TextDelta, answer.pieces()))
        if answer.fault in (ScriptedFault.MALFORMED, ScriptedFault.ERROR_IN_STREAM):
            deltas.clear()
        elif answer.fault is ScriptedFault.CUT:
            del deltas[answer.cut_after :]
        for delta in deltas:
            await self._clock.sleep(answer.chunk_delay)
            sink(delta)
        match answer.fault:
            case ScriptedFault.MALFORMED:
                raise errors.malformed("Input data was truncated")
            case ScriptedFault.ERROR_IN_STREAM:
                raise errors.in_stream(ErrorBody("The scripted server had an error.", "server_error"))
            case ScriptedFault.CUT | ScriptedFault.HALF_CALL:
                raise errors.cut_off()


class ScriptedModels:
    """The port `Models` with one scripted model for every provider name that is not in `others`."""

    def __init__(
        self, model: ScriptedModel | None = None, others: Mapping[str, ScriptedModel] | None = None
    ) -> None:
        self.model = model or ScriptedModel()
        self._others = others or {}
        self.secrets: list[str] = []
        self.is_prepared = True

    async def prepare(self) -> None:
        pass

    def wire(self, provider: str) -> Wire:
        return self.get(provider).wire

    def get(self, provider: str) -> ScriptedModel:
        return self._others.get(provider, self.model)

    def credential(self, provider: str) -> str:
        return fingerprint_secrets(self.secrets)


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()
