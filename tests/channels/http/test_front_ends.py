"""Calls as Open WebUI and LibreChat send them: their tools, parameters, chats and tasks.

The bodies follow what Open WebUI 0.12 and LibreChat (August 2026) send; see docs/clients.md.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.gateway import Api, in_process
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
    async with in_process(tmp_path / "home", model, session_header=HEADER) as api:
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
        assert "`ignore`" in error["hint"]
        assert "`functions`" in error["hint"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (CHATS, {"messages": [user("hi")]}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [user("hi")], "max_tokens": 9}),
    ],
)
async def test_only_tools_of_other_types_are_ignored_on_request(
    api: Api, model: ModelServer, path: str, said: dict[str, Any]
) -> None:
    own = {"name": "weather", "description": "Tells it."}
    tools = {
        CHATS: [{"type": "function", "function": own}, {"type": "custom"}],
        "/v1/responses": [{"type": "namespace"}, {"type": "function", **own}, {"type": "custom"}],
        "/v1/messages": [{**own, "input_schema": {}}, {"type": "custom_1", "name": "x"}],
    }
    body, headers = {**said, "tools": tools[path]}, {"X-Talaria-Tools": "functions"}
    async with api.client.post(api.url + path, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert "tools.custom" in response.headers["X-Talaria-Ignored"]
    sent = json.loads(model.bodies[-1])
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather"]
    refused = await api.post(path, body, 400)
    assert "`tools[" in refused["error"]["message"]


async def test_responses_know_the_same_headers(tmp_path: Path, model: ModelServer) -> None:
    tools = [{"type": "function", **TOOLS[0]["function"]}, {"type": "web_search"}]
    async with in_process(tmp_path / "home", model, session_header=HEADER) as api:
        wish = {**SESSION, "X-Talaria-Tools": "ignore"}
        for headers in (wish, {HEADER: "one"}):
            body: dict[str, Any] = {"input": "hello", "tools": tools, "stream": True}
            async with api.client.post(f"{api.url}/v1/responses", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                assert response.headers["X-Talaria-Ignored"] == "tools"
        body = {"input": "hi", "instructions": "Be brief.", "max_output_tokens": 9, "stream": True}
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


# -- tasks beside the chat ----------------------------------------------------------------------------------

TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history."
LIBRECHAT_TITLE = (
    "Provide a concise, 5-word-or-less title for the conversation\n\nConversation:\nUser: hi\nAI: "
)
MERGE = "You have been provided with a set of responses from various models to the latest user query"
MEMORY = [
    {"role": "system", "content": "Remember what the user says of itself."},
    user("# Current Chat:\n\nHuman: hi"),
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "set_memory", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "kept"},
]
TASKS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "a title of Open WebUI": ([user(TITLE)], {"stream": False, "max_completion_tokens": 1000}),
    "tags of Open WebUI": ([user("### Task:\nGenerate 1-3 broad tags")], {"stream": False}),
    "a merged answer": ([user(MERGE)], {}),
    "a title of LibreChat": ([user(LIBRECHAT_TITLE)], {"stream": False, "temperature": 0.2}),
    "a memory of LibreChat": (MEMORY, {"stream": False, "tools": TOOLS}),
    "any, by its header": ([user("hi"), said("You said: hi"), user("A title?")], {}),
}


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_task_is_answered_beside_the_session(web: FrontEnd, kind: str, is_first: bool) -> None:
    """The task may come before the chat's first message, and it has the session's model."""
    if not is_first:
        await web.ask(user("hi"), model="fast")
    before = await web.sessions()
    messages, more = TASKS[kind]
    by_header = {HEADER: web.chat, **({"X-Talaria-Task": "title_generation"} if "header" in kind else {})}
    answer = await web.ask(*messages, headers=by_header, **more)
    assert answer.startswith("You said: " if kind != "a memory of LibreChat" else "")
    assert json.loads(web.model.bodies[-1])["model"] == ("scripted" if is_first else "fast")
    assert await web.sessions() == before
    assert await web.ask(user("hi"), said("You said: hi"), user("[[history]]")) == "4"
    assert len(await web.sessions()) == 1
    assert not any(messages[-1]["content"] in text for text in web.seen())


async def test_a_task_is_named_by_its_header_beside_the_usual_one_too(api: Api, model: ModelServer) -> None:
    page = FrontEnd(api, model)
    await page.ask(user("hello"), headers={**SESSION, "X-Talaria-Task": "tags_generation"})
    assert await page.sessions() == []


@pytest.mark.parametrize(("path", "field"), [("chat/completions", "messages"), ("responses", "input")])
async def test_a_task_needs_no_message_of_the_user(api: Api, path: str, field: str) -> None:
    body = {field: [{"role": "system", "content": "Write a title."}]}
    await api.post(f"/v1/{path}", body, headers={**SESSION, "X-Talaria-Task": "title_generation"})
    refused = await api.post(f"/v1/{path}", body, 400, headers=SESSION)
    assert "no message with the role user" in refused["error"]["message"]


async def test_documents_before_the_first_message_are_no_task(web: FrontEnd) -> None:
    """Open WebUI's template for documents begins as its tasks do, and is streamed as chats are."""
    documents = "### Task:\nRespond to the user query using the provided context.\n<context>\nA\n</context>\n"
    assert "hello" in await web.ask(user(documents + "hello"))
    (session,) = await web.sessions()
    answer = await web.ask(user("hello"), said(""), user("[[history]]"))
    assert answer == "4", "the next call has the bare message, which is the same"
    assert await web.sessions() == [{**session, **(await web.sessions())[0]}]


