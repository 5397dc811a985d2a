"""Requests to a session that a client sends again: effects happen once, and the answer is the same."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from support.gateway import TOKEN, Api, in_process, real_process
from support.waiting import until
from talaria.access.callers import HOME_CALLER
from talaria.testing.model_server import ModelServer
from talaria.workspace.folder import chat_folder
from trial.loads.retries import NodeProcess, NodeSdk, Question, Refused, has_node

SESSION = {"X-Talaria-Session": "one"}
FIRST_RETRY = {**SESSION, "x-stainless-retry-count": "1"}
PATHS = ("/v1/chat/completions", "/v1/responses")


def effect(rest: str = "[[reply done]]") -> str:
    """A message that makes the agent add a line to a file of its chat, then goes on with `rest`."""
    call = json.dumps({"path": "effects", "old": "end", "new": "again\nend"})
    return f"[[reply First.]] [[call edit_file {call}]] {rest}"


def body(path: str, text: str, **more: Any) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"input": text, **more}
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN) as client:
        yield client


class Effects:
    """The lines that the agent of the chat `one` has added to its file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return self._path.read_text().count("again")


@pytest.fixture
async def effects(api: Api) -> Effects:
    created = json.dumps({"path": "effects", "content": "end"})
    turn = await api.say("one", f"[[call write_file {created}]]")
    chat = (await api.get("/api/sessions/one"))["chat_key"]
    assert turn["state"] == "done"
    return Effects(api.gateway.chat_folder(chat) / "effects")


async def turns_of(api: Api) -> int:
    """How many turns there are, once none is under way."""
    while (status := await api.get("/api/status"))["owed"]["turns"]:
        await asyncio.sleep(0)
    return sum(status["turns"].values())


async def send(api: Api, path: str, sent: Any, headers: dict[str, str] = SESSION) -> tuple[str, Any]:
    """The turn's id and the answer."""
    async with api.client.post(api.url + path, json=sent, headers=headers) as answer:
        return answer.headers["x-talaria-turn-id"], await answer.read()


def request_bytes(api: Api, path: str, content: bytes) -> bytes:
    host = api.url.removeprefix("http://")
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n"
    more = f"X-Talaria-Session: one\r\nContent-Length: {len(content)}\r\n\r\n"
    return (head + more).encode() + content


async def leave(api: Api, model: ModelServer, path: str, sent: Any, requests: int = 1) -> None:
    """Send a request, and close the connection when the model has got so many requests more. Nothing of an
    answer is read, however late that is."""
    before, content = model.requests, json.dumps(sent).encode()
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(request_bytes(api, path, content))
        await model.until(lambda: model.requests >= before + requests)


async def test_the_sdk_retries_a_timeout_and_the_tool_runs_once(
    client: AsyncOpenAI, api: Api, effects: Effects, model: ModelServer
) -> None:
    patient = client.with_options(max_retries=9)  # a loaded machine may need more than two
    raw = await patient.chat.completions.with_raw_response.create(
        model="main",
        messages=body("", effect("[[delay 1]] [[reply done]]"))["messages"],
        timeout=0.4,
        extra_headers=SESSION,
    )
    assert raw.retries_taken > 0
    assert raw.parse().choices[0].message.content == "First.\n\ndone"
    assert len(effects) == 1
    assert await turns_of(api) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_retry_of_an_answered_request_gets_the_same_answer(
    api: Api, effects: Effects, path: str, stream: bool
) -> None:
    sent = body(path, effect(), stream=stream)
    first_turn, first = await send(api, path, sent)
    turn, answer = await send(api, path, sent, FIRST_RETRY)
    assert turn == first_turn
    assert text_of(path, answer, stream) == text_of(path, first, stream) == ["First.", "done"]
    assert len(effects) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_request_whose_connection_broke_is_joined_without_a_mark_of_the_client(
    api: Api, effects: Effects, model: ModelServer, path: str, stream: bool
) -> None:
    sent = body(path, effect("[[delay 0.3]] [[reply done]]"), stream=stream)
    await leave(api, model, path, sent, requests=2)
    _, answer = await send(api, path, sent)
    assert text_of(path, answer, stream) == ["First.", "done"]
    assert len(effects) == 1
    await send(api, path, sent)
    assert len(effects) == 2, "it was answered, so this is the same said again"


