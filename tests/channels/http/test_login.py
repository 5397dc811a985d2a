"""Logging a browser in: from the link's code to calls by cookie, and what another page cannot do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from support.gateway import TOKEN, Api, in_process
from talaria.testing.model_server import ModelServer

SEND = "/api/sessions/one/messages"


@pytest_asyncio.fixture
async def browser(api: Api) -> AsyncIterator[aiohttp.ClientSession]:
    """Keeps cookies, sends its origin, knows no token."""
    jar = aiohttp.CookieJar(unsafe=True)  # addresses have cookies too
    url = api.url
    async with aiohttp.ClientSession(url, cookie_jar=jar, headers={"Origin": url}) as session:
        yield session


async def new_code(api: Api) -> str:
    answer = await api.post("/api/login/codes", None, 201)
    assert answer["seconds"] == 600
    return str(answer["code"])


async def log_in(api: Api, browser: aiohttp.ClientSession) -> dict[str, str]:
    """The headers of a page that is logged in."""
    async with browser.post("/api/login", json={"code": await new_code(api)}) as response:
        assert response.status == 200
        (cookie,) = response.cookies.values()
        secret = (await response.json())["secret"]
    return {"Cookie": f"{cookie.key}={cookie.value}", "X-Talaria-Login": secret}


async def test_a_code_becomes_a_cookie_that_opens_all(api: Api, browser: aiohttp.ClientSession) -> None:
    async with browser.get("/api/status") as response:
        assert response.status == 401
    async with browser.post("/api/login", json={"code": await new_code(api)}) as response:
        assert response.status == 200
        assert response.headers["Cache-Control"] == "no-store"
        flags, answer = response.headers["Set-Cookie"], await response.json()
    assert answer.keys() == {"secret", "seconds"}
    page = {"X-Talaria-Login": answer["secret"]}
    assert all(flag in flags for flag in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=2592000"))
    assert "Secure" not in flags
    async with browser.get("/api/status", headers=page) as response:
        assert response.status == 200
    async with browser.post(SEND, json={"text": "hi"}, headers=page) as response:
        assert response.status == 202


async def test_the_cookie_alone_and_the_pages_secret_alone_open_nothing(
    api: Api, browser: aiohttp.ClientSession
) -> None:
    mine = await log_in(api, browser)
    async with aiohttp.ClientSession(api.url, headers={"Origin": api.url}) as other:
        theirs = await log_in(api, other)
    cookie, secret = "Cookie", "X-Talaria-Login"
    halves = [
        {cookie: mine[cookie]},
        {secret: mine[secret]},
        {cookie: mine[cookie], secret: theirs[secret]},
        {cookie: mine[cookie], secret: ""},
        {cookie: mine[cookie], secret: mine[cookie].rpartition(".")[2]},
    ]
    async with aiohttp.ClientSession(api.url, headers={"Origin": api.url}) as plain:
        for half in halves:
            for method, path in (("GET", "/api/pool"), ("POST", SEND), ("POST", "/api/logout")):
                async with plain.request(method, path, headers=half) as response:
                    assert response.status == 401, half
                    assert "talaria open" in (await response.json())["error"]["hint"]
        async with plain.get("/api/pool", headers=mine) as response:
            assert response.status == 200, "and the attempts ended nothing"


async def test_a_used_code_says_how_to_get_another(api: Api, browser: aiohttp.ClientSession) -> None:
    code = await new_code(api)
    for status in (200, 401):
        async with browser.post("/api/login", json={"code": code}) as response:
            assert response.status == status
    async with browser.post("/api/login", json={"code": code}) as response:
        error = (await response.json())["error"]
    assert error["type"] == "bad_code"
    assert "was used" in error["message"]
    assert "talaria open" in error["hint"]


async def test_a_cookie_outlives_a_restart(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path, model) as api, aiohttp.ClientSession(api.url) as browser:
        given = await log_in(api, browser)
    port = int(given["Cookie"].partition("=")[0].rpartition("_")[2])
    given["Cookie"] = f"a=b; {given['Cookie']}"
    async with (
        in_process(tmp_path, model, port=port) as api,
        aiohttp.ClientSession(api.url, headers=given) as browser,
        browser.get("/api/pool") as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("GET", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("GET", {"Sec-Fetch-Site": "none"}, 200),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", {"Origin": "http://evil.example"}, 403),
        ("POST", {}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {"Origin": "http://evil.example"}, 403),
        ("POST", {"Origin": "OURS", "Sec-Fetch-Site": "same-site"}, 403),
        ("POST", {"Origin": "OURS"}, 202),
        ("POST", {"Origin": "OURS", "Sec-Fetch-Site": "same-origin"}, 202),
        ("POST", {"Origin": "OURS", "Authorization": "Bearer wrong"}, 401),
        ("POST", {"Origin": "OURS", "Authorization": "Basic of-a-proxy"}, 202),
        ("POST", {"Authorization": f"Bearer {TOKEN}"}, 202),
    ],
)
async def test_only_our_own_page_may_use_the_cookie(
    api: Api, browser: aiohttp.ClientSession, method: str, headers: dict[str, str], status: int
) -> None:
    given = {name: api.url if value == "OURS" else value for name, value in headers.items()}
    given |= await log_in(api, browser)
    path, body = (SEND, {"text": "hi"}) if method == "POST" else ("/api/pool", None)
    async with (
        aiohttp.ClientSession(api.url) as plain,
        plain.request(method, path, json=body, headers=given) as response,
    ):
        assert response.status == status
        if status in (401, 403):
            error = (await response.json())["error"]
            assert error["message"]
            assert error["hint"]


async def test_logging_out_ends_the_login_also_where_its_cookie_was_copied_to(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api, aiohttp.ClientSession(api.url) as browser:
        given, port = await log_in(api, browser), int(api.url.rpartition(":")[2])
        given["Origin"] = api.url
        async with aiohttp.ClientSession(api.url, headers=given) as copy:
            async with copy.post("/api/logout") as response:
                assert response.status == 204
                assert "Max-Age=0" in response.headers["Set-Cookie"]
            async with copy.get("/api/pool") as response:
                assert response.status == 401
    async with (
        in_process(tmp_path, model, port=port) as api,
        aiohttp.ClientSession(api.url, headers=given) as copy,
        copy.get("/api/pool") as response,
    ):
        assert response.status == 401, "after a restart too"


async def test_a_cookie_of_the_same_name_by_another_server_locks_nobody_out(
    api: Api, browser: aiohttp.ClientSession
) -> None:
    given = await log_in(api, browser)
    name = given["Cookie"].partition("=")[0]
    given["Cookie"] = f"{name}=junk; {given['Cookie']}; {name}="
    async with aiohttp.ClientSession(api.url) as plain, plain.get("/api/pool", headers=given) as response:
        assert response.status == 200


async def test_a_cookie_cannot_make_another_login(api: Api, browser: aiohttp.ClientSession) -> None:
    page = await log_in(api, browser)
    async with browser.post("/api/login/codes", headers=page) as response:
        assert response.status == 403
        assert (await response.json())["error"]["type"] == "token_needed"


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("agents.example", "https://agents.example", 200),
        ("agents.example:443", "https://agents.example", 200),
        ("agents.example:443", "https://agents.example:443", 200),
        ("agents.example", "http://agents.example", 403),
        ("agents.example:80", "https://agents.example", 421),
    ],
)
async def test_behind_a_proxy_with_tls_the_usual_port_may_be_left_out(
    tmp_path: Path, model: ModelServer, host: str, origin: str, status: int
) -> None:
    headers = {"Host": host, "Origin": origin}
    async with (
        in_process(tmp_path, model, hosts=("agents.example:443",)) as api,
        aiohttp.ClientSession(api.url, headers=headers) as plain,
        plain.post("/api/login", json={"code": await new_code(api)}) as response,
    ):
        assert response.status == status
        if status == 200:
            assert response.headers["Set-Cookie"].endswith("; Secure")