# -- the chat, edited or not --------------------------------------------------------------------------------


async def test_a_chat_continues_in_its_session(web: FrontEnd) -> None:
    """Only the new message is taken, however the front end shows the others."""
    await web.ask(user('[[call write_file {"path": "a.txt", "content": "x"}]] [[reply It  is\n\nwritten.]]'))
    first = user('[[call write_file {"path": "a.txt", "content": "x"}]] [[reply It  is\n\nwritten.]]  ')
    shown = said('<details type="reasoning" done="true">\n> Hm.\n</details>\nIt is\nwritten.')
    parts = {"role": "user", "content": [{"type": "text", "text": "and more"}]}
    assert (
        await web.ask({"role": "system", "content": "Be kind."}, first, shown, parts) == "You said: and more"
    )
    assert await web.ask(first, shown, user("and more"), said("You sa"), user("third")) == "You said: third"
    (session,) = await web.sessions()
    entries = (await web.api.get(f"/api/sessions/{session['id']}/entries"))["entries"]
    kinds = [entry["body"]["type"] for entry in entries]
    assert kinds == ["spec", "user", "assistant", "tool_results", *["assistant", "user"] * 2, "assistant"]


async def test_regenerating_branches_before_the_message(web: FrontEnd) -> None:
    await web.ask(user("one"))
    await web.ask(user("one"), said("You said: one"), user("two"))
    old = await web.sessions()
    assert await web.ask(user("one"), said("You said: one"), user("two")) == "You said: two"
    assert web.seen() == ["one", "You said: one", "two"]
    new, before = await web.sessions()
    assert before["id"] == old[0]["id"]
    assert new["name"] == before["name"]
    await web.ask(user("one"), said("You said: one"), user("two"), said("You said: two"), user("three"))
    assert web.seen() == ["one", "You said: one", "two", "You said: two", "three"]
    assert {session["id"] for session in await web.sessions()} == {new["id"], before["id"]}, (
        "it goes on there"
    )


async def test_an_edited_message_branches_there_with_the_results_of_tools(web: FrontEnd) -> None:
    tool = user('[[call write_file {"path": "a.txt", "content": "x"}]] [[reply done]]')
    await web.ask(tool)
    await web.ask(tool, said("done"), user("two"))
    await web.ask(tool, said("done"), user("two"), said("You said: two"), user("three"))
    await web.ask(tool, said("done"), user("two, edited"))
    seen = web.seen()
    assert [seen[0], *seen[-2:]] == [tool["content"], "done", "two, edited"]
    assert len(seen) == 5, "the call and its result are there"
    await web.ask(user("one, edited"))
    assert web.seen() == ["one, edited"]


async def test_an_edited_answer_is_what_the_agent_has_said(web: FrontEnd) -> None:
    await web.ask(user("one"))
    await web.ask(user("one"), said("You said: one"), user("two"))
    await web.ask(user("one"), said("I said: ONE"), user("two"), said("You said: two"), user("three"))
    assert web.seen() == ["one", "I said: ONE", "two", "You said: two", "three"]


