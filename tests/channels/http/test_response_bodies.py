"""Bodies of `/v1/responses` that a client library would not send."""

from __future__ import annotations

import json
from pathlib import Path

from channels.http.test_responses import EVENT, WEATHER
from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer

NOT_UTF8 = [
    b'{"input":[{"role":"user","content":"\xff"}]}',
    b'{"input":[{"type":"\xff"}]}',
    b'{"input":"hi","tool_choice":"\xff"}',
    b'{"input":"hi","tools":[{"type":"\xff"}]}',
    b'{"input":"hi","tools":[{"type":"function","name":"f","parameters":{"a":"\xff"}}]}',
    b'{"input":"hi","tools":[{"type":"function","name":"f","parameters":{"a":"\xff"}}],"store":false}',
    b'{"input":"hi","text":{"format":{"type":"json_schema","name":"a","schema":{"\xff":1}}}}',
]


async def test_a_body_that_is_not_utf8_is_refused(api: Api, model: ModelServer) -> None:
    for body in NOT_UTF8:
        async with api.client.post(f"{api.url}/v1/responses", data=body) as response:
            assert response.status == 400, body
            assert "not valid UTF-8" in (await response.json())["error"]["message"]
    assert not model.bodies


async def test_a_pretty_body_does_not_tear_the_events_of_a_stream(api: Api) -> None:
    body = {
        "input": "hi",
        "stream": True,
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "weather"},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
    }
    pretty = json.dumps(body, indent=1).replace("\n", "\r\n").encode()
    async with api.client.post(f"{api.url}/v1/responses", data=pretty) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    blocks = text.split("\n\n")[:-1]
    assert blocks
    for block in blocks:
        _, data = block.split("\n")
        EVENT.validate_python(json.loads(data.removeprefix("data: ")), strict=True)


async def test_input_without_a_message_is_refused(api: Api, model: ModelServer) -> None:
    body = await api.post("/v1/responses", {"input": [{"type": "reasoning", "summary": []}]}, 400)
    assert "`input`" in body["error"]["message"]
    assert not model.bodies


async def test_references_count_as_often_as_they_are_made(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path / "small", model, max_body=8 << 10) as api:
        answer = await api.post("/v1/responses", {"input": "x" * 3000})
        item = {"type": "item_reference", "id": answer["output"][0]["id"]}
        end = {"role": "user", "content": "go"}
        await api.post("/v1/responses", {"input": [item, item, end]})
        refused = await api.post("/v1/responses", {"input": [item, item, item, end]}, 413)
        assert "refers to" in refused["error"]["message"]
        assert len(model.bodies) == 2


async def test_members_of_reasoning_that_other_models_know_are_ignored(api: Api, model: ModelServer) -> None:
    body = {"input": "hi", "reasoning": {"effort": "low", "mode": "pro", "context": "auto"}}
    await api.post("/v1/responses", body)
    assert json.loads(model.bodies[-1])["reasoning_effort"] == "low"
