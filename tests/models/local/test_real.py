"""Real inference with the smallest built-in model, where its weights are: nothing is fetched for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from talaria.agent.spec_resolver import render_prompt
from talaria.core.clock import SystemClock
from talaria.core.errors import ContextTooLong
from talaria.core.messages import AssistantMessage, Text, ToolCall, ToolResult, ToolResults, UserMessage
from talaria.core.specs import ModelCall, ModelDelta, TextDelta
from talaria.models.local.downloads import WeightsDownloads
from talaria.models.local.local_endpoint import LocalEndpoint
from talaria.models.local.runtime import ModelProcess, missing_requirement
from talaria.models.local.weights import WeightsCache, find_weights
from talaria.parts import builtin_tools
from talaria.tools.settings import ToolSettings

SMALLEST = "smollm2-135m"
CACHE = WeightsCache.find(os.environ)
TOOLS = builtin_tools(ToolSettings())

pytestmark = [
    pytest.mark.skipif(
        missing_requirement() is not None,
        reason=f"the built-in model cannot run here: {missing_requirement()}",
    ),
    pytest.mark.skipif(
        not CACHE.has(find_weights(SMALLEST)), reason=f"not cached: talaria model pull {SMALLEST} --yes"
    ),
    pytest.mark.timeout(300),
]


async def test_the_real_runtime_takes_our_parameters_loads_the_weights_and_answers() -> None:
    process = ModelProcess(SystemClock())
    url, key = await process.start(SMALLEST, CACHE.path(find_weights(SMALLEST)), lambda: None)
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2}
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.request("POST", f"{url}/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        said = await answer.json()
    await process.stop()
    assert said["choices"][0]["message"]["content"].strip()
    assert said["usage"]["completion_tokens"] == 2


@pytest.fixture
async def endpoint() -> AsyncIterator[LocalEndpoint]:
    clock = SystemClock()
    made = LocalEndpoint(CACHE, WeightsDownloads(CACHE, {}, clock), ModelProcess(clock), clock)
    yield made
    pid = made.status()["pid"]
    await made.close()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.long
async def test_it_answers_in_words_counts_them_and_says_what_does_not_fit(endpoint: LocalEndpoint) -> None:
    heard: list[ModelDelta] = []
    prefix = endpoint.wire.render_prefix("Answer in one short sentence.", ())
    call = ModelCall(
        SMALLEST, prefix, [endpoint.wire.encode(UserMessage((Text("Say hello."),)))], max_output=24
    )
    completion = await endpoint.complete(call, heard.append)
    streamed = "".join(delta.text for delta in heard if isinstance(delta, TextDelta))
    assert completion.message.text.strip()
    assert completion.message.text == streamed
    assert completion.usage.input > 5
    sorting = 3 * 4  # the calls that sort the request count too
    assert 0 < completion.usage.output <= 24 + sorting
    long = endpoint.wire.encode(UserMessage((Text("word " * 5_000),)))
    with pytest.raises(ContextTooLong):
        await endpoint.complete(ModelCall(SMALLEST, prefix, [long]), lambda _: None)


@pytest.mark.long
async def test_with_tools_it_talks_calls_one_tool_or_refuses_and_tells_a_change_itself(
    endpoint: LocalEndpoint,
) -> None:
    wire = endpoint.wire
    prompt = render_prompt("main", "", TOOLS.names, is_plain=True)
    prefix = wire.render_prefix(prompt, TOOLS.specs)
    [offered] = msgspec.json.decode(prefix.tools).values()
    asked = wire.encode(UserMessage((Text("Read notes.txt"),)))
    for is_again in (False, True):
        done = await endpoint.complete(ModelCall(SMALLEST, prefix, [asked], max_output=96), lambda _: None)
        assert done.message.tool_calls or done.message.text.strip()
        for call in done.message.tool_calls:
            assert call.name in offered
            assert all(isinstance(value, str) for value in msgspec.json.decode(call.arguments).values())
        if is_again:
            assert done.usage.cached > done.usage.input / 2, "the prompt of the first call stays in its slot"

    edit = AssistantMessage("", (ToolCall("c", "edit_file", '{"path":"a.txt","old":"tea","new":"milk"}'),))
    edited = ToolResults((ToolResult("c", "edit_file", "Edited a.txt at line 1."),))
    chunks = [asked, wire.encode(edit), wire.encode(edited)]
    last = await endpoint.complete(ModelCall(SMALLEST, prefix, chunks), lambda _: None)
    assert last.message.text == "Edited a.txt at line 1. “tea” became “milk”."
    assert last.usage.output == 0, "the program tells it, not the model"
