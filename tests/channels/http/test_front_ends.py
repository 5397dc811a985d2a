"""Calls as Open WebUI and LibreChat send them: their tools, parameters, chats and tasks.

The bodies follow what Open WebUI 0.10 and LibreChat (August 2026) send; see docs/clients.md.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from channels.http.gateway import Api, run_gateway
from talaria.testing.model_server import ModelServer

CHATS = "/v1/chat/completions"
HEADER = "X-OpenWebUI-Chat-Id"
SESSION = {"X-Talaria-Session": "one"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": f"owui_{n}", "parameters": {"type": "object", "properties": {}}},
    }
    for n in range(28)
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class FrontEnd:
    """Sends whole chats with the id of the chat."""

    def __init__(self, api: Api, model: ModelServer, chat: str = "3f2c9a4e-chat") -> None:
        self.api, self.model, self.chat = api, model, chat
        self.headers: Mapping[str, str] = {}

    async def post(
        self, *messages: dict[str, Any], headers: Mapping[str, str] | None = None, **more: Any
    ) -> tuple[str, Mapping[str, str]]:
        """The text of the answer, and the headers."""
        body = {"model": "main", "messages": messages, "stream": True, **more}
        given = {HEADER: self.chat} if headers is None else headers
        async with self.api.client.post(self.api.url + CHATS, json=body, headers=given) as response:
            raw = await response.text()
            assert response.status == 200, raw
            self.headers = response.headers
        if not body["stream"]:
            return str(json.loads(raw)["choices"][0]["message"]["content"]), self.headers
        blocks = [block.removeprefix("data: ") for block in raw.split("\n\n") if block]
        assert blocks.pop() == "[DONE]", raw
        choices = [choice for block in blocks for choice in json.loads(block)["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices), self.headers

    async def ask(self, *messages: dict[str, Any], **more: Any) -> str:
        return (await self.post(*messages, **more))[0]

    def seen(self) -> list[str]:
        """The texts of the messages that the model was sent last, without the system prompt and times."""
        texts = []
        for message in json.loads(self.model.bodies[-1])["messages"]:
            if message["role"] != "system":
                text = message["content"] or ""
                texts.append(text.partition("] ")[2] if text.startswith("[20") else text)
        return texts

    async def sessions(self) -> list[Any]:
        return list((await self.api.get("/api/sessions"))["items"])


@pytest_asyncio.fixture
async def web(tmp_path: Path, model: ModelServer) -> AsyncIterator[FrontEnd]:
    async with run_gateway(tmp_path / "home", model, session_header=HEADER) as api:
        yield FrontEnd(api, model)


# -- tools and parameters -----------------------------------------------------------------------------------


async def test_tools_of_the_client_are_ignored_on_its_wish_and_told(api: Api, model: ModelServer) -> None:
    body = {"messages": [user("hello")], "tools": TOOLS, "tool_choice": "required"}
    refused = await api.post(CHATS, body, 400, headers=SESSION)
    assert "X-Talaria-Tools: ignore" in refused["error"]["hint"]
    page = FrontEnd(api, model)
    wish = {**SESSION, "X-Talaria-Tools": "Ignore"}
    text, headers = await page.post(user("hello"), headers=wish, tools=TOOLS, tool_choice="required")
    assert text == "You said: hello"
    assert headers["X-Talaria-Ignored"] == "tools, tool_choice"
    assert "owui_1" not in model.bodies[-1].decode()
    text, headers = await page.post(user("hello"), headers={"X-Talaria-Tools": "ignore"}, tools=TOOLS)
    assert headers["X-Talaria-Ignored"] == "tools"
    assert "tools" not in json.loads(model.bodies[-1]), "without a session too"


async def test_another_wish_about_tools_is_refused_in_three_parts(api: Api) -> None:
    for path, body in ((CHATS, {"messages": [user("hi")]}), ("/v1/responses", {"input": "hi"})):
        error = (await api.post(path, body, 400, headers={"X-Talaria-Tools": "merge"}))["error"]
        assert "'merge'" in error["message"]
        assert "only `ignore` is known" in error["message"]
        assert error["hint"].startswith("Leave it out")


async def test_responses_know_the_same_headers(tmp_path: Path, model: ModelServer) -> None:
    tools = [{"type": "function", **TOOLS[0]["function"]}, {"type": "web_search"}]
    async with run_gateway(tmp_path / "home", model, session_header=HEADER) as api:
        wish = {**SESSION, "X-Talaria-Tools": "ignore"}
        for headers in (wish, {HEADER: "one"}):
            body: dict[str, Any] = {"input": "hello", "tools": tools}
            async with api.client.post(f"{api.url}/v1/responses", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                assert response.headers["X-Talaria-Ignored"] == "tools"
        body = {"input": "hi", "instructions": "Be brief.", "max_output_tokens": 9}
        async with api.client.post(f"{api.url}/v1/responses", json=body, headers={HEADER: "x"}) as response:
            assert response.headers["X-Talaria-Ignored"] == "instructions, max_output_tokens"
        assert [item["name"] for item in (await api.get("/api/sessions"))["items"]] == ["x", "one"]


async def test_the_agent_answers_a_front_end_with_its_default_tools_and_parameters(web: FrontEnd) -> None:
    """What a chat of Open WebUI with some settings has, and a LibreChat's."""
    text, headers = await web.post(
        user('[[call write_file {"path": "a.txt", "content": "x"}]] [[reply done]]'),
        tools=TOOLS,
        stream_options={"include_usage": True},
        temperature=0.8,
        top_p=0.9,
        max_tokens=128,
        stop=["\n\n"],
        logit_bias={"50256": -100},
        response_format={"type": "json_object"},
        user="u-1",
        num_ctx=4096,
        keep_alive="5m",
    )
    assert text == "done"
    ignored = "tools, max_tokens, response_format, stop, logit_bias, num_ctx, keep_alive"
    assert headers["X-Talaria-Ignored"] == ignored
    (session,) = await web.sessions()
    assert session["name"] == "3f2c9a4e-chat"
    assert "write_file" in web.model.bodies[-1].decode()