def text_of(path: str, answer: bytes, stream: bool) -> list[str]:
    """The texts of an answer."""
    if path == "/v1/responses":
        if stream:
            answer = answer.rpartition(b"data: ")[2]
        response = json.loads(answer)
        response = response.get("response", response)
        return [part["text"] for item in response["output"] for part in item["content"]]
    if not stream:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    else:
        chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    return str(text).split("\n\n")


async def test_a_turn_that_is_done_by_then_is_answered_from_its_row(
    api: Api, effects: Effects, model: ModelServer
) -> None:
    sent = body(PATHS[0], effect())
    await leave(api, model, PATHS[0], sent)
    assert await turns_of(api) == 2
    requests = model.requests
    _, answer = await send(api, PATHS[0], sent)
    assert text_of(PATHS[0], answer, False) == ["First.", "done"]
    assert (len(effects), model.requests) == (1, requests)


async def test_the_same_words_said_twice_are_two_turns(api: Api, effects: Effects) -> None:
    sent = body(PATHS[0], effect())
    turns = [(await send(api, PATHS[0], sent))[0] for _ in range(2)]
    both = await asyncio.gather(*(send(api, PATHS[0], sent) for _ in range(2)))
    assert len({*turns, *(turn for turn, _ in both)}) == 4
    assert len(effects) == 4


@pytest.mark.parametrize(
    "other",
    [
        ({"X-Talaria-Session": "two"}, {}),
        ({}, {"stream": True}),
        ({}, {"temperature": 0.5}),
        ({"Idempotency-Key": "k"}, {}),
    ],
)
async def test_a_retry_of_another_request_is_a_turn_of_its_own(
    api: Api, other: tuple[dict[str, str], dict[str, Any]]
) -> None:
    headers, more = other
    first, _ = await send(api, PATHS[0], body(PATHS[0], "hi"))
    second, _ = await send(api, PATHS[0], body(PATHS[0], "hi", **more), {**FIRST_RETRY, **headers})
    assert first != second


async def test_a_stateless_call_never_joins(api: Api) -> None:
    headers = {"x-stainless-retry-count": "1"}
    turns = {(await send(api, path, body(path, "hi"), headers))[0] for path in PATHS * 2}
    assert len(turns) == 4


async def test_another_caller_does_not_join(api: Api) -> None:
    first, _ = await send(api, PATHS[0], body(PATHS[0], "hi"))
    added = await api.post("/api/tokens", {"name": "phone", "role": "operate"}, 201)
    headers = {**FIRST_RETRY, "Authorization": f"Bearer {added['secret']}"}
    second, _ = await send(api, PATHS[0], body(PATHS[0], "hi"), headers)
    assert first != second


async def test_a_retry_needs_no_room_in_the_queue(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path, model, tables={"limits": {"chat_queue": 1}}) as api:
        sent = body(PATHS[0], "[[hang]]")
        await leave(api, model, PATHS[0], sent)
        [live] = api.gateway.turns.live
        await api.begin("one", "waits")
        await api.post("/api/sessions/one/messages", {"text": "too many"}, 429)
        joined = asyncio.create_task(send(api, PATHS[0], sent))
        await until(lambda: live.repeats, pause=0)
        await api.post(f"/api/turns/{live.turn.id}/cancel")
        assert (await joined)[0] == live.turn.id


async def test_an_answer_that_the_client_did_not_read_is_given_again(api: Api, effects: Effects) -> None:
    sent = body(PATHS[0], effect())
    content = json.dumps(sent).encode()
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(request_bytes(api, PATHS[0], content))
        assert await asyncio.to_thread(client.recv, 1, socket.MSG_PEEK), "the answer is here"
    _, answer = await send(api, PATHS[0], sent)
    assert text_of(PATHS[0], answer, False) == ["First.", "done"]
    assert len(effects) == 1