async def test_a_chat_that_began_elsewhere_is_taken_over(web: FrontEnd) -> None:
    await web.ask(user("one"), said("an answer of another model"), user("two"))
    assert web.seen() == ["one", "an answer of another model", "two"]
    assert len(await web.sessions()) == 1
    chat = [user("one"), said("an answer of another model"), user("two"), said("You said: two")]
    await web.ask(*chat, user("three"))
    assert len(await web.sessions()) == 1


async def test_a_chat_that_was_cut_off_at_its_beginning_continues(web: FrontEnd) -> None:
    """LibreChat leaves the oldest messages out when the chat is too long for the model."""
    chat: list[dict[str, Any]] = []
    for word in ("one", "two", "three"):
        chat += [user(word), said(await web.ask(*chat, user(word)))]
    assert await web.ask(*chat[2:], user("[[history]]")) == "8"
    chat += [user("[[history]]"), said("8")]
    assert await web.ask(*chat[3:], user("[[history]]")) == "10", "it may begin with an answer"
    assert len(await web.sessions()) == 1
    assert await web.ask(*chat[3:], user("[[history]] again")) == "10", "the last one again"
    assert len(await web.sessions()) == 2


async def test_commands_are_no_part_of_the_history(web: FrontEnd) -> None:
    chat = [user("one"), said(await web.ask(user("one")))]
    chat += [user("/status"), said(await web.ask(*chat, user("/status")))]
    assert await web.ask(*chat, user("[[history]]")) == "4"
    chat += [user("[[history]]"), said("4")]
    chat += [user("/new"), said(await web.ask(*chat, user("/new")))]
    assert await web.ask(*chat, user("[[history]]")) == "2", "a new session is not filled again"
    chat += [user("[[history]]"), said("2")]
    assert await web.ask(*chat, user("[[history]]")) == "4"
    assert len(await web.sessions()) == 2


async def test_a_failed_turn_and_its_error_do_not_branch(web: FrontEnd) -> None:
    body = {"messages": [user("[[status 400]]")], "stream": True}
    await web.api.post(CHATS, body, 400, headers={HEADER: web.chat})
    await web.ask(user("[[status 400]]"), said("Error: HTTP 400"), user("two"))
    assert len(await web.sessions()) == 1


async def test_an_answer_is_not_continued_in_its_middle(web: FrontEnd) -> None:
    await web.ask(user("one"))
    body = {"messages": [user("one"), said("You sa")], "stream": True}
    error = (await web.api.post(CHATS, body, 400, headers={HEADER: web.chat}))["error"]
    assert "ends with an answer" in error["message"]
    assert "go on" in error["hint"]


async def test_a_request_that_its_client_repeats_makes_no_branch(web: FrontEnd) -> None:
    await web.ask(user("one"))
    for n in range(2):
        headers = {HEADER: web.chat, "Idempotency-Key": "k"}
        await web.ask(user("one"), said("You said: one"), user("two"), headers=headers)
        headers = {HEADER: web.chat, "x-stainless-retry-count": str(n)}
        chat = [user("one"), said("You said: one"), user("two"), said("You said: two")]
        await web.ask(*chat, user("x"), headers=headers)
    assert len(await web.sessions()) == 1
    assert web.model.requests == 3


async def test_programs_with_the_usual_header_never_branch(api: Api, model: ModelServer) -> None:
    page = FrontEnd(api, model)
    for messages in ([user("one")], [user("one")], [user("x"), said("y"), user("z")]):
        await page.ask(*messages, headers=SESSION)
    assert page.seen() == ["one", "You said: one", "one", "You said: one", "z"]
    assert len(await page.sessions()) == 1


async def test_responses_branch_and_have_tasks_too(web: FrontEnd) -> None:
    async def ask(*items: dict[str, Any], stream: bool = True) -> None:
        body = {"input": items, "stream": stream}
        async with web.api.client.post(
            f"{web.api.url}/v1/responses", json=body, headers={HEADER: web.chat}
        ) as response:
            assert response.status == 200, await response.text()
            await response.read()

    await ask(user("one"))
    await ask(user("one"), said("You said: one"), user("two"))
    await ask(user(TITLE), stream=False)
    assert len(await web.sessions()) == 1
    await ask(user("one"), said("You said: one"), user("two, edited"))
    assert web.seen() == ["one", "You said: one", "two, edited"]
    assert len(await web.sessions()) == 2