async def test_a_name_of_a_parameter_cannot_write_headers(web: FrontEnd) -> None:
    odd: dict[str, Any] = {"a\r\nSet-Cookie: x": 1, "ü": 1, "mirostat": 1}
    _, headers = await web.post(user("hi"), **odd)
    assert headers["X-Talaria-Ignored"] == "mirostat"
    assert "Set-Cookie" not in headers


async def test_a_wish_that_no_call_can_keep_is_still_refused(web: FrontEnd) -> None:
    body = {"messages": [user("hi")], "n": 2, "stream": True}
    error = (await web.api.post(CHATS, body, 400, headers={HEADER: "one"}))["error"]
    assert error["param"] == "n"


# -- which session ------------------------------------------------------------------------------------------


async def test_the_usual_header_keeps_its_meaning_beside_the_front_ends(web: FrontEnd) -> None:
    await web.ask(user("hello"), headers={HEADER: "front", **SESSION})
    await web.api.post(CHATS, {"messages": [user("x")], "max_tokens": 5}, 400, headers=SESSION)
    assert [session["name"] for session in await web.sessions()] == ["one"]


async def test_an_id_with_other_characters_has_a_session_too(web: FrontEnd) -> None:
    for chat in ("local:Xk3_9", "ses_0123", "é", "x" * 200):
        web.chat = chat
        await web.ask(user("hello"))
    names = [session["name"] for session in await web.sessions()]
    assert len({*names}) == 4
    assert all(name.startswith("chat-") for name in names)


async def test_without_the_id_of_a_chat_the_call_is_stateless(web: FrontEnd) -> None:
    for headers in ({}, {HEADER: ""}):
        assert await web.ask(user("hi"), tools=TOOLS, headers=headers) == "You said: hi"
        assert "X-Talaria-Ignored" not in web.headers
    assert await web.sessions() == []


@pytest.mark.parametrize("value", ["{{LIBRECHAT_BODY_CONVERSATIONID}}", "${CHAT}"])
async def test_a_placeholder_that_was_not_filled_in_is_told(web: FrontEnd, value: str) -> None:
    """All chats of all people would be one session."""
    body = {"messages": [user("hi")], "stream": True}
    error = (await web.api.post(CHATS, body, 400, headers={HEADER: value}))["error"]
    assert value in error["message"]
    assert "did not put the id of its chat there" in error["message"]
    assert "docs/clients.md" in error["hint"]
    assert await web.sessions() == []
