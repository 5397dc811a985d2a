"""A web site for tests of the browser: the pages that agents meet, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

_ROWS = [
    (f"Item {number}", f"{number * 3} €", "sold out" if number % 7 == 0 else "in stock")
    for number in range(1, 51)
]
_PAGES = Path(__file__).parent / "site"


@dataclass
class BrowsedSite:
    """A running site. `orders` are the forms that were sent, `paths` the requests, `uploads` the files,
    `pages` the pages that a test has written itself. `/silent` gets no answer before `silence` is set."""

    port: int = 0
    orders: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    silence: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path_qs)
        path = request.path
        if request.method == "POST":
            return await self._take(request)
        if path in self.pages:
            return _page(self.pages[path])
        if path == "/silent":
            await self.silence.wait()
        if path == "/table":
            return _page(self._table(int(request.query.get("page", 1))))
        if path == "/found":
            return _page(f"<title>Found</title><h1>Results for {request.query['q']}</h1>")
        if path == "/account":
            user = request.cookies.get("user")
            return _page(f"<title>Account</title><h1>{f'Hello {user}' if user else 'Please log in'}</h1>")
        if path == "/report.pdf":
            return web.Response(body=b"%PDF-1.4 report", content_type="application/pdf")
        if path == "/large.bin":
            return await _endless(request)
        if path == "/redirect":
            raise web.HTTPFound(request.query["to"])
        if path == "/nodes":
            return _page(f"<title>Nodes</title><h1>Nodes</h1>{'<p><b>x</b>' * int(request.query['count'])}")
        if path == "/late":
            await asyncio.sleep(0.5)
        if path.startswith("/item/"):
            return _page(f"<title>Item</title><h1>Item {path[6:]}</h1>")
        file = _PAGES / f"{path[1:] or 'start'}.html"
        if file.is_file():
            return web.Response(text=file.read_text(), content_type="text/html")
        if path == "/big":
            words = "".join(f"<p>Paragraph {n} <a href=/item/{n}>Link {n}</a></p>" for n in range(60_000))
            return _page(f"<title>Big</title><h1>Big</h1>{words}")
        return _page("<title>Not found</title><h1>There is no such page</h1>", status=404)

    async def _take(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.orders.append({key: value for key, value in form.items() if isinstance(value, str)})
        if request.path == "/login":
            if form["password"] != "open sesame":
                return _page("<title>Log in</title><p role=alert>Wrong password</p>", status=403)
            answer = _page("<title>Account</title><h1>Logged in</h1>")
            answer.set_cookie("user", str(form["user"]), httponly=True)
            return answer
        if request.path == "/uploaded":
            file = form["file"]
            assert isinstance(file, web.FileField)
            self.uploads[file.filename] = file.file.read()
            return _page(f"<title>Done</title><h1>Got {file.filename}</h1>")
        return _page(f"<title>Thanks</title><h1>Thank you, {form.get('name', '')}</h1><p>Receipt 17</p>")

    def _table(self, page: int) -> str:
        rows = _ROWS[(page - 1) * 10 : page * 10]
        cells = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        after = f"<a href=/table?page={page + 1}>Next page</a>" if page < 5 else ""
        head = f"<title>Prices</title><h1>Page {page}</h1><table><tr><th>Name<th>Price<th>State</tr>"
        return f"{head}{cells}</table>{after}"


def _page(text: str, status: int = 200) -> web.Response:
    return web.Response(
        text=f"<!doctype html><html lang=en><body>{text}", content_type="text/html", status=status
    )


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(
        headers={"Content-Type": "application/octet-stream", "Content-Length": str(10 << 30)}
    )
    await answer.prepare(request)
    while True:
        await answer.write(b"\0" * 65536)


@asynccontextmanager
async def browsed_site() -> AsyncIterator[BrowsedSite]:
    site = BrowsedSite()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", site.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handle_signals=False)
    await runner.setup()
    try:
        listening = web.TCPSite(runner, "127.0.0.1", 0)
        await listening.start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        site.silence.set()
        await runner.cleanup()
