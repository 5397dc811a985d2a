"""The transcript of a warm agent: each message encoded once, kept as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from talaria.agent.attachments import as_told, hidden_weight
from talaria.core.messages import AssistantMessage, Message, ToolResults, UserMessage
from talaria.core.ports import WireFormat
from talaria.core.specs import AgentSpec
from talaria.models.openai_chat import adapt_for_model


class Transcript:
    """Encoded messages in order, for one model.

    Thoughts that another model had, or the same one elsewhere, are left out: most are signed or encrypted,
    and who has not made them refuses them. So are images where the model does not see. The bytes follow from
    the message and the session's spec, and from nothing else. `weight` is `size` with images counted as what
    they take of a model's context.
    """

    __slots__ = ("_chunks", "_spec", "_wire", "size", "weight")

    def __init__(self, wire: WireFormat, spec: AgentSpec) -> None:
        self._wire = wire
        self._spec = spec
        self._chunks: list[bytes] = []
        self.size = 0
        self.weight = 0

    @property
    def chunks(self) -> Sequence[bytes]:
        return self._chunks

    def append(self, message: Message) -> None:
        hidden = 0
        if isinstance(message, AssistantMessage):
            if message.reasoning and not self._is_own(message):
                message = msgspec.structs.replace(message, reasoning=())
            message = adapt_for_model(message, self._spec.api, self._spec.model)
        elif isinstance(message, (UserMessage, ToolResults)):
            message = as_told(message, self._spec)
            hidden = hidden_weight(message)
        chunk = self._wire.encode(message)
        self._chunks.append(chunk)
        self.size += len(chunk)
        self.weight += len(chunk) - hidden

    def _is_own(self, message: AssistantMessage) -> bool:
        """What a stateless caller brought names nobody, and is theirs to send."""
        return not message.provider or (message.provider, message.model) == (
            self._spec.provider,
            self._spec.model,
        )

    def clear(self) -> None:
        self._chunks.clear()
        self.size = self.weight = 0
