"""The spec of a session: everything that decides the prefix of its requests, stored with the prefix."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from talaria.core.events import ModelLoading, ThoughtEnded
from talaria.core.ids import SpecId
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.tools import TOOL_CALL, TOOL_SEARCH


class AgentSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that decides the prefix, by value.

    Reasoning effort, limits and callbacks are per turn and not here. `credential` is a SHA-256 over all of
    the provider's configured secrets, so two keys with a common prefix never look the same. If `sees` is
    false, the model gets a note in place of each image. Its default is that of specs from before the field.
    So many characters at the end of `prompt` as `memory` says are what was remembered. `tools` are the names
    that the model is told; `searched` are the tools behind `tool_search`, sorted by name, each with a digest
    of its description and schema.
    """

    agent: str
    provider: str
    model: str
    api: str
    prompt: str
    tools: tuple[str, ...]
    tools_fingerprint: str
    credential: str
    sees: bool = True
    memory: int = 0
    searched: tuple[tuple[str, str], ...] = ()

    @property
    def remembered(self) -> str:
        """The memory that the prompt ends with; empty if it has none."""
        return self.prompt[-self.memory :] if self.memory else ""

    @property
    def usable_tools(self) -> tuple[str, ...]:
        """The names of all tools that the session may use, shown or found."""
        shown = (name for name in self.tools if name not in (TOOL_SEARCH, TOOL_CALL))
        return (*shown, *(name for name, _ in self.searched))

    def may_use(self, name: str) -> bool:
        if name in self.tools:
            return True
        at = bisect_left(self.searched, (name,))
        return at < len(self.searched) and self.searched[at][0] == name


class Prefix(msgspec.Struct, frozen=True):
    """The rendered bytes at the start of every request, frozen for the session's life.

    `system` is zero or more encoded messages joined by commas; `tools` is the encoded tool list or empty.
    """

    system: bytes
    tools: bytes


class PinnedSpec(msgspec.Struct, frozen=True):
    """A spec with its prefix bytes and the id under which both are stored."""

    id: SpecId
    spec: AgentSpec
    prefix: Prefix


def pin(spec: AgentSpec, prefix: Prefix) -> PinnedSpec:
    """Return the spec with its id, a digest: sessions with equal spec and prefix share one stored row."""
    digest = hashlib.sha256()
    for part in (msgspec.json.encode(spec), prefix.system, prefix.tools):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return PinnedSpec(SpecId("spec_" + digest.hexdigest()[:40]), spec, prefix)


def fingerprint_secrets(secrets: list[str]) -> str:
    """Return a SHA-256 over the set of secrets, independent of their order."""
    digest = hashlib.sha256()
    for secret in sorted(set(secrets)):
        encoded = secret.encode()
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


# -- a model call, its deltas and its completion, whatever the wire format --------------------------------


class ModelCall(msgspec.Struct, frozen=True):
    """A request. `chunks` are the encoded messages after the prefix; they are never decoded again.

    `session_id` lets sessions take turns at a busy endpoint; it is not sent. A call that `gives_way` waits
    until no other call waits. With `patience`, the answer must begin within so many seconds, or sooner if the
    endpoint says so. With `tells_parts`, tool calls come as `CallDelta` while they are written,
    and a thought that the provider has signed as `ThoughtEnded`.
    """

    model: str
    prefix: Prefix
    chunks: Sequence[bytes]
    reasoning: str | None = None
    max_output: int | None = None
    sampling: bytes = b""  # encoded JSON members from a stateless caller, e.g. b'"temperature":0.2'
    session_id: str = ""
    patience: float | None = None
    tells_parts: bool = False
    gives_way: bool = False


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class RefusalTextDelta(TextDelta, frozen=True):
    """A piece of a text in which the model declines to answer."""


class ScoredTextDelta(TextDelta, frozen=True):
    """A piece of text with the probability that the model gave it."""

    probability: float


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of the tool call number `index`. The first one has the call's id and name."""

    index: int
    call_id: str
    name: str
    arguments: str


class ThoughtDelta(msgspec.Struct, frozen=True):
    text: str


class CallCut(msgspec.Struct, frozen=True):
    """The last delta of a call that was sent, in whole or in part, and did not end with a completion.

    `output_bytes` counts what arrived of the answer: text, thoughts, names and arguments of tool calls.
    """

    output_bytes: int


ModelDelta = TextDelta | ThoughtDelta | ThoughtEnded | CallDelta | ModelLoading | CallCut


class Completion(msgspec.Struct, frozen=True):
    """`stop` is the provider's reason: "stop", "tool_calls", "length", "content_filter". The program itself
    made an answer `without_model`, which used no tokens."""

    message: AssistantMessage
    usage: TokenUsage
    stop: str
    without_model: bool = False
