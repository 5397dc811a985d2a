"""The header matrix: which combinations of Host, Origin, cookie, token, method and Sec-Fetch-Site pass.

`expected` is written from docs/http-api.md, not from the guard: a second opinion on every case.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest_asyncio

from support.gateway import TOKEN, Api, in_process
from talaria.testing.model_server import ModelServer

LISTED, PROXY = "https://app.example.org", "https://agents.example"
# Whether the name is one of the gateway's; PORT is the port that it listens on.
HOSTS = {
    "127.0.0.1:PORT": True,
    "LocalHost:PORT": True,
    "agents.example": True,  # http.hosts has it with :443
    "127.0.0.1": False,
    "evil.example:PORT": False,
}
OWN, PAGE, STRANGE = "own", "page", "strange"
ORIGINS = {
    "": OWN,
    "http://127.0.0.1:PORT": OWN,
    PROXY: OWN,
    LISTED: PAGE,
    "http://app.example.org": STRANGE,
    "https://app.example.org:8443": STRANGE,
    "https://app.example.org.evil.example": STRANGE,
    "null": STRANGE,
}
COOKIES = ("", "cookie", "cookie and secret")
TOKENS = ("", "right", "wrong")
SITES = ("", "same-origin", "cross-site")
# A method and path, and the status of a call that passes. No turn begins, so that all can be tried.
CALLS = {
    ("GET", "/api/sessions"): 200,
    ("POST", "/api/turns/turn_x/cancel"): 404,
    ("DELETE", "/api/sessions/none"): 404,
    ("POST", "/api/login"): 400,  # the body is missing
    ("GET", "/healthz"): 200,
    ("OPTIONS", "/api/sessions"): 204,
}


class Case(NamedTuple):
    call: tuple[str, str]
    host: str
    origin: str
    cookie: str
    token: str
    site: str


def expected(case: Case) -> int:
    """The status that the documentation promises."""
    (method, path), passed = case.call, CALLS[case.call]
    origin = ORIGINS[case.origin]
    if not HOSTS[case.host]:
        return 421
    if origin is STRANGE:
        return 403
    if method == "OPTIONS" and origin is PAGE:
        return passed
    if path == "/healthz":
        return passed
    if path == "/api/login":
        return 403 if origin is PAGE else passed
    if case.token == "wrong":
        return 401
    if case.token == "right":
        return 405 if method == "OPTIONS" else passed
    # Without a token: a login, whose two secrets count on the gateway's own page only.
    if origin is PAGE or case.cookie != "cookie and secret":
        return 401
    if case.site == "cross-site" or (method != "GET" and not case.origin):
        return 403
    return 405 if method == "OPTIONS" else passed


def cases() -> list[Case]:
    every = (Case(*one) for one in itertools.product(CALLS, HOSTS, ORIGINS, COOKIES, TOKENS, SITES))
    return [case for case in every if not _is_more_of_the_same(case)]


def _is_more_of_the_same(case: Case) -> bool:
    """A place that is refused anyway is tried without any secret and with all of them. The site matters to
    one name of the gateway as to the others."""
    if not HOSTS[case.host] or ORIGINS[case.origin] is STRANGE:
        return bool(case.site) or (case.cookie, case.token) not in (("", ""), ("cookie and secret", "right"))
    if case.token == "wrong":
        return bool(case.site) or case.cookie == "cookie"
    return bool(case.site) and not case.host.startswith("127")


class Client:
    """A connection that is kept alive, with requests written by hand: no library adds a header."""

    def __init__(self, api: Api, cookie: str, secret: str) -> None:
        self._port = api.url.rpartition(":")[2]
        self._cookie, self._secret = cookie, secret

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", int(self._port))
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, case: Case) -> tuple[int, dict[str, str]]:
        method, path = case.call
        host, origin = (text.replace("PORT", self._port) for text in (case.host, case.origin))
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
        if origin:
            lines.append(f"Origin: {origin}")
        if case.cookie:
            # The name of the cookie has the port under which the browser knows the gateway.
            port = f"_{self._port}" if host.endswith(f":{self._port}") else ""
            lines.append(f"Cookie: talaria_login{port}={self._cookie}")
        if case.cookie == "cookie and secret":
            lines.append(f"X-Talaria-Login: {self._secret}")
        if case.token:
            lines.append(f"Authorization: Bearer {TOKEN if case.token == 'right' else 'wrong-token-value'}")
        if case.site:
            lines.append(f"Sec-Fetch-Site: {case.site}")
        if method == "OPTIONS":
            lines.append("Access-Control-Request-Method: POST")
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers


@pytest_asyncio.fixture
async def client(tmp_path: Path, model: ModelServer) -> AsyncIterator[Client]:
    async with in_process(tmp_path, model, hosts=("agents.example:443",), origins=(LISTED,)) as api:
        code = (await api.post("/api/login/codes", None, 201))["code"]
        async with (
            aiohttp.ClientSession(api.url) as browser,
            browser.post("/api/login", json={"code": code}, headers={"Origin": api.url}) as response,
        ):
            (cookie,) = response.cookies.values()
            secret = (await response.json())["secret"]
        async with Client(api, cookie.value, secret) as client:
            yield client


async def test_of_all_combinations_of_headers_only_the_right_ones_pass(client: Client) -> None:
    tried = cases()
    assert len(tried) >= 500
    seen = set[int]()
    for case in tried:
        status, headers = await client.ask(case)
        assert status == expected(case), case
        seen.add(status)
        is_page = HOSTS[case.host] and ORIGINS[case.origin] is PAGE
        assert headers.get("access-control-allow-origin") == (LISTED if is_page else None), case
        assert "access-control-allow-credentials" not in headers
        assert headers.get("vary") == ("origin" if HOSTS[case.host] else None)
    assert seen == {200, 204, 400, 401, 403, 404, 405, 421}


async def test_a_preflight_allows_the_methods_and_headers_of_the_api(client: Client) -> None:
    case = Case(("OPTIONS", "/api/sessions"), "127.0.0.1:PORT", LISTED, "", "", "cross-site")
    status, headers = await client.ask(case)
    assert status == 204
    assert headers["access-control-allow-methods"] == "GET, HEAD, POST, PATCH, DELETE"
    assert headers["access-control-allow-headers"] == "authorization, *"
    assert headers["access-control-max-age"] == "600"


async def test_without_the_setting_no_answer_is_for_other_pages(api: Api) -> None:
    headers = {"Origin": LISTED, "Access-Control-Request-Method": "POST"}
    async with api.client.options(f"{api.url}/api/sessions", headers=headers) as response:
        assert response.status == 403
        error = (await response.json())["error"]
    assert error["type"] == "wrong_origin"
    assert "http.origins" in error["hint"]
    assert not {name for name in response.headers if name.lower().startswith(("access-control", "vary"))}


async def test_a_page_of_another_origin_reads_a_stream_and_its_headers(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model, origins=(LISTED,)) as api:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        url, headers = f"{api.url}/v1/chat/completions", {"Origin": LISTED}
        async with api.client.post(url, json=body, headers=headers) as response:
            assert "You said: hello" in await response.text()
            assert response.headers["Access-Control-Allow-Origin"] == LISTED
            assert response.headers["Access-Control-Expose-Headers"] == "*"
        async with api.client.post(url, data=b"{", headers=headers) as response:
            assert response.status == 400
            assert response.headers["Access-Control-Allow-Origin"] == LISTED