# -- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_after_effects_a_failure_has_a_status_that_no_client_retries(
    api: Api, effects: Effects, path: str, stream: bool
) -> None:
    sent = body(path, effect("[[status 429]]").replace("[[reply First.]]", ""), stream=stream)
    async with api.client.post(api.url + path, json=sent, headers=SESSION) as answer:
        assert answer.status == 424
        assert answer.headers["x-should-retry"] == "false"
        error = (await answer.json())["error"]
    assert error["type"] == "model_unavailable"
    assert "Tools have run" in error["message"]
    assert len(effects) == 1


async def test_the_sdk_does_not_retry_a_failed_turn(client: AsyncOpenAI, api: Api, effects: Effects) -> None:
    with pytest.raises(openai.APIStatusError):
        await client.chat.completions.create(
            model="main", messages=body("", effect("[[status 503]]"))["messages"], extra_headers=SESSION
        )
    assert len(effects) == 1
    assert await turns_of(api) == 2


async def test_the_ai_sdk_does_not_retry_a_failed_turn_with_effects(
    api: Api, effects: Effects, tmp_path: Path
) -> None:
    if not has_node():
        pytest.skip("the AI SDK is not installed in TALARIA_NODE_MODULES")
    question = Question("n", "one", effect("[[status 503]]"), 5.0, is_stream=False, path="chat")
    async with NodeProcess.running(tmp_path) as node:
        with pytest.raises(Refused, match="424"):
            await NodeSdk("ai", f"{api.url}/v1", TOKEN, node).ask(question)
    assert len(effects) == 1
    assert await turns_of(api) == 2


async def test_without_effects_a_failure_keeps_its_status(api: Api) -> None:
    for headers in (SESSION, {}):
        sent = body(PATHS[0], "[[status 429]]")
        async with api.client.post(api.url + PATHS[0], json=sent, headers=headers) as answer:
            assert answer.status == 429


# -- restarts ---------------------------------------------------------------------------------------------


async def test_a_restart_remembers_which_requests_were_answered(tmp_path: Path, model: ModelServer) -> None:
    answered, broken = (body(PATHS[0], f"[[delay 0.2]] [[reply {text}]]") for text in ("a", "b"))
    async with in_process(tmp_path, model) as api:
        first, _ = await send(api, PATHS[0], answered)
        await leave(api, model, PATHS[0], broken)
        assert await turns_of(api) == 2
    requests = model.requests
    async with in_process(tmp_path, model) as api:
        assert (await send(api, PATHS[0], answered, FIRST_RETRY))[0] == first
        await send(api, PATHS[0], broken)
        assert model.requests == requests
        second, _ = await send(api, PATHS[0], answered)
        assert second != first


async def test_a_retry_after_kill_9_joins_the_resumed_turn_and_is_told_of_the_effect_that_was_cut(
    tmp_path: Path, model: ModelServer
) -> None:
    home = tmp_path / "home"
    async with real_process(tmp_path, model, failpoints="tool.ran=1") as gateway:
        token = (home / "http.token").read_text().strip()
        folder = chat_folder(home, HOME_CALLER.chat_key("main", "one"))
        folder.mkdir(parents=True)
        (folder / "effects").write_text("end")
        sent: Any = {"model": "main", **body(PATHS[0], effect(""))}

        async def ask() -> Any:
            url = f"{gateway.url}/v1"
            async with AsyncOpenAI(
                base_url=url, api_key=token, max_retries=0, default_headers=SESSION
            ) as client:
                return await client.chat.completions.create(**sent)

        with pytest.raises(openai.APIConnectionError):
            await ask()
        await gateway.wait()
        await gateway.start()
        answer = await ask()
        assert "its outcome is unknown" in answer.choices[0].message.content
        assert len(Effects(folder / "effects")) == 1
        turns = (await gateway.call("GET", "/api/turns"))["items"]
        assert [f"chatcmpl-{turn['id']}" for turn in turns] == [answer.id]
