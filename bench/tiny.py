"""How well the built-in model chooses: thirty requests, each asked alone, scored by its first answer."""

from __future__ import annotations

import asyncio
import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from talaria.agent.prompt import render_prompt
from talaria.core.clock import SystemClock
from talaria.core.messages import Text, UserMessage
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.models.local.cache import Cache
from talaria.models.local.endpoint import LocalEndpoint
from talaria.models.local.manifest import DEFAULT, find_weights
from talaria.models.local.needs import unmet
from talaria.models.local.runtime import Runtime
from talaria.models.local.stock import Stock
from talaria.tools.registry import builtin_registry
from talaria.tools.settings import ToolSettings

REQUESTS = Path(__file__).parent / "evaluation.toml"


class Score(msgspec.Struct, frozen=True):
    right: int
    of: int
    load_seconds: float
    tokens_per_second: float
    rss_bytes: int
    misses: tuple[str, ...]


def missing(name: str = DEFAULT) -> str:
    """Why it cannot be scored here; empty when it can."""
    if (refusal := unmet()) is not None:
        return refusal.user_text
    return "" if Cache.find(os.environ).has(find_weights(name)) else f"the weights of {name} are not cached"


def load_requests() -> list[dict[str, Any]]:
    with REQUESTS.open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["request"]
    return found


async def evaluate(name: str = DEFAULT, tell: Callable[[str], None] = lambda line: None) -> Score:
    clock, cache = SystemClock(), Cache.find(os.environ)
    runtime = Runtime(clock)
    endpoint = LocalEndpoint(cache, Stock(cache, os.environ, clock), runtime, clock)
    wire, tools = endpoint.wire, builtin_registry(ToolSettings()).resolve(ToolSettings().enabled)
    prefix = wire.render_prefix(render_prompt("main", "", tools.names), tools.specs)
    misses, spoken, seconds = [], 0, 0.0

    async def ask(said: str) -> Completion:
        user = wire.encode(UserMessage((Text(said),), stamp="2026-11-16 09:00 UTC"))
        return await endpoint.complete(ModelCall(name, prefix, [user]), _ignore)

    try:
        began = time.perf_counter()
        await runtime.up(name, cache.path(find_weights(name)), lambda: None)
        load_seconds = time.perf_counter() - began
        await ask("Hi")  # reads the prefix
        requests = load_requests()
        for request in requests:
            began = time.perf_counter()
            completion = await ask(request["say"])
            seconds += time.perf_counter() - began
            spoken += completion.usage.output
            if not is_right(request, completion):
                misses.append(request["say"])
            tell(f"{is_right(request, completion)!s:5} {request['say'][:50]:50} {_shown(completion)[:90]}")
        rss = int(Path(f"/proc/{runtime.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        await endpoint.close()
    right = len(requests) - len(misses)
    return Score(right, len(requests), load_seconds, spoken / seconds, rss, tuple(misses))


def is_right(request: dict[str, Any], completion: Completion) -> bool:
    calls = completion.message.tool_calls
    if not request["tool"]:
        return not calls and bool(completion.message.text.strip())
    if len(calls) != 1 or calls[0].name != request["tool"]:
        return False
    arguments = msgspec.json.decode(calls[0].arguments)
    return all(arguments.get(key, "") in request[key] for key in ("path", "pattern") if key in request)


def _shown(completion: Completion) -> str:
    calls = completion.message.tool_calls
    return f"{calls[0].name} {calls[0].arguments}" if calls else repr(completion.message.text)


def _ignore(delta: ModelDelta) -> None:
    pass


if __name__ == "__main__":
    import sys

    print(asyncio.run(evaluate(sys.argv[1] if len(sys.argv) > 1 else DEFAULT, print)))
