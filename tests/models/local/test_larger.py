"""The larger built-in model: when it is offered, when new chats use it, and when it does not fit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from talaria.core.errors import ModelRefused, NotFound
from talaria.models.local.downloads import LargerState, OtherDownload, TooLittleMemory, WeightsDownloads
from talaria.models.local.fetch import WeightsError
from talaria.models.local.local_endpoint import LocalEndpoint
from talaria.models.local.runtime import ModelProcess, memory_limit
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    LARGER_MODEL,
    FetchProgress,
    FetchStage,
    Weights,
    WeightsCache,
    find_weights,
)
from talaria.testing.clock import FakeClock

GB = 10**9


class Machine:
    """An endpoint on a machine with so much memory, whose downloads end when the test says so."""

    def __init__(self, folder: Path, memory: int | None = 8 * GB) -> None:
        clock, self.cache = FakeClock(), WeightsCache(folder)
        self.goes_on, self.failure = asyncio.Event(), ""
        self.requirement: ModelRefused | None = None
        self.downloads = WeightsDownloads(self.cache, {}, clock, fetcher=self._fetch)
        self.endpoint = LocalEndpoint(
            self.cache,
            self.downloads,
            ModelProcess(clock),
            clock,
            requirement=lambda: self.requirement,
            memory=lambda: memory,
        )

    async def _fetch(self, weights: Weights, *rest: object) -> Path:
        await self.goes_on.wait()
        if self.failure:
            raise WeightsError(self.failure)
        return self.arrive(weights)

    def arrive(self, weights: Weights) -> Path:
        with self.cache.path(weights).open("wb") as file:
            file.truncate(weights.size)
        return self.cache.path(weights)


async def settle(machine: Machine) -> None:
    machine.goes_on.set()
    running = asyncio.create_task(machine.downloads.run())
    assert await machine.downloads.arrival(lambda loading: None)
    running.cancel()
    await asyncio.wait((running,))


async def test_it_is_fetched_on_request_and_then_new_chats_use_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.endpoint.larger().state is LargerState.ABSENT
    machine.endpoint.fetch(LARGER_MODEL)
    assert machine.endpoint.larger().state is LargerState.FETCHING
    assert machine.endpoint.default_model() == DEFAULT_MODEL
    machine.endpoint.fetch(LARGER_MODEL)  # once more changes nothing
    await settle(machine)
    assert machine.endpoint.larger().state is LargerState.READY
    assert machine.endpoint.default_model() == LARGER_MODEL


async def test_a_download_that_failed_says_why_and_can_be_asked_for_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.failure = "The network is down."
    machine.endpoint.fetch(LARGER_MODEL)
    await settle(machine)
    told = machine.endpoint.larger()
    assert (told.state, told.why) == (LargerState.ABSENT, "The network is down.")


def test_a_machine_with_too_little_memory_is_told_so_and_does_not_switch(tmp_path: Path) -> None:
    machine = Machine(tmp_path, memory=2 * GB)
    told = machine.endpoint.larger()
    assert told.state is LargerState.REFUSED
    assert told.why.endswith("needs 2.0 GB of memory for itself, and this machine has 2.0 GB in all.")
    with pytest.raises(TooLittleMemory):
        machine.endpoint.fetch(LARGER_MODEL)
    machine.arrive(find_weights(LARGER_MODEL))
    assert machine.endpoint.default_model() == DEFAULT_MODEL


def test_a_machine_of_unknown_memory_may_try(tmp_path: Path) -> None:
    assert Machine(tmp_path, memory=None).endpoint.larger().state is LargerState.ABSENT


def test_one_download_at_a_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.endpoint.fetch(DEFAULT_MODEL)
    with pytest.raises(OtherDownload):
        machine.endpoint.fetch(LARGER_MODEL)
    with pytest.raises(NotFound):
        machine.endpoint.fetch("gpt-5")


def test_without_the_runtime_it_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.requirement = ModelRefused("No runtime.")
    assert machine.endpoint.larger().why == "No runtime."
    with pytest.raises(ModelRefused, match="No runtime"):
        machine.endpoint.fetch(LARGER_MODEL)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/meminfo": "MemFree: 5 kB\n"}, None),
        ({"proc/meminfo": "MemTotal:   4000000 kB\nMemFree: 5 kB\n"}, 4_096_000_000),
        ({"proc/meminfo": "MemTotal: 4000000 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 4_096_000_000),
        ({"proc/meminfo": "MemTotal: 4000000 kB\n", "sys/fs/cgroup/memory.max": "1000000000\n"}, GB),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000000\n"}, 3 * GB),
    ],
)
def test_the_memory_of_a_machine_or_of_its_container(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path) == limit


def test_a_download_tells_how_far_it_is_and_how_long_it_takes(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.downloads.progress = FetchProgress(LARGER_MODEL, FetchStage.FETCHING, 100, 1000, rate=50.4)
    told = machine.endpoint.larger()
    assert (told.state, told.done) == (LargerState.FETCHING, 100)
    assert told.seconds_left == pytest.approx(900 / 50.4)
    shown = machine.downloads.progress.view()
    assert (shown["rate"], shown["done"], shown["seconds_left"]) == (50, 100, told.seconds_left)
    machine.downloads.progress = FetchProgress(DEFAULT_MODEL, FetchStage.FETCHING, 100, 1000)
    assert machine.endpoint.larger().state is LargerState.ABSENT
