"""The gateway on a subpath, behind the proxies of docs/proxy.md as they stand there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.gateway import TOKEN, in_process
from support.ports import port_of, reserve_port
from support.programs import find_program, needs
from talaria.testing.model_server import ModelServer

PAGE = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()
BEARER = {"Authorization": f"Bearer {TOKEN}"}
BASE = "/talaria"


def example(language: str) -> str:
    return PAGE.partition(f"```{language}\n")[2].partition("```")[0]


def nginx(folder: Path, port: int, gateway: str) -> list[str]:
    server = re.sub(r"ssl_certificate.*;\n", "", example("nginx"))
    server = server.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:8765", gateway)
    temp = "".join(
        f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid; daemon off; error_log {folder}/log; events {{}}\n"
        f"http {{ access_log off; {temp}\n{server}}}"
    )
    return ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", f"{folder}/log"]


def caddy(folder: Path, port: int, gateway: str) -> list[str]:
    site = example("caddyfile").replace("example.org", f"http://127.0.0.1:{port}")
    text = "{\n    admin off\n}\n" + site.replace("127.0.0.1:8765", gateway)
    (folder / "Caddyfile").write_text(text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@asynccontextmanager
async def running(command: list[str], port: int, folder: Path) -> AsyncIterator[None]:
    program = find_program(command[0])
    assert program is not None
    environ = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "said").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, *command[1:], env=environ, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    assert process.returncode is None, (folder / "said").read_text()
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield
    finally:
        process.terminate()
        await process.wait()


async def check(url: str) -> None:
    """Read the page with all its files, stream an answer, and log a browser in and out."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        page = await (await client.get(f"{url}{BASE}/")).text()
        files = re.findall(r'(?:src|href)="([^"#]+)"', page)
        assert files
        assert all(file.startswith(f"{BASE}/assets/") for file in files)
        for file in files:
            async with client.get(url + file) as answer:
                assert answer.status == 200, file
        policy = (await client.get(f"{url}{BASE}/")).headers["Content-Security-Policy"]
        assert f"{url.removeprefix('http://')}{BASE}/assets/" in policy
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with client.post(f"{url}{BASE}/v1/chat/completions", json=body, headers=BEARER) as answer:
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        code = await (await client.post(f"{url}{BASE}/api/login/codes", headers=BEARER)).json()
        async with client.post(f"{url}{BASE}/api/login", json=code, headers={"Origin": url}) as answer:
            assert answer.status == 200, await answer.text()
            assert f"Path={BASE}/;" in answer.headers["Set-Cookie"]
            secret = (await answer.json())["secret"]
        async with client.get(f"{url}{BASE}/api/sessions", headers={"X-Talaria-Login": secret}) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.parametrize(
    ("program", "prepare"),
    [
        pytest.param("nginx", nginx, marks=needs("nginx"), id="nginx"),
        pytest.param("caddy", caddy, marks=needs("caddy"), id="caddy"),
    ],
)
async def test_the_example_of_the_docs_works(
    tmp_path: Path, program: str, prepare: Callable[[Path, int, str], list[str]]
) -> None:
    folder = tmp_path / program
    folder.mkdir()
    with reserve_port() as place:
        port = port_of(place)
        http: dict[str, Any] = {"hosts": [f"127.0.0.1:{port}"], "base_path": BASE}
        async with ModelServer() as model, in_process(tmp_path / "home", model, **http) as api:
            gateway = api.url.removeprefix("http://")
            async with running(prepare(folder, port, gateway), port, folder):
                await check(f"http://127.0.0.1:{port}")


async def test_a_proxy_may_take_the_path_off_and_calls_without_it_work(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model, base_path=BASE) as api:
        await check(api.url)
        for path in ("/healthz", f"{BASE}/healthz", "/", "/v1/models"):
            assert (await api.client.get(api.url + path)).status == 200
        async with api.client.get(api.url + "/") as answer:
            assert f'src="{BASE}/assets/' in await answer.text()
        async with api.client.get(api.url + BASE, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (308, f"{BASE}/")
        for path in (f"{BASE}x/healthz", f"{BASE}{BASE}/healthz"):
            assert (await api.client.get(api.url + path)).status == 404
