"""Logging a browser in: from the link's code to calls by cookie, and what another page cannot do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from channels.http.gateway import TOKEN, Api, run_gateway
from talaria.testing.model_server import ModelServer

SEND = "/api/sessions/one/messages"
COOKIE = "talaria_login"


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


async def log_in(api: Api, browser: aiohttp.ClientSession) -> str:
    async with browser.post("/api/login", json={"code": await new_code(api)}) as response:
        assert response.status == 204
        return response.cookies[COOKIE].value


async def test_a_code_becomes_a_cookie_that_opens_all(api: Api, browser: aiohttp.ClientSession) -> None:
    async with browser.get("/api/status") as response:
        assert response.status == 401
    async with browser.post("/api/login", json={"code": await new_code(api)}) as response:
        assert response.status == 204
        flags = response.headers["Set-Cookie"]
    assert all(flag in flags for flag in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=2592000"))
    assert "Secure" not in flags
    async with browser.get("/api/status") as response:
        assert response.status == 200
    async with browser.post(SEND, json={"text": "hi"}) as response:
        assert response.status == 202
    async with browser.post("/api/logout") as response:
        assert response.status == 204
    async with browser.get("/api/status") as response:
        assert response.status == 401


async def test_a_used_code_says_how_to_get_another(api: Api, browser: aiohttp.ClientSession) -> None:
    code = await new_code(api)
    for status in (204, 401):
        async with browser.post("/api/login", json={"code": code}) as response:
            assert response.status == status
    async with browser.post("/api/login", json={"code": code}) as response:
        error = (await response.json())["error"]
    assert error["type"] == "bad_code"
    assert "was used" in error["message"]
    assert "talaria open" in error["hint"]


async def test_a_cookie_outlives_a_restart(tmp_path: Path, model: ModelServer) -> None:
    async with run_gateway(tmp_path, model) as api, aiohttp.ClientSession(api.url) as browser:
        cookie = await log_in(api, browser)
    given = {"Cookie": f"a=b; {COOKIE}={cookie}"}
    async with (
        run_gateway(tmp_path, model) as api,
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
        ("POST", {"Authorization": f"Bearer {TOKEN}"}, 202),
    ],
)
async def test_only_our_own_page_may_use_the_cookie(
    api: Api, browser: aiohttp.ClientSession, method: str, headers: dict[str, str], status: int
) -> None:
    cookie = await log_in(api, browser)
    given = {name: api.url if value == "OURS" else value for name, value in headers.items()}
    given["Cookie"] = f"{COOKIE}={cookie}"
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


async def test_a_cookie_cannot_make_another_login(api: Api, browser: aiohttp.ClientSession) -> None:
    await log_in(api, browser)
    async with browser.post("/api/login/codes") as response:
        assert response.status == 403
        assert (await response.json())["error"]["type"] == "token_needed"


async def test_over_tls_the_cookie_is_secure(tmp_path: Path, model: ModelServer) -> None:
    async with run_gateway(tmp_path, model, hosts=("agents.example",)) as api:
        headers = {"Host": "agents.example", "Origin": "https://agents.example"}
        async with (
            aiohttp.ClientSession() as plain,
            plain.post(
                f"{api.url}/api/login", json={"code": await new_code(api)}, headers=headers
            ) as response,
        ):
            assert response.headers["Set-Cookie"].endswith("; Secure")
