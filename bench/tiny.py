"""The quality of the built-in model: first answers to requests, answers from results, and small talk."""

from __future__ import annotations

import asyncio
import os
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from talaria.agent.prompt import render_prompt
from talaria.core.clock import SystemClock
from talaria.core.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.models.local.downloads import WeightsDownloads
from talaria.models.local.local_endpoint import LocalEndpoint
from talaria.models.local.runtime import ModelProcess, missing_requirement
from talaria.models.local.weights import DEFAULT_MODEL, WeightsCache, find_weights
from talaria.tools.builtin import builtin_tools
from talaria.tools.settings import ToolSettings

CASES = Path(__file__).parent / "evaluation.toml"
_REFUSALS = ("cannot", "can't", "can’t", "can only", "unable", "not able to")


class Request(msgspec.Struct, frozen=True):
    """A single request. The right answer is a call of `tool`, or a reply if `tool` is empty."""

    say: str
    tool: str
    path: tuple[str, ...] | None = None
    pattern: tuple[str, ...] | None = None

    def is_right(self, answer: AssistantMessage) -> bool:
        if not self.tool:
            return _is_reply(answer)
        if len(answer.tool_calls) != 1 or answer.tool_calls[0].name != self.tool:
            return False
        given = msgspec.json.decode(answer.tool_calls[0].arguments)
        wanted = {"path": self.path, "pattern": self.pattern}
        return all(given.get(key, "") in values for key, values in wanted.items() if values is not None)


class Dialogue(msgspec.Struct, frozen=True):
    """A request with a call and its result. The right answer is a reply that contains the result."""

    say: str
    tool: str
    arguments: str
    result: str
    has: tuple[str, ...]
    failed: bool = False

    def is_right(self, answer: AssistantMessage) -> bool:
        text = answer.text.lower()
        return _is_reply(answer) and all(
            any(word in text for word in words.lower().split("|")) for words in self.has
        )

    def messages(self) -> list[Message]:
        call = ToolCall("c1", self.tool, self.arguments)
        outcome = ToolOutcome.ERROR if self.failed else ToolOutcome.OK
        result = ToolResult("c1", self.tool, self.result, outcome)
        return [_said(self.say), AssistantMessage("", (call,)), ToolResults((result,))]


class Chat(msgspec.Struct, frozen=True):
    """Small talk, alone or after a dialogue. The right answer is a reply that is not a refusal."""

    say: str
    after: str = ""

    def is_right(self, answer: AssistantMessage) -> bool:
        return _is_reply(answer) and not any(word in answer.text.lower() for word in _REFUSALS)


class Cases(msgspec.Struct, frozen=True):
    request: tuple[Request, ...]
    dialogue: tuple[Dialogue, ...]
    chat: tuple[Chat, ...]

    def each(self) -> Iterator[tuple[Request | Dialogue | Chat, list[Message]]]:
        """Yield each case with its conversation."""
        for request in self.request:
            yield request, [_said(request.say)]
        told = {dialogue.say: dialogue for dialogue in self.dialogue}
        for dialogue in self.dialogue:
            yield dialogue, dialogue.messages()
        for chat in self.chat:
            before: list[Message] = []
            if chat.after:
                before = [*told[chat.after].messages(), AssistantMessage(told[chat.after].result)]
            yield chat, [*before, _said(chat.say)]


class Score(msgspec.Struct, frozen=True):
    """The numbers of right answers by kind of case, and the costs."""

    right: dict[str, int]
    of: dict[str, int]
    load_seconds: float
    tokens_per_second: float
    rss_bytes: int


def missing(name: str = DEFAULT_MODEL) -> str:
    """Return the reason why the model cannot run here, or an empty string."""
    if (refusal := missing_requirement()) is not None:
        return refusal.user_text
    return (
        ""
        if WeightsCache.find(os.environ).has(find_weights(name))
        else f"the weights of {name} are not cached"
    )


def load_cases() -> Cases:
    return msgspec.convert(tomllib.loads(CASES.read_text("utf-8")), Cases)


async def evaluate(name: str = DEFAULT_MODEL, tell: Callable[[str], None] = lambda line: None) -> Score:
    clock, cache = SystemClock(), WeightsCache.find(os.environ)
    process = ModelProcess(clock)
    endpoint = LocalEndpoint(cache, WeightsDownloads(cache, os.environ, clock), process, clock)
    wire, tools = endpoint.wire, builtin_tools(ToolSettings())
    prefix = wire.render_prefix(render_prompt("main", "", tools.names), tools.specs)
    right, of, spoken, seconds = dict[str, int](), dict[str, int](), 0, 0.0

    async def ask(conversation: list[Message]) -> Completion:
        return await endpoint.complete(ModelCall(name, prefix, [*map(wire.encode, conversation)]), _ignore)

    try:
        began = time.perf_counter()
        await process.start(name, cache.path(find_weights(name)), lambda: None)
        load_seconds = time.perf_counter() - began
        await ask([_said("Hi")])  # fills the prompt cache with the prefix
        for case, conversation in load_cases().each():
            began = time.perf_counter()
            completion = await ask(conversation)
            seconds += time.perf_counter() - began
            spoken += completion.usage.output
            kind, is_right = type(case).__name__.lower(), case.is_right(completion.message)
            right[kind] = right.get(kind, 0) + is_right
            of[kind] = of.get(kind, 0) + 1
            tell(f"{kind:8} {is_right!s:5} {case.say[:46]:46} {_shown(completion.message)[:110]}")
        rss = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        await endpoint.close()
    return Score(right, of, load_seconds, spoken / seconds, rss)


def _said(text: str) -> UserMessage:
    return UserMessage((Text(text),), stamp="2026-11-16 09:00 UTC")


def _is_reply(answer: AssistantMessage) -> bool:
    return not answer.tool_calls and bool(answer.text.strip())


def _shown(answer: AssistantMessage) -> str:
    calls = answer.tool_calls
    return f"{calls[0].name} {calls[0].arguments}" if calls else repr(answer.text)


def _ignore(delta: ModelDelta) -> None:
    pass


if __name__ == "__main__":
    import sys

    print(asyncio.run(evaluate(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL, print)))
