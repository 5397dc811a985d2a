"""The scripted model inside the process: the `Model` and `Models` ports without a socket."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from talaria.core.clock import Clock, SystemClock
from talaria.core.messages import AssistantMessage, Reasoning
from talaria.core.models import Completion, ModelCall, ModelDelta, TextDelta, ThoughtDelta
from talaria.core.specs import fingerprint_secrets
from talaria.models.failures import ErrorBody, ProviderErrors
from talaria.models.limiter import BreakerSettings, CallLimiter
from talaria.models.openai_chat import OpenAIChat
from talaria.models.wire import Wire
from talaria.observe.metrics import EndpointReading
from talaria.testing.script import Act, Fault, Tries, decide, read_scene

MAX_RECORDED = 10_000

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class ScriptedModel:
    """Answers from the script in `testing.script`, reading the very bytes that a server would be sent.

    `bodies` are the request bodies, oldest first; `busy` counts the calls that have not returned. One that is
    down cannot be reached. With `patience`, a call that hangs fails after so many seconds. It asks for no
    retries and never rests, unless it is told to.
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
    ) -> None:
        self._clock = clock or SystemClock()
        self._name = name
        self._limiter = limiter or CallLimiter(
            clock=self._clock, breaker=BreakerSettings(threshold=sys.maxsize)
        )
        self._wire = wire or OpenAIChat()
        self._patience = patience
        self.max_retries = max_retries
        self.is_down = False
        self._tries = Tries()
        self.latency = latency
        self.bodies: deque[bytes] = deque(maxlen=MAX_RECORDED)
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
            async with self._limiter.call(call.session_id, errors) as began:

                def hear(delta: ModelDelta) -> None:
                    began()
                    sink(delta)

                return await self._complete(call, hear, errors)
        finally:
            self.busy -= 1

    async def _complete(
        self, call: ModelCall, sink: Callable[[ModelDelta], None], errors: ProviderErrors
    ) -> Completion:
        if self.is_down:
            raise errors.unreachable("http://nowhere", "Connection refused")
        body = b"".join(self._wire.body(call))
        self.bodies.append(body)
        parts = [part for part in (call.prefix.system, *call.chunks) if part]
        scene = read_scene(_decode(b"[%b]" % b",".join(parts)))
        act = decide(scene, self._tries.count(scene))
        await self._clock.sleep(self.latency + act.delay)
        await self._play(act, sink, errors)
        thoughts = (Reasoning("reasoning_content", act.thought, _json(act.thought)),) if act.thought else ()
        message = AssistantMessage(act.text, act.calls, thoughts, call.model)
        return Completion(message, act.usage_after(len(body)), "tool_calls" if act.calls else "stop")

    async def _play(self, act: Act, sink: Callable[[ModelDelta], None], errors: ProviderErrors) -> None:
        """Stream the act's deltas up to where its fault strikes."""
        if act.fault is Fault.STATUS:
            headers = {"Retry-After": act.retry_after} if act.retry_after else {}
            body = b'{"error":{"message":"The script asked for status %d."}}' % act.status
            raise errors.from_status(act.status, headers, body)
        if act.fault is Fault.HANG:
            if self._patience is None:
                await asyncio.get_running_loop().create_future()
            else:
                await self._clock.sleep(self._patience)
                raise errors.no_first_token(self._patience)
        deltas: list[ModelDelta] = [ThoughtDelta(act.thought)] if act.thought else []
        deltas.extend(map(TextDelta, act.pieces()))
        if act.fault in (Fault.MALFORMED, Fault.ERROR_IN_STREAM):
            deltas.clear()
        elif act.fault is Fault.CUT:
            del deltas[act.cut_after :]
        for delta in deltas:
            await self._clock.sleep(act.chunk_delay)
            sink(delta)
        match act.fault:
            case Fault.MALFORMED:
                raise errors.malformed("Input data was truncated")
            case Fault.ERROR_IN_STREAM:
                raise errors.in_stream(ErrorBody("The scripted server had an error.", "server_error"))
            case Fault.CUT | Fault.HALF_CALL:
                raise errors.cut_off()


class ScriptedModels:
    """The `Models` port with one scripted model behind every provider name, but for those of `others`."""

    def __init__(
        self, model: ScriptedModel | None = None, others: Mapping[str, ScriptedModel] | None = None
    ) -> None:
        self.model = model or ScriptedModel()
        self._others = others or {}
        self.secrets: list[str] = []

    def wire(self, provider: str) -> Wire:
        return self.get(provider).wire

    def get(self, provider: str) -> ScriptedModel:
        return self._others.get(provider, self.model)

    def credential(self, provider: str) -> str:
        return fingerprint_secrets(self.secrets)


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()
