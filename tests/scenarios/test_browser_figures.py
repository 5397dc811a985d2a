"""What a session's browser costs: tokens, time, CPU and memory. `--long` prints the figures."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from scenarios.test_browser_attacks import browsing
from scenarios.test_browsing import Browsing
from support.programs import needs
from support.realistic_pages import realistic_pages
from talaria.core.tools import NO_CHAT
from talaria.workspace.sandbox.group import below

pytestmark = [needs("chromium"), needs("bwrap"), pytest.mark.asyncio(loop_scope="module")]
_TOKEN = re.compile(r"[^\W\d_]{1,6}|\d{1,3}|[^\s\w]|_")  # more than any tokenizer makes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browsing]:
    async with browsing(tmp_path_factory.mktemp("figures")) as web:
        web.site.pages |= {f"/{kind.replace(' ', '-')}": page for kind, page in realistic_pages().items()}
        yield web


def count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


@pytest.mark.parametrize(
    "kinds", [slice(0, 2), pytest.param(slice(0, 20), marks=pytest.mark.long)], ids=["few", "all"]
)
async def test_realistic_pages_have_4000_tokens_at_most(web: Browsing, kinds: slice) -> None:
    counts = {}
    for path in list(web.site.pages)[kinds]:
        counts[path] = count_tokens(await web.open(path))
    print(counts)
    assert len(counts) == len(range(*kinds.indices(20)))
    assert max(counts.values()) <= 4000, counts


@pytest.mark.long
async def test_a_page_of_5_mb_is_read_in_a_moment(web: Browsing) -> None:
    await web.open("/big")
    (session_id,) = web.browsers._slots
    places = web.api.gateway.workspaces.open(session_id, NO_CHAT).places
    times, cpu = [], []
    for _ in range(20):
        began, used = time.perf_counter(), time.process_time()
        async with web.browsers.use(places) as (browser, _):
            await browser.tab.outline()
        times.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - used))
    print(f"median {statistics.median(times):.0f} ms, worst {max(times):.0f} ms; CPU of the gateway: median "
          f"{statistics.median(cpu):.1f} ms, worst {max(cpu):.1f} ms")  # fmt: skip
    assert statistics.median(cpu) <= 10


@pytest.mark.long
async def test_the_memory_of_browsers_is_reported(web: Browsing) -> None:
    for session_id in tuple(web.browsers._slots):
        await web.browsers.retire(session_id)
    for sessions in (1, 4, 8):
        for n in range(sessions):
            await replace(web, session=f"memory{n}").open("/checkout")
        pids = [slot.browser.process.pid for slot in web.browsers._slots.values() if slot.browser is not None]
        print(f"{len(pids)} sessions: {sum(map(pss_of, pids)) >> 20} MB PSS")


def pss_of(pid: int) -> int:
    """Return the bytes of a process and all below it, shared ones in proportion."""
    total = 0
    for each in (pid, *below(pid)):
        text = Path(f"/proc/{each}/smaps_rollup").read_text()
        total += int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) << 10
    return total


HOSTILE = {
    "console": "setInterval(() => { for (let n = 0; n < 500; n += 1) console.log('x'.repeat(1000)) }, 1)",
    "titles": "let n = 0; setInterval(() => { document.title = 'x'.repeat(5000) + n++ }, 1)",
    "frames": "setInterval(() => { const f = document.createElement('iframe'); document.body.append(f);"
    " setTimeout(() => f.remove(), 20) }, 2)",
    "history": "let n = 0; setInterval(() => { try { history.replaceState(0, '', '#' + n++) } catch {} }, 1)",
    "popups": "setInterval(() => open('/item/1'), 1)",
    "alerts": "setTimeout(() => { for (;;) alert('again') }, 100)",
    "nodes": "setInterval(() => { for (let n = 0; n < 5e4; n += 1) document.body.append("
    "document.createElement('p')) }, 50)",
    "download": "location.href = '/large.bin'",
    "loop": "setTimeout(() => { for (;;) {} }, 100)",
    "storage": "for (const k of ['a', 'b']) { sessionStorage[k] = localStorage[k] = 'x'.repeat(5e5) }",
}


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_other_chats_are_answered_while_hostile_pages_run(web: Browsing) -> None:
    calm = await answer_times(web, 200)
    calm_again = await answer_times(web, 200)
    told = [f"calm: p99 {p99(calm + calm_again):.0f} ms, RSS {rss()} MB"]
    for name, script in HOSTILE.items():
        web.site.pages[f"/hostile-{name}"] = f"<h1>Hostile</h1><script>{script}</script>"
        hostile = replace(web, session=f"hostile-{name}")
        opened = asyncio.create_task(hostile.open(f"/hostile-{name}"))
        await asyncio.sleep(1)
        used = time.process_time()
        began = time.perf_counter()
        times = await answer_times(web, 200)
        cpu = (time.process_time() - used) / (time.perf_counter() - began)
        told.append(f"{name}: p99 {p99(times):.0f} ms, RSS {rss()} MB, CPU {cpu:.0%}")
        await opened
        for session_id in tuple(web.browsers._slots):
            await web.browsers.retire(session_id)
    print("\n".join(told))


async def answer_times(web: Browsing, count: int) -> list[float]:
    """Return the milliseconds of answers in another chat."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await web.api.say("calm", "[[reply ok]]")
        times.append(1000 * (time.perf_counter() - began))
    return times


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 >> 20
