"""Failures of `/v1` as OpenAI's own client sees them: statuses, bodies, hints, request ids."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

import talaria
from support.gateway import TOKEN, Api, in_process
from talaria.channels.http.errors import OpenAiError, is_openai_path
from talaria.core.errors import ErrorInfo
from talaria.core.problems import Action, Do
from talaria.testing.model_server import ModelServer
from talaria.turns.slash import ALIASES, SLASH_COMMANDS

COMMAND = re.compile(rf"(?:^|[\s`(])/(?:{'|'.join((*SLASH_COMMANDS, *ALIASES))})\b")

ERROR = r"(Error|Refused|NotFound|BadRequest|NoModel|Overloaded|LimitReached|OverBudget|TooLong|Unavailable)$"


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


async def fail(client: AsyncOpenAI, text: str, **more: Any) -> openai.APIStatusError:
    messages: Any = [{"role": "user", "content": text}]
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(**{"model": "main", "messages": messages, **more})
    assert not COMMAND.search(caught.value.message), caught.value.message
    return caught.value


# -- statuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"extra_headers": {"X-Talaria-Session": "one"}}])
@pytest.mark.parametrize(
    ("script", "error", "status", "code"),
    [
        ("[[status 400]]", openai.BadRequestError, 400, "invalid_request_error"),
        ("[[status 404]]", openai.NotFoundError, 404, "invalid_request_error"),
        ("[[status 413]]", openai.APIStatusError, 413, "invalid_request_error"),
        ("[[status 422]]", openai.UnprocessableEntityError, 422, "invalid_request_error"),
        ("[[status 429]] [[code tokens]]", openai.RateLimitError, 429, "tokens"),
        ("[[status 401]]", openai.InternalServerError, 502, "invalid_request_error"),
        ("[[status 403]]", openai.InternalServerError, 502, "invalid_request_error"),
        ("[[status 500]]", openai.InternalServerError, 503, "server_error"),
        (
            "[[status 400]] [[code context_length_exceeded]]",
            openai.BadRequestError,
            400,
            "context_length_exceeded",
        ),
        ("[[status 429]] [[code insufficient_quota]]", openai.RateLimitError, 429, "insufficient_quota"),
        ("[[status 402]]", openai.APIStatusError, 402, "insufficient_quota"),
    ],
)
async def test_the_providers_status_passes_unless_it_is_about_its_key(
    client: AsyncOpenAI,
    script: str,
    error: type[openai.APIStatusError],
    status: int,
    code: str,
    more: dict[str, Any],
) -> None:
    raised = await fail(client, script, **more)
    assert isinstance(raised, error)
    assert (raised.status_code, raised.code) == (status, code)


async def test_a_rate_limit_passes_with_its_pause(client: AsyncOpenAI) -> None:
    raised = await fail(client, "[[status 429]] [[retry-after 90]] [[code rate_limit_exceeded]]")
    assert raised.response.headers["retry-after"] == "90"
    assert raised.code == "rate_limit_exceeded"


async def test_an_empty_account_is_not_asked_again(tmp_path: Path, model: ModelServer) -> None:
    tables = {"providers": {"scripted": {"base_url": model.base_url, "max_retries": 3}}}
    async with (
        in_process(tmp_path, model, tables=tables) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        await fail(client, "[[status 429]] [[code insufficient_quota]]")
    assert model.requests == 1


async def test_a_repeated_key_repeats_the_providers_status(client: AsyncOpenAI, model: ModelServer) -> None:
    again = {"Idempotency-Key": "k", "X-Talaria-Session": "one"}
    for _ in range(2):
        raised = await fail(client, "[[status 422]]", extra_headers=again)
        assert raised.status_code == 422
    assert model.requests == 1


async def test_over_budget_is_402_with_the_word_that_clients_look_for(
    tmp_path: Path, model: ModelServer
) -> None:
    tables = {
        "budgets": {"per_session_usd": 0.000001},
        "prices": {"scripted/*": {"input": 10.0, "output": 10.0}},
    }
    async with (
        in_process(tmp_path, model, tables=tables) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        raised = await fail(client, "hi", extra_headers={"X-Talaria-Session": "one"})
    assert (raised.status_code, raised.type, raised.code) == (402, "over_budget", "insufficient_quota")
    assert "budgets.per_session_usd" in raised.message
    assert model.requests == 0


@pytest.mark.parametrize("header", [{}, {"X-Talaria-Session": "one"}])
async def test_an_empty_answer_is_an_answer(client: AsyncOpenAI, header: dict[str, str]) -> None:
    messages: Any = [{"role": "user", "content": "[[empty]]"}]
    whole = await client.chat.completions.create(model="main", messages=messages, extra_headers=header)
    assert whole.choices[0].message.content == ""
    assert whole.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(
        model="main", messages=messages, stream=True, extra_headers=header
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "stop"


# -- bodies -----------------------------------------------------------------------------------------------


async def test_the_message_holds_the_hint_and_the_body_has_all_members(client: AsyncOpenAI) -> None:
    raised = await fail(client, "hi", temperature="warm")
    body: Any = raised.body
    assert set(body) == {"message", "type", "code", "param", "hint"}
    assert (body["type"], body["param"]) == ("bad_request", "temperature")
    assert body["hint"] and body["message"].endswith(body["hint"])


async def test_an_unknown_model_lists_the_known_ones(tmp_path: Path, model: ModelServer) -> None:
    aliases = {f"alias{n}": "scripted/x" for n in range(50)}
    async with (
        in_process(tmp_path, model, tables={"aliases": aliases}) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        raised = await fail(client, "hi", model="gpt-9")
    assert isinstance(raised, openai.NotFoundError)
    assert (raised.code, raised.param) == ("model_not_found", "model")
    assert all(name in raised.message for name in ("gpt-9", "main", "scripted/scripted", "alias0"))
    assert "more (GET /v1/models lists them)" in raised.message
    assert raised.message.count("alias") < 25


@pytest.mark.parametrize("path", ["", "/v1/v1"])
async def test_a_wrong_base_url_is_told(api: Api, path: str) -> None:
    async with AsyncOpenAI(base_url=f"{api.url}{path}", api_key=TOKEN, max_retries=0) as client:
        raised = await fail(client, "hi")
        assert isinstance(raised, openai.NotFoundError)
        assert (f"{api.url}/v1" in raised.message) if not path else ("twice" in raised.message)
        with pytest.raises(openai.NotFoundError):
            await client.models.list()


async def test_a_wrong_token_says_so_in_the_clients_words(api: Api) -> None:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key="wrong", max_retries=0) as client:
        raised = await fail(client, "hi")
    assert isinstance(raised, openai.AuthenticationError)
    assert raised.code == "invalid_api_key"


async def test_an_error_in_a_stream_has_the_same_body(client: AsyncOpenAI) -> None:
    messages: Any = [
        {"role": "user", "content": "[[chunks 4]] [[chunk-delay 0.02]] [[cut 2]] [[reply abcd]]"}
    ]
    stream = await client.chat.completions.create(model="main", messages=messages, stream=True)
    with pytest.raises(openai.APIError) as caught:
        [chunk async for chunk in stream]
    body: Any = caught.value.body
    assert set(body) == {"message", "type", "code", "param", "hint"}
    assert not COMMAND.search(body["message"])


# -- headers and line ends --------------------------------------------------------------------------------


async def test_every_answer_has_a_request_id_of_its_own(api: Api, client: AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    answer = await client.chat.completions.create(model="main", messages=messages)
    raised = await fail(client, "[[status 400]]")
    ids = {answer._request_id, raised.request_id}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as web:
        for path in ("/healthz", "/", "/assets/none", "/api/status", "/nowhere", "/v1/models"):
            for sent in (headers, {}):
                async with web.get(api.url + path, headers=sent) as response:
                    ids.add(response.headers["x-request-id"])
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"junk\r\n\r\n")
    found = re.search(rb"x-request-id: (\S+)", await reader.read())
    assert found is not None
    ids.add(found[1].decode())
    writer.close()
    await writer.wait_closed()
    assert len(ids) == 2 + 12 + 1
    assert all(one is not None and one.startswith("req_") for one in ids)


async def test_json_ends_with_a_line_end(api: Api) -> None:
    for path in ("/healthz", "/api/status", "/api/nothing", "/v1/models", "/v1/nothing", "/api/sessions"):
        async with api.client.get(api.url + path) as response:
            assert (await response.read()).endswith(b"}\n"), path
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with api.client.post(f"{api.url}/v1/chat/completions", json=body) as response:
        assert (await response.read()).endswith(b"}\n")


# -- hints ------------------------------------------------------------------------------------------------


CHAT = (
    Action(Do.USE_MODEL, "Choose another"),
    Action(Do.USE_MODEL, "choose another model"),
    Action(Do.USE_LOCAL_MODEL),
    Action(Do.NEW_SESSION, "Start a new one"),
    Action(Do.SHORTER),
    Action(Do.NEW_BUDGET),
    Action(Do.ANSWER_AGAIN),
    Action(Do.STOP_TURN),
    Action(Do.RESUME, "ses_1"),
    Action(Do.LIST_SESSIONS),
)


def hint_for_caller(hint: str, action: Action) -> str:
    return OpenAiError.of(ErrorInfo("bad_request", "No.", hint, action=action)).hint


@pytest.mark.parametrize("action", CHAT)
def test_callers_are_told_no_command_of_a_chat(action: Action) -> None:
    assert COMMAND.search(str(action))
    assert not COMMAND.search(hint_for_caller(f"Wait, or {action}.", action))


def test_every_hint_that_names_a_command_has_an_action() -> None:
    """The hints of errors in the source name commands by their actions only, so that callers are told what
    they can do. The exceptions answer the command /jobs, name another way too, or are for a model."""
    found = set()
    for path in Path(talaria.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search(ERROR, ast.unparse(node.func)):
                texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
                found |= {text for text in texts if isinstance(text, str) and COMMAND.search(text)}
    assert found == {
        "/jobs does not know ",
        "Say first what is to be done: `/jobs add TEXT`.",
        "The person can send /reload; then search for it again.",
        "`talaria jobs list` and /jobs show the jobs.",
    }


@pytest.mark.parametrize(
    ("hint", "action", "told"),
    [
        ("Try again in 5 seconds, or {}.", CHAT[1], "Try again in 5 seconds, or name another `model`."),
        ("{}, or run `talaria setup`.", CHAT[0], "Name another `model`, or run `talaria setup`."),
        ("Wait for an answer, or {}.", CHAT[7], "or cancel its turn with POST /api/turns/ID/cancel."),
        ("{} to the chat by its name.", CHAT[8], "Write to the chat by its name."),
        ("{}", CHAT[9], "The gateway's log may say more."),
    ],
)
def test_a_hint_tells_callers_what_they_can_do(hint: str, action: Action, told: str) -> None:
    assert hint_for_caller(hint.format(action), action).endswith(told)


@pytest.mark.parametrize(
    ("info", "code", "param"),
    [
        (ErrorInfo("model_error", "It broke."), None, None),
        (ErrorInfo("model_error", "It broke.", status=429), "rate_limit_exceeded", None),
        (ErrorInfo("model_error", "It broke.", status=500), None, None),
        (ErrorInfo("model_error", "It broke.", code="their_own", status=429), "their_own", None),
        (ErrorInfo("context_too_long", "It broke."), "context_length_exceeded", None),
        (ErrorInfo("over_budget", "It broke.", status=429), "insufficient_quota", None),
        (ErrorInfo("unauthorized", "It broke."), "invalid_api_key", None),
        (ErrorInfo("bad_request", "It broke.", param="n"), "invalid_value", "n"),
    ],
)
def test_the_code_is_the_error_s_own_or_the_one_that_clients_look_for(
    info: ErrorInfo, code: str | None, param: str | None
) -> None:
    told = OpenAiError.of(info)
    assert (told.type, told.code, told.param) == (info.type, code, param)
    assert told.message.startswith("It broke. The gateway's log may say more.")
    # LangChain and LiteLLM tell a conversation that is too long by words of the message.
    words = ("context_length_exceeded", "is longer than the model's context length")
    assert all((word in told.message) is (code == words[0]) for word in words)


def test_paths_that_clients_of_openai_call() -> None:
    ours = ("/v1/models", "/v1/x", "/chat/completions", "/responses/1", "/embeddings")
    assert all(map(is_openai_path, ours))
    assert not any(map(is_openai_path, ("/api/turns", "/v1", "/", "/x/chat/completions", "/healthz")))
