"""The web page in a real Chromium: when it is usable, long chats and answers, growth, and many open pages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.load import Client
from bench.processes import Metered, gateway, model_server
from support.programs import find_program

ROUND_TRIP_MS = 150
_TIMEOUT_MS = 60_000
# In the page: when its field takes a message, when the chats are listed, and the longest frame. The browser
# reports no frames below 50 ms. The field is shown when the page listens to its keys. A message that is sent
# before the gateway has answered anything is kept (tests/browser/test_kept.py).
_WATCH = """
(() => {
  const look = () => {
    if (document.getElementById("text")?.checkVisibility()) window.usableAt ??= performance.now();
    if (document.querySelector("#chats a")) window.listedAt = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
  window.longestFrame = 0;
  new PerformanceObserver((list) => {
    window.longestFrame = Math.max(window.longestFrame, ...list.getEntries().map(({ duration }) => duration));
  }).observe({ type: "long-animation-frame" });
})()
"""


@dataclass(frozen=True, slots=True)
class PageCosts:
    """Seconds and bytes. `core` are the files that are loaded until the page is usable, as they are sent, and
    `heads` the headers of these responses. `cold` and `warm` are the times until the message field can be
    used, with a round trip of 150 ms, without and with a cache; `listed` is the time until the chats are
    listed too, without a cache. `opening` is the page's CPU time for opening the long chat, `frame` the
    longest frame while the long answer is streamed (0: none above 50 ms), `growth` what the page's scripts
    and elements take more after the second half of many turns, `appears` the time until a message that was
    sent elsewhere is on the page. `each` is what an open page adds to the gateway, `lost` how many pieces of
    an answer open pages have missed."""

    core: int
    heads: int
    cold: float
    warm: float
    listed: float
    opening: float
    frame: float
    growth: float
    appears: float
    each: float
    lost: int


async def measure_page(messages: int, lines: int, turns: int, pages: int) -> PageCosts:
    """Measure a chat of so many messages, an answer of so many lines, so many turns, so many open pages."""
    async with AsyncExitStack() as scopes:
        model = scopes.enter_context(model_server())
        served, token = scopes.enter_context(gateway(model.url))
        client = Client(served.url, token)
        scopes.push_async_callback(client.close)
        await client.run(["long"], messages // 2)
        visitor = await scopes.enter_async_context(_browser(served.url, token))
        await visitor.open("#chat=new")
        await visitor.throttle(ROUND_TRIP_MS)
        core, heads, cold, listed = await visitor.load(is_cold=True)
        _, _, warm, _ = await visitor.load()
        await visitor.throttle(0)
        opening = await visitor.opening()
        frame = await visitor.longest_frame(client, lines)
        growth = await visitor.growth(client, turns)
        appears = await visitor.appears(client)
    with model_server() as model, gateway(model.url) as (served, token):
        each, lost = await _open_pages(served, token, pages)
    return PageCosts(core, heads, cold, warm, listed, opening, frame, growth, appears, each, lost)


class _Page:
    def __init__(self, page: Any, tools: Any, url: str) -> None:
        self._page = page
        self._tools = tools  # of the browser's developers
        self._url = url

    async def open(self, address: str) -> None:
        """Load the page anew at this address."""
        await self._page.goto("about:blank")
        await self._page.goto(f"{self._url}/{address}")
        await self._page.wait_for_function("() => window.listedAt", timeout=_TIMEOUT_MS)

    async def throttle(self, ms: int) -> None:
        limits = {"offline": False, "latency": ms, "downloadThroughput": -1, "uploadThroughput": -1}
        await self._tools.send("Network.emulateNetworkConditions", limits)

    async def load(self, *, is_cold: bool = False) -> tuple[int, int, float, float]:
        """Return the bytes of the page's files and of their headers until it is usable, and the seconds until
        then and until the chats are listed."""
        if is_cold:
            await self._tools.send("Network.clearBrowserCache")
        heads: dict[str, int] = {}
        loaded: dict[str, tuple[float, int]] = {}
        began: list[float] = []

        def answered(told: Any) -> None:
            if not told["response"]["url"].startswith((f"{self._url}/api", "data:")):
                heads[_id(told)] = int(told["response"]["encodedDataLength"])

        def ended(told: Any) -> None:
            loaded[_id(told)] = float(told["timestamp"]), int(told["encodedDataLength"])

        def asked(told: Any) -> None:
            if told["request"]["url"].startswith(self._url):
                began.append(float(told["timestamp"]))

        self._tools.on("Network.requestWillBeSent", asked)
        self._tools.on("Network.responseReceived", answered)
        self._tools.on("Network.loadingFinished", ended)
        await self.open("#chat=new")
        usable, listed = [await self._page.evaluate(name) / 1000 for name in ("usableAt", "listedAt")]
        core = [key for key in heads if key in loaded and loaded[key][0] <= began[0] + usable]
        head = sum(heads[key] for key in core)
        return sum(loaded[key][1] for key in core) - head, head, usable, listed

    async def opening(self) -> float:
        """Return the CPU seconds of opening the long chat."""
        before = await self._metric("TaskDuration")
        await self._page.evaluate("() => { location.hash = '#chat=long'; }")
        await self._page.wait_for_function("() => document.querySelectorAll('#log .block').length > 50")
        await self._at_rest()
        return float(await self._metric("TaskDuration") - before)

    async def longest_frame(self, client: Client, lines: int) -> float:
        await self.open("#chat=stream")
        code = "\n".join(f"    print('line {number} of the answer')" for number in range(lines))
        text = f"[[reply ```py\n{code}\n```]][[chunks {lines}]][[chunk-delay 0.003]]"
        await client.turn("stream", text)
        await self._page.wait_for_function("() => document.querySelector('#log .sum')")
        return float(await self._page.evaluate("longestFrame")) / 1000

    async def growth(self, client: Client, turns: int) -> float:
        """Return by how many bytes the page's heap grows in the second half of the turns."""
        sizes = []
        for _ in range(2):
            await self._page.evaluate("() => { location.hash = '#chat=many'; }")
            for number in range(turns // 2):
                await client.turn("many", f'[[call read_file {{"path": "none"}}]] turn {number}')
            await self._at_rest()
            await self._page.evaluate("() => { location.hash = '#chat=rest'; }")
            await self._at_rest()
            sizes.append(await self._held_bytes())
        return float(sizes[1] - sizes[0])

    async def _held_bytes(self) -> int:
        """Return the size of all that the page's scripts and elements hold, by a heap snapshot. Left out are
        compiled code, which the engine makes and drops as it likes, and the browser's own records, such as
        those of requests, which grow because the developers' tools are attached."""
        pieces: list[str] = []

        def collect(told: Any) -> None:
            pieces.append(told["chunk"])

        self._tools.on("HeapProfiler.addHeapSnapshotChunk", collect)
        await self._tools.send("HeapProfiler.collectGarbage")
        await self._tools.send("HeapProfiler.takeHeapSnapshot")
        self._tools.remove_listener("HeapProfiler.addHeapSnapshotChunk", collect)
        heap = json.loads("".join(pieces))
        fields, (kinds, *_) = heap["snapshot"]["meta"]["node_fields"], heap["snapshot"]["meta"]["node_types"]
        columns = [heap["nodes"][fields.index(name) :: len(fields)] for name in ("type", "name", "self_size")]
        return sum(
            size
            for kind, name, size in zip(*columns, strict=True)
            if kinds[kind] not in ("code", "hidden")
            and not (kinds[kind] == "native" and heap["strings"][name].startswith(("blink::", "system /")))
        )

    async def appears(self, client: Client) -> float:
        """Return the longest of ten times until a message to another chat is in the list."""
        longest = 0.0
        for number in range(10):
            row = self._page.locator("#chats a", has_text=f"message {number} of another chat")
            seen = asyncio.ensure_future(row.first.wait_for())
            began = time.perf_counter()
            await client.accept([f"other-{number}"], 1, f"message {number} of another chat")
            await seen
            longest = max(longest, time.perf_counter() - began)
        return longest

    async def _metric(self, name: str) -> float:
        metrics = (await self._tools.send("Performance.getMetrics"))["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == name)

    async def _at_rest(self) -> None:
        """Wait until nothing has been painted or read for a while. A stream of events is always open."""
        await self._page.wait_for_timeout(1500)


def _id(told: Any) -> str:
    return str(told["requestId"])


@asynccontextmanager
async def _browser(url: str, token: str) -> AsyncIterator[_Page]:
    """Give a page that is logged in."""
    from playwright.async_api import async_playwright  # noqa: PLC0415

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_program("chromium"))
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        await page.add_init_script(_WATCH)
        tools = await page.context.new_cdp_session(page)
        await tools.send("Network.enable")
        await tools.send("Performance.enable")
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{url}/api/login/codes") as answer,
        ):
            code = (await answer.json())["code"]
        await page.goto(f"{url}/#code={code}")
        await page.locator("#chats a").first.wait_for()
        yield _Page(page, tools, url)
        await browser.close()


async def _open_pages(served: Metered, token: str, pages: int) -> tuple[float, int]:
    """Return the bytes that the gateway grows by for each open page, which listens to all changes and follows
    a turn, and how many pieces of its answer the pages have missed."""
    client, pieces = Client(served.url, token), 40
    headers = {"Authorization": f"Bearer {token}"}
    turn = f"[[chunks {pieces}]][[words {pieces}]][[delay 6]][[chunk-delay 0.05]] for all pages"
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def listen() -> None:
            async with session.get(f"{served.url}/api/events") as answer:
                async for _ in answer.content:
                    pass

        async def follow(turn_id: str) -> str:
            async with session.get(f"{served.url}/api/turns/{turn_id}/events") as answer:
                lines = (await answer.text()).splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
            return "".join(event["text"] for event in events if event["type"] == "delta")

        await client.run(["warm"], 5)
        before = served.rss()
        listeners = [asyncio.create_task(listen()) for _ in range(pages)]
        async with session.post(f"{served.url}/api/sessions/all/messages", json={"text": turn}) as answer:
            turn_id = (await answer.json())["turn_id"]
        followers = [asyncio.create_task(follow(turn_id)) for _ in range(pages)]
        await asyncio.sleep(5)  # all are connected, and the answer begins
        grown = served.rss() - before
        texts = await asyncio.gather(*followers)
        for task in listeners:
            task.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
    await client.close()
    whole = max(texts, key=len)
    assert whole, "the turn had no text"
    return grown / pages, sum(text != whole for text in texts)
