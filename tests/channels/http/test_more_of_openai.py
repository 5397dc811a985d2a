"""Calls of OpenAI's API besides answers: embeddings, conversations, and what is said of those not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from support.gateway import TOKEN, Api, in_process
from talaria.testing.model_server import ModelServer


def client_of(api: Api) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0)


# -- embeddings -------------------------------------------------------------------------------------------


async def test_embeddings_are_the_providers_own(api: Api, model: ModelServer) -> None:
    async with client_of(api) as client:
        made = await client.embeddings.create(
            model="scripted/small", input=["a b", "c"], dimensions=2, encoding_format="float"
        )
    assert [each.embedding for each in made.data] == [[3.0, 2.0], [1.0, 1.0]]
    sent = json.loads(model.bodies[-1])
    assert sent == {"model": "small", "input": ["a b", "c"], "dimensions": 2, "encoding_format": "float"}


async def test_failures_of_embeddings_say_why(api: Api) -> None:
    async with client_of(api) as client:
        with pytest.raises(openai.RateLimitError, match="Slow down"):
            await client.embeddings.create(model="scripted/small", input="[[status 429]]")
        with pytest.raises(openai.BadRequestError, match="main makes no embeddings"):
            await client.embeddings.create(model="main", input="a")
        with pytest.raises(openai.NotFoundError, match="nothing/small"):
            await client.embeddings.create(model="nothing/small", input="a")


async def test_a_claude_and_a_cap_make_no_embeddings(tmp_path: Path, model: ModelServer) -> None:
    claude = {"base_url": "http://127.0.0.1:9", "api": "anthropic-messages", "api_key": "k"}
    tables: dict[str, Any] = {"providers": {"claude": claude}, "budgets": {"per_day_usd": 5}}
    async with in_process(tmp_path, model, tables=tables) as api, client_of(api) as client:
        with pytest.raises(openai.BadRequestError, match="makes no embeddings"):
            await client.embeddings.create(model="claude/x", input="a")
        with pytest.raises(openai.APIStatusError, match="costs are not counted") as error:
            await client.embeddings.create(model="scripted/small", input="a")
    assert error.value.status_code == 402
    assert not model.bodies


# -- conversations ----------------------------------------------------------------------------------------


async def test_a_conversation_is_a_session(api: Api) -> None:
    async with client_of(api) as client:
        conversation = await client.conversations.create()
        known = await client.conversations.retrieve(conversation.id)
        assert known.created_at == conversation.created_at
        assert [item async for item in client.conversations.items.list(conversation.id)] == []
        for text in ("one", "[[history]]"):
            said = await client.responses.create(input=text, conversation=conversation.id)
        assert said.output_text == "4"
        assert said.conversation is not None
        assert said.conversation.id == conversation.id
        for limit in (1, 2, 100):
            newest = client.conversations.items.list(conversation.id, limit=limit)
            assert [_text(item) async for item in newest] == ["4", "[[history]]", "You said: one", "one"]
            oldest = client.conversations.items.list(conversation.id, limit=limit, order="asc")
            assert [_text(item) async for item in oldest] == ["one", "You said: one", "[[history]]", "4"]
        assert (await api.get(f"/api/sessions/{conversation.id}"))["name"] == conversation.id
        assert (await client.conversations.delete(conversation.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve("nothing")


def _text(item: Any) -> str:
    return str(item.content[0].text)


async def test_items_of_calls_are_paged_within_an_entry(api: Api) -> None:
    two = '[[call todo {"items": []} + call todo {"items": []}]][[reply done]]'
    await api.post("/v1/responses", {"input": two, "conversation": {"id": "work"}})
    kinds = ["message", "function_call", "function_call", "function_call_output", "function_call_output"]
    async with client_of(api) as client:
        for limit in (1, 2, 3):
            found = [item async for item in client.conversations.items.list("work", limit=limit, order="asc")]
            assert [item.type for item in found] == [*kinds, "message"]
            assert len({item.id for item in found}) == 6


async def test_a_repeated_request_to_a_conversation_joins_the_first(api: Api, model: ModelServer) -> None:
    body = {"input": "once", "conversation": "work"}
    answers = [
        await api.post("/v1/responses", body, headers={"x-stainless-retry-count": count}) for count in "01"
    ]
    assert answers[0]["id"] == answers[1]["id"]
    assert model.requests == 1


@pytest.mark.parametrize(
    ("path", "body", "headers", "says"),
    [
        ("/v1/conversations", {"items": [{}]}, {}, "`items`"),
        ("/v1/responses", {"input": "a", "conversation": "b"}, {"X-Talaria-Session": "c"}, "two sessions"),
        ("/v1/responses", {"input": "a", "conversation": "b c"}, {}, "not a valid session name"),
        ("/v1/responses", {"input": "a", "conversation": 1}, {}, "`conversation`"),
        (
            "/v1/responses",
            {"input": "a", "conversation": "b", "previous_response_id": "resp_1"},
            {},
            "`previous_response_id`",
        ),
    ],
)
async def test_what_a_conversation_cannot_do_is_said(
    api: Api, path: str, body: dict[str, Any], headers: dict[str, str], says: str
) -> None:
    assert says in (await api.post(path, body, 400, headers=headers))["error"]["message"]


async def test_nobody_sees_the_conversation_of_another_token(api: Api) -> None:
    made = await api.post("/api/tokens", {"name": "phone", "role": "chat"}, 201)
    await api.post("/v1/responses", {"input": "a", "conversation": "work"})
    headers = {"Authorization": f"Bearer {made['secret']}"}
    for path in ("/v1/conversations/work", "/v1/conversations/work/items"):
        async with api.client.get(api.url + path, headers=headers) as response:
            assert response.status == 404
